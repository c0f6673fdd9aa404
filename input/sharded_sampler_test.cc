#include "weft/input/sharded_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/input/permutation.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::input {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::StatusIs;
using Uneven = ShardedSampler::Uneven;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ShardedSampler Sampler(int64_t size, int shard, int shards,
                       Uneven uneven = Uneven::kPad, uint64_t seed = 7) {
  ShardedSampler::Options options;
  options.size = size;
  options.shard = shard;
  options.shards = shards;
  options.seed = seed;
  options.uneven = uneven;
  return *ShardedSampler::Create(options);
}

std::vector<int64_t> Drain(ShardedSampler& sampler) {
  std::vector<int64_t> indices;
  while (const auto index = sampler.Next()) indices.push_back(*index);
  return indices;
}

std::vector<int64_t> Counted(int64_t size) {
  std::vector<int64_t> all(size);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int64_t> Sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(Permutation, ReachesEachIndexOnce) {
  for (int64_t size = 0; size <= 70; ++size) {
    for (const uint64_t seed : {0, 1, 2}) {
      const Permutation order(size, seed);
      std::vector<int64_t> seen;
      for (int64_t i = 0; i < size; ++i) seen.push_back(order(i));
      EXPECT_EQ(Sorted(seen), Counted(size)) << "seed " << seed;
    }
  }
}

// Each of 12 places should hold each of 12 values equally often. Chi-squared
// with 11 * 11 degrees of freedom has mean 121 and deviation 15.6.
TEST(Permutation, SpreadsEvenlyOverSeeds) {
  constexpr int kSize = 12, kSeeds = 12000;
  std::vector<double> counts(kSize * kSize);
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Permutation order(kSize, seed);
    for (int i = 0; i < kSize; ++i) ++counts[i * kSize + order(i)];
  }
  const double expected = static_cast<double>(kSeeds) / kSize;
  double chi_squared = 0;
  for (const double count : counts) {
    chi_squared += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_squared, 121 + 5 * 15.6);
}

TEST(Permutation, StandsHugeSizes) {
  const int64_t size = int64_t{1} << 62;
  const Permutation order(size, 1);
  EXPECT_NE(order(0), order(size - 1));
  EXPECT_LT(order(size - 1), size);
}

TEST(ShardedSampler, ShardsAreEqualAndCoverAllIndices) {
  for (const int64_t size : {0, 1, 2, 7, 24, 25, 100}) {
    for (const int shards : {1, 2, 3, 8, 30}) {
      for (const Uneven uneven : {Uneven::kPad, Uneven::kDrop}) {
        std::vector<int64_t> all;
        int64_t share = -1;
        for (int shard = 0; shard < shards; ++shard) {
          ShardedSampler sampler = Sampler(size, shard, shards, uneven);
          const int64_t promised = sampler.remaining();
          const std::vector<int64_t> mine = Drain(sampler);
          EXPECT_EQ(promised, static_cast<int64_t>(mine.size()));
          if (shard == 0) share = promised;
          EXPECT_EQ(promised, share);
          all.insert(all.end(), mine.begin(), mine.end());
        }
        all = Sorted(all);
        const auto end = std::unique(all.begin(), all.end());
        if (uneven == Uneven::kPad) {
          EXPECT_EQ(std::vector<int64_t>(all.begin(), end), Counted(size));
          EXPECT_LT(static_cast<int64_t>(all.size()), size + shards);
        } else {
          EXPECT_EQ(end, all.end());  // none twice
          EXPECT_EQ(static_cast<int64_t>(all.size()), size / shards * shards);
        }
      }
    }
  }
}

TEST(ShardedSampler, EachEpochHasItsOwnOrderAndRepeatsIt) {
  ShardedSampler sampler = Sampler(100, 0, 2);
  const std::vector<int64_t> zero = Drain(sampler);
  sampler.SetEpoch(1);
  const std::vector<int64_t> one = Drain(sampler);
  sampler.SetEpoch(0);
  EXPECT_EQ(Drain(sampler), zero);
  EXPECT_NE(zero, one);
  ShardedSampler other = Sampler(100, 0, 2, Uneven::kPad, /*seed=*/8);
  EXPECT_NE(Drain(other), zero);
}

TEST(ShardedSampler, WithoutShuffleShardsTakeTurns) {
  ShardedSampler::Options options;
  options.size = 5;
  options.shard = 1;
  options.shards = 2;
  options.shuffle = false;
  ShardedSampler sampler = *ShardedSampler::Create(options);
  EXPECT_EQ(Drain(sampler), std::vector<int64_t>({1, 3, 0}));
}

TEST(ShardedSampler, ContinuesInTheMiddleOfAnEpoch) {
  for (const int64_t drawn : {0, 1, 17, 34}) {
    ShardedSampler sampler = Sampler(100, 2, 3);
    sampler.SetEpoch(4);
    for (int64_t i = 0; i < drawn; ++i) sampler.Next();
    const auto state = ShardedSampler::State::Parse(sampler.state().ToString());
    WEFT_ASSERT_OK(state);
    ShardedSampler resumed = Sampler(100, 2, 3);
    WEFT_ASSERT_OK(resumed.LoadState(*state));
    EXPECT_EQ(Drain(resumed), Drain(sampler)) << drawn;
    resumed.SetEpoch(5);
    sampler.SetEpoch(5);
    EXPECT_EQ(Drain(resumed), Drain(sampler)) << drawn;
  }
}

TEST(ShardedSampler, AnotherNumberOfShardsContinuesWithTheUnusedIndices) {
  std::vector<int64_t> all;
  ShardedSampler::State state;
  for (int shard = 0; shard < 4; ++shard) {
    ShardedSampler sampler = Sampler(101, shard, 4);
    for (int i = 0; i < 9; ++i) all.push_back(*sampler.Next());
    state = sampler.state();
  }
  EXPECT_EQ(state.used, 36);
  for (int shard = 0; shard < 5; ++shard) {
    ShardedSampler sampler = Sampler(101, shard, 5);
    WEFT_ASSERT_OK(sampler.LoadState(state));
    for (const int64_t index : Drain(sampler)) all.push_back(index);
  }
  EXPECT_EQ(Sorted(all), Counted(101));  // 65 are left: 13 for each of five
}

// Six shards, two draws each in a step. `members` says how many ranks there are
// at each step: a shard goes to another one by its State.
std::vector<std::vector<int64_t>> UsedInSteps(const std::vector<int>& members) {
  constexpr int kShards = 6;
  std::vector<ShardedSampler::State> states(kShards,
                                            Sampler(100, 0, 6).state());
  std::vector<std::vector<int64_t>> steps;
  for (const int count : members) {
    std::vector<std::vector<int64_t>> by_shard(kShards);
    for (int member = 0; member < count; ++member) {
      for (const int shard : ShardsOf(member, count, kShards)) {
        ShardedSampler sampler = Sampler(100, shard, kShards);
        WEFT_EXPECT_OK(sampler.LoadState(states[shard]));
        while (by_shard[shard].size() < 2) {
          const auto index = sampler.Next();
          if (!index.has_value()) break;
          by_shard[shard].push_back(*index);
        }
        states[shard] = sampler.state();
      }
    }
    steps.emplace_back();
    for (const auto& used : by_shard) {
      steps.back().insert(steps.back().end(), used.begin(), used.end());
    }
  }
  return steps;
}

TEST(ShardedSampler, OrderDoesNotDependOnTheOwnerOfAShard) {
  // 100 indices are 17 draws of each shard: the last step has one.
  const auto wanted = UsedInSteps({1, 1, 1, 1, 1, 1, 1, 1, 1});
  EXPECT_EQ(UsedInSteps({6, 6, 6, 6, 6, 6, 6, 6, 6}), wanted);
  EXPECT_EQ(UsedInSteps({3, 3, 2, 1, 4, 5, 6, 2, 3}), wanted);
}

TEST(ShardsOf, GivesEachShardToOneMember) {
  for (int members = 1; members <= 5; ++members) {
    std::vector<int64_t> all;
    for (int member = 0; member < members; ++member) {
      for (const int shard : ShardsOf(member, members, 8)) {
        all.push_back(shard);
      }
    }
    EXPECT_EQ(Sorted(all), Counted(8));
  }
  EXPECT_TRUE(ShardsOf(2, 3, 2).empty());
}

TEST(ShardedSampler, RefusesAStateOfOtherData) {
  ShardedSampler sampler = Sampler(100, 0, 1);
  ShardedSampler::State state = sampler.state();
  state.size = 99;
  EXPECT_THAT(sampler.LoadState(state), StatusIs(kInvalid, "size 99"));
  state = sampler.state();
  state.used = 101;
  EXPECT_THAT(sampler.LoadState(state), StatusIs(kInvalid, "101 of 100"));
  EXPECT_THAT(ShardedSampler::State::Parse("epoch=1 used=x"),
              StatusIs(kInvalid, "epoch=1 used=x"));
}

TEST(ShardedSampler, RefusesAShardThatIsNotThere) {
  ShardedSampler::Options options;
  options.shard = 2;
  options.shards = 2;
  EXPECT_THAT(ShardedSampler::Create(options),
              StatusIs(kInvalid, "shard is 2, allowed is [0, 2)"));
}

}  // namespace
}  // namespace weft::input
