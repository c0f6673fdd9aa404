#include "weft/collectives/core/called_operations.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

Announcement Called(uint64_t sequence, const std::string& text) {
  return {sequence, std::hash<std::string>()(text), false, text};
}

Announcement RefusedCall(uint64_t sequence, const std::string& why) {
  return {sequence, 0, true, why};
}

TEST(CalledOperations, RanksThatCallTheSameAgree) {
  CalledOperations called(3, 1);
  EXPECT_EQ(called.Last(1), nullptr);
  EXPECT_THAT(called.Add(0, Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.Add(1, Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.Add(2, Called(20, "barrier")), IsOk());
  EXPECT_EQ(called.DescribeRanksBefore(20, 1), "");
  ASSERT_NE(called.Last(1), nullptr);
  EXPECT_EQ(called.Last(1)->sequence, 20u);
}

TEST(CalledOperations, MismatchNamesTheLowerRankFirst) {
  CalledOperations called(3, 1);
  EXPECT_THAT(called.Add(1, Called(20, "broadcast")), IsOk());
  const absl::Status after = called.Add(2, Called(20, "barrier"));
  EXPECT_THAT(after, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(
      std::string(after.message()),
      AllOf(HasSubstr("rank 1 called broadcast"), HasSubstr("rank 2 called")));
  EXPECT_THAT(called.Add(0, Called(21, "barrier")), IsOk());
  const absl::Status before = called.Add(1, Called(21, "gather"));
  EXPECT_THAT(std::string(before.message()),
              AllOf(HasSubstr("rank 0 called barrier"),
                    HasSubstr("rank 1 called gather")));
}

TEST(CalledOperations, TwoOthersThatDifferAreFoundBeforeThisRankCalls) {
  CalledOperations called(3, 0);
  EXPECT_THAT(called.Add(1, Called(20, "gather")), IsOk());
  EXPECT_THAT(called.Add(2, Called(20, "scatter")),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(CalledOperations, RefusalIsNoMismatchAndNamesItsRank) {
  CalledOperations called(2, 0);
  EXPECT_THAT(called.Add(0, Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.CheckRefusals(20), IsOk());
  EXPECT_THAT(called.Add(1, RefusedCall(20, "no memory")), IsOk());
  const absl::Status refused = called.CheckRefusals(20);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("rank 1"), HasSubstr("no memory")));
  EXPECT_THAT(called.CheckRefusals(21), IsOk());
  EXPECT_THAT(called.CheckRefusals(19), IsOk());
}

TEST(CalledOperations, RefusalDoesNotHideADifferenceBetweenOthers) {
  CalledOperations called(3, 0);
  EXPECT_THAT(called.Add(1, RefusedCall(20, "no memory")), IsOk());
  EXPECT_THAT(called.Add(0, Called(20, "gather")), IsOk());
  EXPECT_THAT(
      called.Add(2, Called(20, "scatter")),
      StatusIs(absl::StatusCode::kFailedPrecondition, "rank 0 called gather"));
}

TEST(CalledOperations, RanksThatAreBehindAreDescribed) {
  CalledOperations called(4, 0);
  EXPECT_THAT(called.Add(1, Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.Add(3, Called(21, "gather")), IsOk());
  EXPECT_EQ(called.DescribeRanksBefore(21, 0),
            "rank 1 has not called it and last called barrier; rank 2 has not "
            "called it and has called nothing yet");
  EXPECT_EQ(called.DescribeRanksBefore(21, 0, {"a", "trainer1", "c", "d"}),
            "rank 1 (trainer1) has not called it and last called barrier; rank "
            "2 (c) has not called it and has called nothing yet");
}

TEST(CalledOperations, HoweverFarARankIsBehindItsCallsAreCompared) {
  constexpr uint64_t kAhead = 10'000;
  for (const int late : {0, 1}) {  // as another sees it, and as it sees itself
    CalledOperations called(2, 1);
    for (uint64_t i = 0; i < kAhead; ++i) {
      const bool is_refused = i == 5000;
      const std::string text = absl::StrCat("broadcast #", i);
      EXPECT_THAT(called.Add(1 - late, is_refused ? RefusedCall(i, "no memory")
                                                  : Called(i, text)),
                  IsOk());
    }
    for (uint64_t i = 0; i < 5000; ++i) {
      ASSERT_THAT(called.Add(late, Called(i, absl::StrCat("broadcast #", i))),
                  IsOk());
    }
    EXPECT_THAT(called.CheckRefusals(5000),
                StatusIs(absl::StatusCode::kAborted, "no memory"));
    EXPECT_THAT(called.Add(late, Called(5000, "reduce")), IsOk());
    EXPECT_THAT(called.Add(late, Called(5001, "reduce")),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "called broadcast #5001"));
  }
}

TEST(CalledOperations, WhatAllRanksHavePassedIsForgotten) {
  CalledOperations called(3, 0);
  for (uint64_t i = 0; i < 1000; ++i) {
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(called.Add(rank, Called(i, "barrier")), IsOk());
    }
    EXPECT_LE(called.kept(), 2u);
  }
  // One that comes late, of a rank that has said more since.
  EXPECT_THAT(called.Add(1, Called(7, "barrier")), IsOk());
  EXPECT_EQ(called.Last(1)->sequence, 999u);
  EXPECT_LE(called.kept(), 2u);
}

TEST(CalledOperations, RankThatHasEndedIsNotWaitedFor) {
  CalledOperations called(3, 0);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_THAT(called.Add(0, Called(i, "broadcast")), IsOk());
    EXPECT_THAT(called.Add(1, Called(i, "broadcast")), IsOk());
  }
  EXPECT_EQ(called.kept(), 100u);
  called.End(2);
  EXPECT_EQ(called.kept(), 1u);
  EXPECT_EQ(called.DescribeRanksBefore(99, 0),
            "rank 2 has not called it and has called nothing yet");
}

TEST(CalledOperations, WhatOneRankMayBeAheadIsBounded) {
  CalledOperations called(3, 0);
  const std::string text(4096, 'x');
  absl::Status status;
  uint64_t sequence = 0;
  while (status.ok() && sequence < 100'000) {
    status = called.Add(1, RefusedCall(sequence++, text));
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, "rank 1"));
  EXPECT_LT(sequence * 4096, 40u << 20);
  // Others are not on its account, and what this rank has called is free again.
  EXPECT_THAT(called.Add(2, Called(sequence, "barrier")), IsOk());
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_THAT(called.Add(0, Called(i, "barrier")), IsOk());
  }
  EXPECT_THAT(called.Add(1, RefusedCall(sequence + 1, text)), IsOk());
}

TEST(CalledOperations, RankThatHidesWhatItCallsTakesBoundedMemory) {
  CalledOperations called(2, 0);
  for (uint64_t i = 0; i < CalledOperations::kMostBehind + 10; ++i) {
    ASSERT_THAT(called.Add(0, Called(i, "broadcast")), IsOk());
  }
  EXPECT_EQ(called.kept(), CalledOperations::kMostBehind);
  EXPECT_THAT(called.Add(1, Called(9, "reduce")), IsOk()) << "forgotten";
  EXPECT_THAT(called.Add(1, Called(10, "reduce")),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Ranks call in any interleaving, and one calls another operation once: it is
// found by the time all have called that one, and never before.
TEST(CalledOperations, OneDifferenceIsFoundInAnyInterleaving) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const int size = 2 + static_cast<int>(random() % 4);
    const int self = static_cast<int>(random() % (size + 1)) - 1;
    CalledOperations called(size, self);
    const int liar = static_cast<int>(random() % size);
    const uint64_t at = random() % 30;
    std::vector<uint64_t> next(size);
    absl::Status found;
    while (found.ok()) {
      const int rank = static_cast<int>(random() % size);
      const uint64_t sequence = next[rank]++;
      const bool differs = rank == liar && sequence == at;
      found = called.Add(
          rank, Called(sequence, absl::StrCat(differs ? "gather" : "reduce",
                                              " #", sequence)));
      const bool is_known =
          next[liar] > at &&
          std::any_of(next.begin(), next.end(), [&](const uint64_t& n) {
            return &n != &next[liar] && n > at;
          });
      ASSERT_EQ(!found.ok(), is_known) << "seed " << seed;
    }
    EXPECT_THAT(found,
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         absl::StrCat("rank ", liar, " called gather #", at)));
  }
}

}  // namespace
}  // namespace weft::collectives
