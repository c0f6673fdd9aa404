#include "weft/ps/core/cut.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;

// What a cut promises of its messages and of `order`, against a sort.
void CheckCut(const std::vector<int64_t>& keys, const Placement& placement) {
  const SparseCut cut = CutSparse(keys, placement);
  const std::vector<uint64_t>& all = cut.keys;
  ASSERT_EQ(static_cast<int>(cut.parts.size()), placement.servers());
  int64_t before = 0;
  for (int server = 0; server < placement.servers(); ++server) {
    const SparsePart& part = cut.parts[server];
    const absl::Span<const uint64_t> part_keys = cut.KeysOf(server);
    if (part.size() > 0) {
      ASSERT_EQ(part.begin, before);
      before = part.end;
    }
    int64_t at = 0;
    int previous = -1;
    for (const SparsePart::Group& group : part.groups) {
      ASSERT_EQ(group.begin, at);
      ASSERT_GT(group.end, group.begin);
      ASSERT_GT(group.partition, previous);
      previous = group.partition;
      ASSERT_EQ(placement.ServerOf(group.partition), server);
      for (at = group.begin; at < group.end; ++at) {
        ASSERT_EQ(placement.PartitionOfKey(part_keys[at]), group.partition);
        if (at > group.begin) {
          ASSERT_GT(Mix64(part_keys[at]), Mix64(part_keys[at - 1]));
        }
      }
    }
    ASSERT_EQ(at, part.size());
  }
  const std::set<int64_t> unique(keys.begin(), keys.end());
  ASSERT_EQ(cut.unique_of.empty(), unique.size() == keys.size());
  ASSERT_EQ(all.size(), unique.size());
  ASSERT_EQ(cut.order.size(), keys.size());
  std::vector<bool> seen(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint32_t index = cut.order[i];
    ASSERT_FALSE(seen[index]);
    seen[index] = true;
    ASSERT_EQ(all[cut.UniqueOf(i)], static_cast<uint64_t>(keys[index]));
    if (i > 0 && cut.UniqueOf(i) == cut.UniqueOf(i - 1)) {
      ASSERT_GT(index, cut.order[i - 1]);  // sums are made in the keys' order
    }
  }
}

TEST(CutSparse, AnyKeysAreGroupedByServerAndPartition) {
  std::mt19937_64 random(1);
  for (const int partitions : {1, 2, 16, 1024, 65536}) {
    for (const int servers : {1, 2, 3, 7}) {
      const Placement placement("t", partitions, servers);
      for (const int n : {0, 1, 2, 21, 300, 2047, 2048, 5000, 20000}) {
        std::vector<int64_t> distinct(n), few(n), same(n, 42), two(n);
        for (int i = 0; i < n; ++i) {
          distinct[i] = static_cast<int64_t>(random());
          few[i] = static_cast<int64_t>(random() % 300);
          two[i] = i % 2;
        }
        for (const auto& keys : {distinct, few, same, two}) {
          CheckCut(keys, placement);
          if (::testing::Test::HasFatalFailure()) {
            FAIL() << partitions << " partitions, " << servers << " servers, "
                   << n << " keys";
          }
        }
      }
    }
  }
}

// What a caller may use of a cut that grows.
TEST(CutSparse, GrowsByWholeGroupsToWhichNothingIsAdded) {
  std::mt19937_64 random(2);
  for (const int servers : {1, 3}) {
    for (const bool repeat : {false, true}) {
      const Placement placement("t", 1024, servers);
      std::vector<int64_t> keys(20000);
      for (int64_t& key : keys) {
        key = static_cast<int64_t>(repeat ? random() % 9000 : random());
      }
      const SparseCut whole = CutSparse(keys, placement);
      ASSERT_EQ(whole.sorted, keys.size());
      int steps = 0;
      const SparseCut cut =
          CutSparse(keys, placement, [&](const SparseCut& grown) {
            ++steps;
            int64_t ended = 0;
            for (int s = 0; s < servers; ++s) {
              const SparsePart& part = grown.parts[s];
              ASSERT_LE(part.groups.size(), whole.parts[s].groups.size());
              if (part.groups.empty()) continue;
              ASSERT_EQ(part.begin, whole.parts[s].begin);
              ended = part.end;
              for (size_t g = 0; g < part.groups.size(); ++g) {
                const SparsePart::Group& of_whole = whole.parts[s].groups[g];
                ASSERT_EQ(part.groups[g].partition, of_whole.partition);
                ASSERT_EQ(part.groups[g].begin, of_whole.begin);
                ASSERT_EQ(part.groups[g].end, of_whole.end);
              }
            }
            for (int64_t i = 0; i < ended; ++i) {
              ASSERT_EQ(grown.keys[i], whole.keys[i]);
            }
            for (size_t i = 0; i < grown.sorted; ++i) {
              ASSERT_EQ(grown.order[i], whole.order[i]);
              ASSERT_EQ(grown.UniqueOf(i), whole.UniqueOf(i));
            }
            const size_t last = grown.sorted;
            ASSERT_EQ(ended, last == 0 ? 0 : grown.UniqueOf(last - 1) + 1);
          });
      EXPECT_GT(steps, 3);
      EXPECT_EQ(cut.keys, whole.keys);
      EXPECT_EQ(cut.order, whole.order);
    }
  }
}

// The key whose mixed value is `mixed`.
uint64_t Unmix64(uint64_t mixed) {
  mixed = (mixed ^ (mixed >> 31) ^ (mixed >> 62)) * 0x319642b2d24d8ec3u;
  mixed = (mixed ^ (mixed >> 27) ^ (mixed >> 54)) * 0x96de1b173f119089u;
  return (mixed ^ (mixed >> 30) ^ (mixed >> 60)) - 0x9e3779b97f4a7c15u;
}

// Keys that counting passes cannot tell apart, in the worst order.
TEST(CutSparse, SortsKeysWhosePlacesDifferInTheLowestBitsOnly) {
  for (const int n : {2, 30, 40, 5000}) {
    std::vector<int64_t> keys;
    for (int i = 0; i < n; ++i) {
      const uint64_t mixed = 0xabcdef0123400000u + n - i;
      keys.push_back(static_cast<int64_t>(Unmix64(mixed)));
      ASSERT_EQ(Mix64(keys.back()), mixed);
    }
    for (int i = 0; i < n / 2; ++i) keys.push_back(keys[i]);
    CheckCut(keys, Placement("t", 1024, 1));
    CheckCut(keys, Placement("t", 1024, 3));
  }
}

std::unique_ptr<TableLayout> DenseLayout(int64_t elements, int partitions) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(v1::TableSpec::DENSE);
  spec.set_elements(elements);
  spec.set_partitions(partitions);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.mutable_rule()->mutable_sgd()->set_lr(1.0);
  return *TableLayout::Create(spec);
}

TEST(CutDense, OneServersMessageIsTheVectorInItsOrder) {
  const auto layout = DenseLayout(5 * kMinSliceElements + 3, 16);
  const auto parts = CutDense(*layout, Placement("t", 16, 1));
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_TRUE(parts[0].is_whole);
  EXPECT_EQ(parts[0].elements, 5 * kMinSliceElements + 3);
  std::vector<uint64_t> slices;
  for (const DensePart::Group& group : parts[0].groups) {
    slices.insert(slices.end(), group.slices.begin(), group.slices.end());
  }
  EXPECT_THAT(slices, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(CutDense, IsNotWholeWhereAPartitionHasSeveralSlicesOrAServerOnlySome) {
  const auto layout = DenseLayout(5 * kMinSliceElements + 3, 2);
  EXPECT_FALSE(CutDense(*layout, Placement("t", 2, 1))[0].is_whole);
  const auto wide = DenseLayout(5 * kMinSliceElements + 3, 16);
  int64_t elements = 0;
  std::set<uint64_t> slices;
  for (const DensePart& part : CutDense(*wide, Placement("t", 16, 3))) {
    EXPECT_FALSE(part.is_whole);
    elements += part.elements;
    for (const DensePart::Group& group : part.groups) {
      slices.insert(group.slices.begin(), group.slices.end());
    }
  }
  EXPECT_EQ(elements, 5 * kMinSliceElements + 3);
  EXPECT_EQ(slices.size(), 6u);
}

// The parameters of a ResNet-50: no server has much more than another.
TEST(CutDense, ServersHaveEqualSharesOfAModel) {
  const auto layout = DenseLayout(25'557'032, 1024);
  for (const int servers : {2, 3, 5, 8, 16}) {
    int64_t most = 0;
    for (const DensePart& part :
         CutDense(*layout, Placement("t", 1024, servers))) {
      most = std::max(most, part.elements);
    }
    EXPECT_LE(most * servers, 1.05 * 25'557'032) << servers;
  }
}

TEST(CutDense, AServerWithoutASliceHasAnEmptyPart) {
  const auto layout = DenseLayout(3, 16);
  int empty = 0;
  for (const DensePart& part : CutDense(*layout, Placement("t", 16, 2))) {
    if (!part.groups.empty()) continue;
    EXPECT_EQ(part.elements, 0);
    ++empty;
  }
  EXPECT_EQ(empty, 1);
}

}  // namespace
}  // namespace weft::ps
