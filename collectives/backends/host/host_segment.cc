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
  std::shared_ptr<const void> counted;
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
  SegmentHead& shared = head();
  uint32_t expected = 0;
  if (!shared.abort_state.compare_exchange_strong(expected, 1)) return;
  const absl::string_view text = why.message();
  shared.abort_code = static_cast<int32_t>(why.code());
  shared.abort_bytes =
      static_cast<uint32_t>(std::min(text.size(), sizeof shared.abort_text));
  memcpy(shared.abort_text, text.data(), shared.abort_bytes);
  shared.abort_state.store(2, std::memory_order_release);
}

absl::Status HostSegment::abort_status() const {
  const SegmentHead& shared = head();
  if (shared.abort_state.load(std::memory_order_acquire) != 2) {
    return absl::OkStatus();
  }
  const int32_t code = shared.abort_code;
  const uint32_t bytes =
      std::min<uint32_t>(shared.abort_bytes, sizeof shared.abort_text);
  const bool is_code = code > 0 && code <= 16;
  return absl::Status(is_code ? static_cast<absl::StatusCode>(code)
                              : absl::StatusCode::kInternal,
                      absl::string_view(shared.abort_text, bytes));
}

}  // namespace weft::collectives
