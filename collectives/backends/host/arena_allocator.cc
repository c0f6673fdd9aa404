#include "weft/collectives/backends/host/arena_allocator.h"

#include <iterator>

namespace weft::collectives {

int64_t ArenaAllocator::Allocate(int64_t bytes) {
  const int64_t wanted = Rounded(bytes);
  MutexLock lock(mu_);
  for (auto it = holes_.begin(); it != holes_.end(); ++it) {
    const auto [offset, size] = *it;
    if (size < wanted) continue;
    holes_.erase(it);
    if (size > wanted) holes_[offset + wanted] = size - wanted;
    return offset;
  }
  return -1;
}

void ArenaAllocator::Free(int64_t offset, int64_t bytes) {
  MutexLock lock(mu_);
  auto it = holes_.emplace(offset, Rounded(bytes)).first;
  if (auto next = std::next(it);
      next != holes_.end() && offset + it->second == next->first) {
    it->second += next->second;
    holes_.erase(next);
  }
  if (it == holes_.begin()) return;
  if (auto previous = std::prev(it);
      previous->first + previous->second == offset) {
    previous->second += it->second;
    holes_.erase(it);
  }
}

int64_t ArenaAllocator::free_bytes() const {
  MutexLock lock(mu_);
  int64_t sum = 0;
  for (const auto& [offset, size] : holes_) sum += size;
  return sum;
}

}  // namespace weft::collectives
