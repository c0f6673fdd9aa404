#include "weft/collectives/backends/host/arena_allocator.h"

#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace weft::collectives {
namespace {

TEST(ArenaAllocator, FreedNeighboursBecomeOneHole) {
  ArenaAllocator allocator(4 * 64);
  const int64_t a = allocator.Allocate(64);
  const int64_t b = allocator.Allocate(1);
  const int64_t c = allocator.Allocate(100);
  EXPECT_EQ(allocator.Allocate(0), -1);
  allocator.Free(a, 64);
  allocator.Free(c, 100);
  EXPECT_EQ(allocator.Allocate(256), -1);
  allocator.Free(b, 1);
  EXPECT_EQ(allocator.Allocate(256), 0);
}

TEST(ArenaAllocator, NothingOverlapsAndNothingIsLost) {
  std::mt19937 random(7);
  ArenaAllocator allocator(1 << 16);
  std::map<int64_t, int64_t> taken;
  for (int i = 0; i < 5000; ++i) {
    const int64_t bytes = random() % 3000;
    const int64_t offset = allocator.Allocate(bytes);
    if (offset >= 0) {
      auto next = taken.lower_bound(offset);
      if (next != taken.end()) {
        ASSERT_LE(offset + bytes, next->first);
      }
      if (next != taken.begin()) {
        --next;
        ASSERT_LE(next->first + next->second, offset);
      }
      taken[offset] = bytes;
    }
    if (offset < 0 || random() % 2 == 0) {
      if (taken.empty()) continue;
      auto it = taken.begin();
      std::advance(it, random() % taken.size());
      allocator.Free(it->first, it->second);
      taken.erase(it);
    }
  }
  for (const auto& [offset, bytes] : taken) allocator.Free(offset, bytes);
  EXPECT_EQ(allocator.Allocate(1 << 16), 0);
}

}  // namespace
}  // namespace weft::collectives
