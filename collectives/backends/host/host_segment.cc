#include "weft/collectives/backends/host/host_segment.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"

namespace weft::collectives {

std::vector<RankControl*> HostSegment::Controls() const {
  std::vector<RankControl*> controls;
  for (int r = 0; r < size(); ++r) controls.push_back(&ControlOf(r));
  return controls;
}

absl::Status HostSegment::AllocatePages(int64_t offset, int64_t bytes) {
  transport::MemoryBudget::Reservation counted;
  if (budget_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(counted, budget_->Reserve(bytes));
  }
  WEFT_RETURN_IF_ERROR(segment_.Allocate(offset, bytes));
  MutexLock lock(mu_);
  counted_.push_back(std::move(counted));
  return absl::OkStatus();
}

uint64_t HostSegment::PlaceOf(const std::byte* memory, int64_t bytes) const {
  const std::less_equal<const std::byte*> not_after;
  const std::byte* const begin = own_arena();
  if (!not_after(begin, memory) ||
      !not_after(memory + bytes, begin + arena_bytes())) {
    return 0;
  }
  return 1 + (memory - segment_.data());
}

std::byte* HostSegment::Find(int rank, uint64_t place, int64_t bytes) const {
  const uint64_t begin = layout_.ArenaAt(rank);
  const uint64_t size = layout_.arena_bytes();
  if (place <= begin || bytes < 0) return nullptr;
  const uint64_t offset = place - 1 - begin;
  if (offset > size || static_cast<uint64_t>(bytes) > size - offset) {
    return nullptr;
  }
  return At<std::byte>(static_cast<int64_t>(place - 1));
}

void HostSegment::SetAbort(const absl::Status& why) const {
  head().abort.Write(why);
}

absl::Status HostSegment::abort_status() const { return head().abort.Read(); }

void HostSegment::EndShrink(uint64_t key, const absl::Status& why) const {
  for (SegmentHead::Shrink& one : head().ended_shrinks) {
    uint64_t found = 0;
    if (one.key.compare_exchange_strong(found, key) || found == key) {
      one.why.Write(why);
      return;
    }
  }
}

absl::Status HostSegment::CheckShrink(uint64_t key) const {
  for (const SegmentHead::Shrink& one : head().ended_shrinks) {
    if (one.key.load(std::memory_order_acquire) == key) return one.why.Read();
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
