// MessageRing: the messages of one direction, in memory that two processes
// share: its writer's end and its reader's.
//
// The memory begins with the words by which the two agree (RingWords), each
// written by one of them; the rest is a ring of bytes. A message lies there as
// its length, in 8 bytes, and its own bytes, up to the next multiple of 8; one
// longer than the ring passes through it in parts.
//
// The other process may be broken or hostile. Words are copied before they are
// checked; a position or a length that cannot be is an error, after which
// nothing more may be asked of that end. Messages are copied out before anybody
// sees them.
//
// An end that is about to sleep announces it in the memory and looks once more.
// The other calls MustWake after each change, which says whether the sleeper
// must be woken.

#ifndef WEFT_TRANSPORT_SHM_MESSAGE_RING_H_
#define WEFT_TRANSPORT_SHM_MESSAGE_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"

namespace weft::transport {

// What two processors never take from each other by accident: a pair of lines.
inline constexpr uint64_t kRingLine = 128;

// Zeros mean an empty ring, whose reader is awake.
struct RingWords {
  alignas(kRingLine) std::atomic<uint64_t> written;  // by the writer, in all
  alignas(kRingLine) std::atomic<uint64_t> read;     // by the reader, in all
  alignas(kRingLine) std::atomic<uint32_t> reader_sleeps;
  std::atomic<uint32_t> writer_sleeps;  // until there is room
  // Where the reader last went to sleep: its number and 1.
  std::atomic<uint32_t> reader_core;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Memory of `capacity` bytes behind the words.
struct RingMemory {
  RingWords* words = nullptr;
  std::byte* bytes = nullptr;
  uint64_t capacity = 0;  // a multiple of kRingLine

  static constexpr uint64_t BytesFor(uint64_t capacity) {
    return sizeof(RingWords) + capacity;
  }
  // `begin` is aligned to kRingLine and has BytesFor(capacity).
  static RingMemory At(std::byte* begin, uint64_t capacity);
};

// The pages of a ring that gets them as its first lap goes on, as one end sees
// them: most rings carry little, and pages cost memory, and time to clear.
//
// Thread-safety: one thread at a time.
class RingPages {
 public:
  // Gives the bytes from `begin` to `end` of the ring their pages; those that
  // have some keep them.
  using Allocate = std::function<absl::Status(uint64_t begin, uint64_t end)>;

  // All are there.
  RingPages() : has_(kAll) {}
  RingPages(uint64_t capacity, Allocate allocate)
      : capacity_(capacity), allocate_(std::move(allocate)) {}

  // Before anything up to `position`, counted from the first byte of the first
  // lap, is touched. Errors are Allocate's.
  absl::Status Reach(uint64_t position) {
    return position <= has_ ? absl::OkStatus() : Grow(position);
  }

 private:
  static constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();

  absl::Status Grow(uint64_t position);

  uint64_t capacity_ = 0;
  Allocate allocate_;
  uint64_t has_ = 0;
};

// No message is longer.
inline constexpr uint64_t kMaxRingMessageBytes = uint64_t{16} << 20;

// Thread-safety: one thread at a time, but for EndSleep: one more.
class MessageWriter {
 public:
  explicit MessageWriter(RingMemory memory, RingPages pages = {})
      : memory_(memory), pages_(std::move(pages)) {}

  // What is to be written next. REQUIRES: is_idle(), and the message is not
  // longer than kMaxRingMessageBytes.
  void Begin(Slices message);
  // Copies into the memory what there is room for. Ok: the whole message or, if
  // !is_idle(), until the reader has read more. kInvalidArgument: the reader
  // says to have read what it cannot. kResourceExhausted: the ring gets no more
  // pages.
  absl::Status Go();
  bool is_idle() const { return left_ == 0; }
  // Whether Go() would get on.
  bool HasRoom() const;

  // Whether the reader sleeps that must see what has been written. Once.
  bool MustWake();
  // Whether the reader last went to sleep on another core than the caller's.
  bool ReaderIsOnAnotherCore() const;

  // The reader must wake us from now on. Returns HasRoom() after that.
  bool BeginSleep();
  void EndSleep();

 private:
  absl::StatusOr<uint64_t> Room();
  void Copy(const void* from, uint64_t bytes);
  void CopyMessage(uint64_t bytes);

  const RingMemory memory_;
  RingPages pages_;
  uint64_t written_ = 0;
  uint64_t seen_read_ = 0;  // when room was last short
  Slices message_;
  size_t slice_ = 0;    // of the message, where it goes on
  size_t offset_ = 0;   // in that slice
  uint64_t left_ = 0;   // of the message with its length, up to a multiple of 8
  bool begun_ = false;  // its length is there
};

// Thread-safety: one thread at a time, but for HasMore, BeginSleep and
// EndSleep: one more.
class MessageReader {
 public:
  explicit MessageReader(RingMemory memory, RingPages pages = {})
      : memory_(memory), pages_(std::move(pages)) {}

  // Whether Read() would get on.
  bool HasMore() const {
    return memory_.words->written.load(std::memory_order_acquire) != read();
  }
  // The next message; null: not all of it is there. kInvalidArgument: what is
  // there cannot have been written by a MessageWriter. kResourceExhausted: the
  // ring gets no more pages.
  absl::StatusOr<std::optional<Bytes>> Read();
  // From now on nothing that is written later is read.
  void StopAtWritten();

  // Whether the writer sleeps for which there is room now. Once.
  bool MustWake();

  // The writer must wake us from now on. Returns HasMore() after that.
  bool BeginSleep();
  void EndSleep();

 private:
  absl::Status Begin(uint64_t at);
  uint64_t read() const { return read_.load(std::memory_order_relaxed); }

  const RingMemory memory_;
  RingPages pages_;
  std::atomic<uint64_t> read_{0};
  std::optional<uint64_t> end_;
  // The message that is being read, and how much of it was.
  bool begun_ = false;
  Bytes message_;
  uint8_t* to_ = nullptr;
  uint64_t filled_ = 0;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SHM_MESSAGE_RING_H_
