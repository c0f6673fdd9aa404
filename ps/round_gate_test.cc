#include "weft/ps/round_gate.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Gate = RoundGate<std::string>;

TEST(RoundGate, ClosesWhenEveryWorkerGaveItsPartAndInRankOrder) {
  Gate gate(3);
  EXPECT_EQ(gate.Give(2, 0, "c"), Gate::Answer::kKept);
  EXPECT_EQ(gate.Give(0, 0, "a"), Gate::Answer::kKept);
  EXPECT_THAT(gate.Close(), IsEmpty());
  EXPECT_THAT(gate.Missing(), ElementsAre(1));
  EXPECT_EQ(gate.Give(1, 0, "b"), Gate::Answer::kKept);
  EXPECT_THAT(gate.Close(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(gate.open(), 1);
  EXPECT_THAT(gate.Close(), IsEmpty());
}

TEST(RoundGate, KeepsTheFirstOfTwoEqualParts) {
  Gate gate(2);
  gate.Give(0, 0, "first");
  EXPECT_EQ(gate.Give(0, 0, "again"), Gate::Answer::kDuplicate);
  gate.Give(1, 0, "b");
  EXPECT_THAT(gate.Close(), ElementsAre("first", "b"));
  EXPECT_EQ(gate.Give(0, 0, "late"), Gate::Answer::kApplied);
}

TEST(RoundGate, LetsAWorkerRunAheadByABound) {
  Gate gate(2);
  for (int round = 0; round <= Gate::kLookahead; ++round) {
    EXPECT_EQ(gate.Give(0, round, "x"), Gate::Answer::kKept);
  }
  EXPECT_EQ(gate.Give(0, Gate::kLookahead + 1, "x"), Gate::Answer::kTooFar);
}

TEST(RoundGate, RoundDoesNotWaitForTheDead) {
  Gate gate(3);
  gate.Give(1, 0, "last words");
  gate.Give(0, 0, "a");
  gate.DeclareDead(1);
  EXPECT_THAT(gate.Close(), IsEmpty());  // rank 2 lives and is missing
  gate.DeclareDead(2);
  EXPECT_THAT(gate.Close(), ElementsAre("a", "last words"));
  EXPECT_EQ(gate.Give(1, 1, "from the grave"), Gate::Answer::kUnknown);
  EXPECT_EQ(gate.Give(0, 1, "a"), Gate::Answer::kKept);
  EXPECT_THAT(gate.Close(), ElementsAre("a"));
}

TEST(RoundGate, ClosesNoRoundWithoutWorkers) {
  Gate gate(1);
  gate.DeclareDead(0);
  EXPECT_THAT(gate.Close(), IsEmpty());
  gate.Admit(0);
  gate.Give(0, 0, "back");
  EXPECT_THAT(gate.Close(), ElementsAre("back"));
}

TEST(RoundGate, TellsAnAppliedPartFromAMissedOne) {
  Gate gate(2);
  gate.Give(0, 0, "a");
  gate.Give(1, 0, "b");
  gate.Close();
  gate.DeclareDead(1);
  gate.Give(0, 1, "a");
  gate.Close();
  EXPECT_EQ(gate.Give(1, 0, "resent"), Gate::Answer::kApplied);
  EXPECT_EQ(gate.Give(1, 1, "too late"), Gate::Answer::kMissed);
  gate.Admit(1);
  EXPECT_THAT(gate.Missing(), ElementsAre(0, 1));
  EXPECT_EQ(gate.Give(1, 2, "b"), Gate::Answer::kKept);
}

TEST(RoundGate, RefusesARankThatIsNotOneOfTheWorkers) {
  Gate gate(2);
  EXPECT_EQ(gate.Give(2, 0, "x"), Gate::Answer::kUnknown);
  EXPECT_EQ(gate.Give(-1, 0, "x"), Gate::Answer::kUnknown);
}

// Whatever the order of arrival, with parts given twice: each round has each
// worker's part once, in rank order.
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
      if (gate.Give(rank, round, part) == Gate::Answer::kKept) {
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
