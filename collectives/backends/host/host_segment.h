// HostSegment: one rank's mapping of the memory that the ranks of a host share.

#ifndef WEFT_COLLECTIVES_BACKENDS_HOST_HOST_SEGMENT_H_
#define WEFT_COLLECTIVES_BACKENDS_HOST_HOST_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "weft/base/mutex.h"
#include "weft/collectives/backends/host/segment_layout.h"
#include "weft/memory/segment.h"
#include "weft/transport/shm/memory_budget.h"

namespace weft::collectives {

// Thread-safety: as each part of the segment says.
class HostSegment {
 public:
  // REQUIRES: `segment` has layout.bytes() and began as zeros, and its first
  // layout.initial_bytes() have pages. numbers[r]: what messages call rank r.
  // What this rank lets grow is counted against `budget`, which may be null.
  HostSegment(memory::Segment segment, SegmentLayout layout, int rank,
              std::vector<int> numbers,
              std::shared_ptr<transport::MemoryBudget> budget)
      : segment_(std::move(segment)),
        layout_(layout),
        rank_(rank),
        numbers_(std::move(numbers)),
        budget_(std::move(budget)) {}

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(numbers_.size()); }
  int NumberOf(int rank) const { return numbers_[rank]; }

  SegmentHead& head() const { return *At<SegmentHead>(layout_.HeadAt()); }
  RankControl& ControlOf(int rank) const {
    return *At<RankControl>(layout_.ControlAt(rank));
  }
  std::vector<RankControl*> Controls() const;
  Slot& SlotOf(int rank, uint64_t phase) const {
    return *At<Slot>(layout_.SlotAt(rank, static_cast<int>(phase % 2)));
  }
  TransferRing RingOf(int from, int to) const {
    return {*At<RingHead>(layout_.RingHeadAt(from, to)),
            At<std::byte>(layout_.RingContentAt(from, to))};
  }
  // Gives the content of the ring from this rank to `to` its pages.
  // kResourceExhausted: the host or the budget has no memory for them.
  absl::Status AllocateRing(int to) {
    return AllocatePages(layout_.RingContentAt(rank_, to),
                         TransferRing::kBytes);
  }
  std::byte* own_arena() const { return At<std::byte>(layout_.ArenaAt(rank_)); }
  int64_t arena_bytes() const { return layout_.arena_bytes(); }
  // The same for these bytes of this rank's arena.
  absl::Status AllocateArena(int64_t offset, int64_t bytes) {
    return AllocatePages(layout_.ArenaAt(rank_) + offset, bytes);
  }

  // 1 + the offset of memory in this rank's arena; 0 for any other.
  uint64_t PlaceOf(const std::byte* memory, int64_t bytes) const;
  // Where `bytes` at a place that `rank` has named are mapped here; null if
  // they are not within its arena.
  std::byte* Find(int rank, uint64_t place, int64_t bytes) const;

  // The first reason stays. Wakes nobody.
  void SetAbort(const absl::Status& why) const;
  // OK, or what SetAbort was given on some rank.
  absl::Status abort_status() const;
  // As in Backend; only as many are kept as SegmentHead has room for.
  void EndShrink(uint64_t key, const absl::Status& why) const;
  absl::Status CheckShrink(uint64_t key) const;

 private:
  template <typename T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(segment_.data() + offset);
  }

  absl::Status AllocatePages(int64_t offset, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mu_);

  const memory::Segment segment_;
  const SegmentLayout layout_;
  const int rank_;
  const std::vector<int> numbers_;
  const std::shared_ptr<transport::MemoryBudget> budget_;
  Mutex mu_;
  // What the budget counts for the pages that this rank has made, until its
  // mapping ends.
  std::vector<transport::MemoryBudget::Reservation> counted_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_HOST_HOST_SEGMENT_H_
