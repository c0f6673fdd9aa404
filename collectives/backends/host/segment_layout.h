// SegmentLayout: what lies where in the memory that the ranks of a host share.
//
//   head | a control block for each rank | slots, two for each rank |
//   the head of a transfer ring for each ordered pair |
//   the content of each of these rings | an arena for each rank
//
// What lies before the content of the rings has pages from the beginning. The
// content of a ring gets them with the first message, an arena as it is used:
// most pairs of a large group never send, and few ranks use all of an arena.
//
// Ranks trust each other no further than needed: a number that another rank
// wrote is copied, then checked, then used.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_SEGMENT_LAYOUT_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_SEGMENT_LAYOUT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/collectives/diagnosis.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// The progress of one rank, in cache lines of its own: one for operations, one
// for transfers.
struct alignas(64) RankControl {
  // The phase in which this rank arrived last; phases count from 1.
  std::atomic<uint64_t> arrived;
  // Changes when somebody arrived while this rank slept.
  std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> is_sleeping;
  std::atomic<uint32_t> has_left;
  // The core on which this rank was when it arrived, a hint.
  std::atomic<int32_t> core;
  // The fingerprint in its slot of each parity, so that whoever finds that this
  // rank has arrived needs no other cache line to compare it; 0 of a refusal.
  std::array<std::atomic<uint64_t>, 2> fingerprints;
  // Changes with what this rank can send or receive.
  alignas(64) std::atomic<uint32_t> transfer_bell;
  std::atomic<uint32_t> transfer_sleepers;
  // Whether this rank reads the memory of the others (PeerMemory).
  std::atomic<uint32_t> reads_peers;
  // Whether it has given up what it was sending: memory that a message names
  // may hold anything.
  std::atomic<uint32_t> has_withdrawn;
};

// A status that some rank has written, once.
struct WrittenStatus {
  // False: another one is there already, or is being written.
  bool Write(const absl::Status& status);
  // OK: nothing is there yet.
  absl::Status Read() const;

  std::atomic<uint32_t> state;  // 0, 1 while it is written, 2
  int32_t code;
  uint32_t bytes;
  char text[1500];
};

// What is kept once for the whole group.
struct alignas(64) SegmentHead {
  WrittenStatus abort;
  // Groups that are no longer to be made of this one.
  struct Shrink {
    std::atomic<uint64_t> key;  // 0: unused
    WrittenStatus why;
  };
  std::array<Shrink, 4> ended_shrinks;
};

// What a rank says of its operation before the first phase of it. Words, since
// a rank that reports a stuck operation reads it while it may be written.
class OperationRecord {
 public:
  // Where this rank's blocks lie in the arena: 0 if a block is elsewhere, else
  // 1 + its offset in the segment.
  struct Places {
    uint64_t input = 0;
    uint64_t output = 0;
    // Addresses in this rank's process; 0 if it cannot read the memory of all
    // others.
    uint64_t input_address = 0;
    uint64_t output_address = 0;
  };

  void Write(const Operation& operation, uint64_t fingerprint,
             const Places& places);
  void WriteRefusal(const Operation& operation, absl::string_view why);

  uint64_t sequence() const { return Word(kSequence); }
  uint64_t fingerprint() const { return Word(kFingerprint); }
  bool is_refusal() const { return Word(kIsRefusal) != 0; }
  double factor() const;
  Places places() const {
    return {Word(kInput), Word(kOutput), Word(kInputAddress),
            Word(kOutputAddress)};
  }
  // As Describe(operation), of at most 4 counts.
  std::string ToString() const;

 private:
  enum Index {
    // What other ranks read of operations that succeed: one cache line.
    kSequence,
    kFingerprint,
    kIsRefusal,
    kFactor,
    kInput,
    kOutput,
    kInputAddress,
    kOutputAddress,
    // What only messages say.
    kLabel,
    kKind,    // verb, dtype, reduction, number of blocks
    kRoot,    // and the line
    kCounts,  // 4 words
    kFile = kCounts + 4,
    kDetail = kFile + 5,
    kWords = kDetail + 8
  };

  void Set(int index, uint64_t word) {
    words_[index].store(word, std::memory_order_relaxed);
  }
  uint64_t Word(int index) const {
    return words_[index].load(std::memory_order_relaxed);
  }
  void WriteCommon(const Operation& operation);
  // Texts of `bytes`, a multiple of 8, the last of which is 0.
  void SetText(int index, size_t bytes, absl::string_view text);
  std::string Text(int index, size_t bytes) const;

  std::array<std::atomic<uint64_t>, kWords> words_;
};

// What a rank shows the others in one phase; the next phase uses its other one.
struct alignas(64) Slot {
  static constexpr int64_t kBytes = 128 * 1024;

  OperationRecord record;
  uint32_t refusal_bytes;
  char refusal[500];
  alignas(64) std::byte staged[kBytes];
};

// How many bytes of one rank's messages to another are on their way.
struct alignas(64) RingHead {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};

// The bytes themselves. `content` has pages once `written` is above 0.
struct TransferRing {
  static constexpr uint64_t kBytes = 64 * 1024;

  RingHead& head;
  std::byte* const content;
};

// The parts of a segment of `ranks` ranks, each with `arena_bytes`.
class SegmentLayout {
 public:
  SegmentLayout(int ranks, int64_t arena_bytes)
      : ranks_(ranks), arena_bytes_((arena_bytes + 4095) / 4096 * 4096) {}

  int64_t bytes() const { return ArenaAt(ranks_); }
  // The bytes at the beginning that have pages at once.
  int64_t initial_bytes() const { return RingContentAt(0, 0); }
  int64_t arena_bytes() const { return arena_bytes_; }

  int64_t HeadAt() const { return 0; }
  int64_t ControlAt(int rank) const {
    return sizeof(SegmentHead) + rank * sizeof(RankControl);
  }
  int64_t SlotAt(int rank, int parity) const {
    return ControlAt(ranks_) + (2 * rank + parity) * sizeof(Slot);
  }
  int64_t RingHeadAt(int from, int to) const {
    return SlotAt(ranks_, 0) + Pair(from, to) * sizeof(RingHead);
  }
  int64_t RingContentAt(int from, int to) const {
    return (RingHeadAt(ranks_, 0) + 4095) / 4096 * 4096 +
           Pair(from, to) * TransferRing::kBytes;
  }
  int64_t ArenaAt(int rank) const {
    return RingContentAt(ranks_, 0) + rank * arena_bytes_;
  }

 private:
  int64_t Pair(int from, int to) const { return int64_t{from} * ranks_ + to; }

  const int ranks_;
  const int64_t arena_bytes_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_SEGMENT_LAYOUT_H_
