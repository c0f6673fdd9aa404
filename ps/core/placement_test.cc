#include "weft/ps/core/placement.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace weft::ps {
namespace {

// The value that the W-CTR-v1 generator's page gives for mix(1).
TEST(Placement, MixesAsPublished) { EXPECT_EQ(Mix64(1), 0x910a2dec89025cc1u); }

TEST(Placement, SpreadsKeysEvenly) {
  const Placement placement("t", 64, 2);
  std::vector<int> count(64, 0);
  for (uint64_t key = 0; key < 64000; ++key) {
    ++count[placement.PartitionOfKey(key)];
  }
  // 1000 expected, standard deviation 31.
  EXPECT_GT(*std::min_element(count.begin(), count.end()), 850);
  EXPECT_LT(*std::max_element(count.begin(), count.end()), 1150);
}

TEST(Placement, PutsNeighbouringSlicesOnDifferentServers) {
  const Placement placement("model", 1024, 3);
  for (int64_t slice = 0; slice < 2000; ++slice) {
    const int a = placement.PartitionOfSlice(slice);
    const int b = placement.PartitionOfSlice(slice + 1);
    EXPECT_EQ((a + 1) % 1024, b);
  }
}

TEST(Placement, OnePartitionHoldsEverything) {
  const Placement placement("t", 1, 5);
  EXPECT_EQ(placement.PartitionOfKey(~uint64_t{0}), 0);
  EXPECT_EQ(placement.PartitionOfSlice(17), 0);
  EXPECT_EQ(placement.ServerOf(0), 0);
}

TEST(Placement, AnyNumberOfServersHasAllPartitions) {
  for (int servers = 1; servers <= 7; ++servers) {
    const Placement placement("t", 16, servers);
    for (int p = 0; p < 16; ++p) {
      EXPECT_GE(placement.ServerOf(p), 0);
      EXPECT_LT(placement.ServerOf(p), servers);
    }
  }
}

}  // namespace
}  // namespace weft::ps
