#include "weft/ps/core/round_gate.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Gate = RoundGate<std::string>;

TEST(RoundGate, ClosesWhenEveryShardHasItsPartAndInTheirOrder) {
  Gate gate(3);
  EXPECT_EQ(gate.Give(2, 2, 0, "c"), Gate::Answer::kKept);
  EXPECT_EQ(gate.Give(0, 0, 0, "a"), Gate::Answer::kKept);
  EXPECT_THAT(gate.Close(), IsEmpty());
  EXPECT_THAT(gate.Missing(), ElementsAre(1));
  EXPECT_EQ(gate.Give(1, 1, 0, "b"), Gate::Answer::kKept);
  EXPECT_THAT(gate.Close(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(gate.open(), 1);
  EXPECT_THAT(gate.Close(), IsEmpty());
}

TEST(RoundGate, KeepsTheFirstOfTwoEqualParts) {
  Gate gate(2);
  gate.Give(0, 0, 0, "first");
  EXPECT_EQ(gate.Give(0, 0, 0, "again"), Gate::Answer::kDuplicate);
  gate.Give(1, 1, 0, "b");
  EXPECT_THAT(gate.Close(), ElementsAre("first", "b"));
  EXPECT_EQ(gate.Give(0, 0, 0, "late"), Gate::Answer::kApplied);
}

TEST(RoundGate, LetsAWorkerRunAheadByABound) {
  Gate gate(2);
  for (int round = 0; round <= Gate::kLookahead; ++round) {
    EXPECT_EQ(gate.Give(0, 0, round, "x"), Gate::Answer::kKept);
  }
  EXPECT_EQ(gate.Give(0, 0, Gate::kLookahead + 1, "x"), Gate::Answer::kTooFar);
}

TEST(RoundGate, RoundDoesNotWaitForTheDead) {
  Gate gate(3);
  gate.Give(1, 1, 0, "last words");
  gate.Give(0, 0, 0, "a");
  gate.DeclareDead(1);
  EXPECT_THAT(gate.Close(), IsEmpty());  // rank 2 lives and is missing
  gate.DeclareDead(2);
  EXPECT_THAT(gate.Close(), ElementsAre("a", "last words"));
  EXPECT_EQ(gate.Give(1, 1, 1, "from the grave"), Gate::Answer::kUnknown);
  EXPECT_EQ(gate.Give(0, 0, 1, "a"), Gate::Answer::kKept);
  EXPECT_THAT(gate.Close(), ElementsAre("a"));
}

TEST(RoundGate, ClosesNoRoundWithoutWorkers) {
  Gate gate(1);
  gate.DeclareDead(0);
  EXPECT_THAT(gate.Close(), IsEmpty());
  gate.Admit(0);
  gate.Give(0, 0, 0, "back");
  EXPECT_THAT(gate.Close(), ElementsAre("back"));
}

TEST(RoundGate, AppliedAndMissedPartsAreDistinguished) {
  Gate gate(2);
  gate.Give(0, 0, 0, "a");
  gate.Give(1, 1, 0, "b");
  gate.Close();
  gate.DeclareDead(1);
  gate.Give(0, 0, 1, "a");
  gate.Close();
  EXPECT_EQ(gate.Give(1, 1, 0, "resent"), Gate::Answer::kApplied);
  EXPECT_EQ(gate.Give(1, 1, 1, "too late"), Gate::Answer::kMissed);
  gate.Admit(1);
  EXPECT_THAT(gate.Missing(), ElementsAre(0, 1));
  EXPECT_EQ(gate.Give(1, 1, 2, "b"), Gate::Answer::kKept);
}

TEST(RoundGate, RefusesARankThatIsNotOneOfTheWorkers) {
  Gate gate(2);
  EXPECT_EQ(gate.Give(2, 2, 0, "x"), Gate::Answer::kUnknown);
  EXPECT_EQ(gate.Give(-1, -1, 0, "x"), Gate::Answer::kUnknown);
}

TEST(RoundGate, WaitsForAnotherOwnerOfAShardWhoseOwnerDied) {
  Gate gate(2, Orphans::kWait);
  gate.Give(0, 0, 0, "a");
  gate.DeclareDead(1);
  EXPECT_THAT(gate.Close(), IsEmpty());
  EXPECT_THAT(gate.Missing(), ElementsAre(1));
  EXPECT_LT(gate.OwnerOf(1), 0);
  EXPECT_EQ(gate.Give(1, 1, 0, "from the dead"), Gate::Answer::kUnknown);
  EXPECT_EQ(gate.Give(1, 0, 0, "b"), Gate::Answer::kKept);
  EXPECT_EQ(gate.OwnerOf(1), 0);
  EXPECT_THAT(gate.Close(), ElementsAre("a", "b"));
}

TEST(RoundGate, KeepsTheFormerOwnersPartOfTheOpenRoundAndDropsLaterOnes) {
  for (const bool is_dead : {false, true}) {
    Gate gate(2, Orphans::kWait);
    gate.Give(1, 1, 0, "b0");
    gate.Give(1, 1, 1, "b1");
    if (is_dead) gate.DeclareDead(1);
    EXPECT_EQ(gate.Give(1, 5, 0, "again", /*take_over=*/true),
              Gate::Answer::kInherited);
    gate.Give(0, 0, 0, "a0");
    EXPECT_THAT(gate.Close(), ElementsAre("a0", "b0"));
    gate.Give(0, 0, 1, "a1");
    EXPECT_THAT(gate.Close(), IsEmpty());
    EXPECT_EQ(gate.Give(1, 1, 1, "too late"),
              is_dead ? Gate::Answer::kUnknown : Gate::Answer::kNotOwner);
    EXPECT_EQ(gate.Give(1, 5, 1, "c1"), Gate::Answer::kKept);
    EXPECT_THAT(gate.Close(), ElementsAre("a1", "c1"));
  }
}

TEST(RoundGate, RefusesAnotherRankUnlessItTakesTheShardOver) {
  Gate gate(2);
  gate.Give(1, 1, 0, "b");
  EXPECT_EQ(gate.Give(1, 0, 0, "a"), Gate::Answer::kNotOwner);
  EXPECT_EQ(gate.OwnerOf(1), 1);
}

TEST(RoundGate, ARankMayServeSeveralShardsAndOneThatIsNotItsNumber) {
  Gate gate(3);
  for (int shard = 2; shard >= 0; --shard) {
    EXPECT_EQ(gate.Give(shard, 7, 0, std::to_string(shard)),
              Gate::Answer::kKept);
  }
  EXPECT_THAT(gate.Close(), ElementsAre("0", "1", "2"));
}

// Owners die, or are taken for dead, at any moment, and the next live rank
// serves their shards; some of it is sent twice. Each round still has each
// shard's part once.
TEST(RoundGate, OwnersThatChangeAtRandomLoseAndDoubleNothing) {
  constexpr int kShards = 4;
  constexpr int kRounds = 8;
  int changes = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Gate gate(kShards, Orphans::kWait);
    std::vector<int> owner = {0, 1, 2, 3};
    int next_rank = kShards;
    for (int closed = 0, given = 0; closed < kRounds; ++given) {
      ASSERT_LT(given, 10000) << "seed " << seed;
      const int shard = random() % kShards;
      if (random() % 8 == 0) {
        const int former = owner[shard];
        owner[shard] = next_rank++;
        if (random() % 2 == 0) gate.DeclareDead(former);
        ++changes;
      }
      const std::string part =
          std::to_string(closed) + "." + std::to_string(shard);
      const Gate::Answer answer =
          gate.Give(shard, owner[shard], closed, part, /*take_over=*/true);
      ASSERT_THAT(answer, AnyOf(Gate::Answer::kKept, Gate::Answer::kDuplicate,
                                Gate::Answer::kInherited));
      for (auto parts = gate.Close(); !parts.empty(); parts = gate.Close()) {
        const std::string r = std::to_string(closed);
        ASSERT_THAT(parts, ElementsAre(r + ".0", r + ".1", r + ".2", r + ".3"))
            << "seed " << seed;
        ++closed;
      }
    }
  }
  EXPECT_GT(changes, 300);
}

// Whatever the order of arrival, with parts given twice: each round has each
// shard's part once, in their order.
TEST(RoundGate, ArrivalOrderDoesNotMatter) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    constexpr int kWorkers = 3;
    constexpr int kRounds = 6;
    Gate gate(kWorkers);
    std::vector<int> at(kWorkers, 0);  // the round each worker is in
    int closed = 0;
    for (int given = 0; closed < kRounds; ++given) {
      ASSERT_LT(given, 10000) << "seed " << seed;
      const int rank = random() % kWorkers;
      const int round =
          random() % 4 == 0 ? random() % (at[rank] + 1) : at[rank];
      const std::string part =
          std::to_string(round) + "." + std::to_string(rank);
      if (gate.Give(rank, rank, round, part) == Gate::Answer::kKept) {
        at[rank] = std::max(at[rank], round + 1);
      }
      for (auto parts = gate.Close(); !parts.empty(); parts = gate.Close()) {
        const std::string r = std::to_string(closed);
        ASSERT_THAT(parts, ElementsAre(r + ".0", r + ".1", r + ".2"))
            << "seed " << seed;
        ++closed;
      }
    }
  }
}

}  // namespace
}  // namespace weft::ps
