#include "weft/transport/shm/message_ring.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::transport {
namespace {

constexpr uint64_t kUnit = 8;  // of lengths and positions

// A long message is shown to its reader in parts, so that both copy at once.
constexpr uint64_t kPartBytes = 32 << 10;

// The first pages of a ring that gets its pages as it is used, in bytes.
constexpr uint64_t kFirstPages = 8 << 10;

uint64_t RoundUp(uint64_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// A writer that waits for room continues when half of the ring is free.
uint64_t EnoughRoom(uint64_t capacity) { return capacity / 2; }

// As RingWords has it: 0 if the system does not tell.
uint32_t ThisCore() { return static_cast<uint32_t>(sched_getcpu() + 1); }

absl::Status Impossible(const char* what, uint64_t found, uint64_t most) {
  return absl::InvalidArgumentError(absl::StrCat(
      "message ring: the peer says ", what, " ", found, ", of at most ", most));
}

// Memory for a message, its owner included, in one chunk if it is small.
struct Small {
  Small() {}  // leaves the bytes as they are
  uint8_t bytes[256];
};

Bytes AllocateMessage(uint64_t size, uint8_t** begin) {
  if (size <= sizeof(Small::bytes)) {
    auto owner = std::make_shared<Small>();
    *begin = owner->bytes;
    return Bytes::Wrap(*begin, size, std::move(owner));
  }
  std::unique_ptr<uint8_t[]> owner(new uint8_t[size]);
  *begin = owner.get();
  return Bytes::Wrap(*begin, size, std::move(owner));
}

}  // namespace

RingMemory RingMemory::At(std::byte* begin, uint64_t capacity) {
  WEFT_CHECK(capacity > 0 && capacity % kRingLine == 0);
  WEFT_CHECK_EQ(reinterpret_cast<uintptr_t>(begin) % kRingLine, 0u);
  return {reinterpret_cast<RingWords*>(begin), begin + sizeof(RingWords),
          capacity};
}

// Twice as many each time, so that neither a ring of few messages has many nor
// a busy one asks often.
absl::Status RingPages::Grow(uint64_t position) {
  const uint64_t end =
      std::min(capacity_, std::max({position, 2 * has_, kFirstPages}));
  WEFT_RETURN_IF_ERROR(allocate_(has_, end));
  has_ = end == capacity_ ? kAll : end;
  return absl::OkStatus();
}

// ------------------------------------------------------------------- writing

void MessageWriter::Begin(Slices message) {
  WEFT_CHECK(is_idle());
  const uint64_t size = TotalSize(message);
  WEFT_CHECK_LE(size, kMaxRingMessageBytes);
  message_ = std::move(message);
  slice_ = offset_ = 0;
  left_ = kUnit + RoundUp(size);
  begun_ = false;
}

absl::Status MessageWriter::Go() {
  while (left_ > 0) {
    WEFT_ASSIGN_OR_RETURN(const uint64_t room, Room());
    if (room == 0) return absl::OkStatus();
    const uint64_t part = std::min({room, left_, kPartBytes});
    WEFT_RETURN_IF_ERROR(pages_.Reach(written_ + part));
    uint64_t body = part;
    if (!begun_) {
      const uint64_t size = TotalSize(message_);
      Copy(&size, kUnit);
      begun_ = true;
      body -= kUnit;
    }
    CopyMessage(body);
    left_ -= part;
    memory_.words->written.store(written_, std::memory_order_seq_cst);
  }
  message_.clear();
  return absl::OkStatus();
}

// How much may be written now, in whole units; 0: too little.
absl::StatusOr<uint64_t> MessageWriter::Room() {
  const uint64_t capacity = memory_.capacity;
  if (capacity - (written_ - seen_read_) >= left_) return left_;
  const uint64_t read = memory_.words->read.load(std::memory_order_acquire);
  if (read - seen_read_ > written_ - seen_read_ || read % kUnit != 0) {
    return Impossible("to have read up to", read, written_);
  }
  seen_read_ = read;
  const uint64_t room = capacity - (written_ - read);
  return room >= std::min(left_, EnoughRoom(capacity)) ? room : 0;
}

bool MessageWriter::HasRoom() const {
  const uint64_t read = memory_.words->read.load(std::memory_order_seq_cst);
  // A lie is for Go() to find.
  return memory_.capacity - (written_ - read) >= EnoughRoom(memory_.capacity);
}

bool MessageWriter::BeginSleep() {
  memory_.words->writer_sleeps.store(1, std::memory_order_seq_cst);
  return HasRoom();
}

void MessageWriter::EndSleep() {
  memory_.words->writer_sleeps.store(0, std::memory_order_relaxed);
}

// The bytes behind the message, up to the next unit, are left as they are.
void MessageWriter::CopyMessage(uint64_t bytes) {
  while (bytes > 0 && slice_ < message_.size()) {
    const Bytes& from = message_[slice_];
    const uint64_t n = std::min<uint64_t>(bytes, from.size() - offset_);
    Copy(from.data() + offset_, n);
    bytes -= n;
    offset_ += n;
    if (offset_ < from.size()) continue;
    ++slice_;
    offset_ = 0;
  }
  written_ += bytes;
}

void MessageWriter::Copy(const void* from, uint64_t bytes) {
  if (bytes == 0) return;  // from nowhere, perhaps
  const uint64_t at = written_ % memory_.capacity;
  const uint64_t first = std::min(bytes, memory_.capacity - at);
  std::memcpy(memory_.bytes + at, from, first);
  if (first < bytes) {
    std::memcpy(memory_.bytes, static_cast<const std::byte*>(from) + first,
                bytes - first);
  }
  written_ += bytes;
}

// Either the reader, which says that it sleeps before it looks again, sees what
// was written, or we see that it sleeps: all four are sequentially consistent.
bool MessageWriter::MustWake() {
  std::atomic<uint32_t>& sleeps = memory_.words->reader_sleeps;
  return sleeps.load(std::memory_order_seq_cst) != 0 &&
         sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool MessageWriter::ReaderIsOnAnotherCore() const {
  const uint32_t core =
      memory_.words->reader_core.load(std::memory_order_relaxed);
  return core != 0 && core != ThisCore();
}

// ------------------------------------------------------------------- reading

absl::StatusOr<std::optional<Bytes>> MessageReader::Read() {
  uint64_t read = this->read();
  const uint64_t written =
      end_.has_value() ? *end_
                       : memory_.words->written.load(std::memory_order_acquire);
  uint64_t available = written - read;
  if (available > memory_.capacity || available % kUnit != 0) {
    return Impossible("to have written up to", written,
                      read + memory_.capacity);
  }
  if (available == 0) return std::nullopt;
  // Whoever wrote there has given them pages, or lies.
  WEFT_RETURN_IF_ERROR(pages_.Reach(read + available));
  if (!begun_) {
    WEFT_RETURN_IF_ERROR(Begin(read % memory_.capacity));
    read += kUnit;
    available -= kUnit;
  }
  const uint64_t left = message_.size() - filled_;
  const uint64_t part = std::min(left, available);
  const uint64_t at = read % memory_.capacity;
  const uint64_t first = std::min(part, memory_.capacity - at);
  std::memcpy(to_ + filled_, memory_.bytes + at, first);
  std::memcpy(to_ + filled_ + first, memory_.bytes, part - first);
  filled_ += part;
  read += RoundUp(part);
  read_.store(read, std::memory_order_relaxed);
  memory_.words->read.store(read, std::memory_order_seq_cst);
  if (part < left) return std::nullopt;
  begun_ = false;
  return std::optional<Bytes>(std::move(message_));
}

absl::Status MessageReader::Begin(uint64_t at) {
  static_assert(kUnit == sizeof(uint64_t));
  // Once: it may change as soon as it was read.
  const uint64_t size = __atomic_load_n(
      reinterpret_cast<const uint64_t*>(memory_.bytes + at), __ATOMIC_RELAXED);
  if (size > kMaxRingMessageBytes) {
    return Impossible("to send a message of", size, kMaxRingMessageBytes);
  }
  message_ = AllocateMessage(size, &to_);
  filled_ = 0;
  begun_ = true;
  return absl::OkStatus();
}

void MessageReader::StopAtWritten() {
  end_ = memory_.words->written.load(std::memory_order_acquire);
}

bool MessageReader::MustWake() {
  std::atomic<uint32_t>& sleeps = memory_.words->writer_sleeps;
  if (sleeps.load(std::memory_order_seq_cst) == 0) return false;
  const uint64_t written = memory_.words->written.load();
  const uint64_t room = memory_.capacity - (written - read());
  return room >= EnoughRoom(memory_.capacity) &&
         sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool MessageReader::BeginSleep() {
  memory_.words->reader_core.store(ThisCore(), std::memory_order_relaxed);
  memory_.words->reader_sleeps.store(1, std::memory_order_seq_cst);
  return memory_.words->written.load(std::memory_order_seq_cst) != read();
}

void MessageReader::EndSleep() {
  memory_.words->reader_sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace weft::transport
