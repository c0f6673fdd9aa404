// Three ranks that train, with every order in which they come to the ends of
// their operations, and with deaths, newcomers, pauses and requests to leave at
// every message. What holds is checked by step_commit_model.cc.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "gtest/gtest.h"
#include "weft/train/core/step_commit_model.h"

namespace weft::train {
namespace {

struct Found {
  int64_t states = 0;
  int64_t ends = 0;       // in which nothing can happen but a fault
  int64_t abandoned = 0;  // the most steps in a run that ranks did not take
  int64_t restored = 0;
  int64_t lost_parts = 0;
};

// Every state that can be reached; from each all must come to an end.
Found Explore(const StepCommitModel::Bounds& bounds) {
  Found found;
  absl::flat_hash_set<size_t> known;
  std::vector<StepCommitModel> open = {StepCommitModel(bounds)};
  known.insert(absl::HashOf(open.back().Snapshot()));
  while (!open.empty()) {
    const StepCommitModel at = std::move(open.back());
    open.pop_back();
    ++found.states;
    found.abandoned = std::max(found.abandoned, at.abandoned());
    found.restored = std::max(found.restored, at.restored());
    found.lost_parts = std::max(found.lost_parts, at.lost_parts());
    bool is_end = true;
    for (const StepCommitModel::Event& event : at.Events()) {
      is_end &= event.is_fault();
      StepCommitModel next = at;
      next.Do(event);
      EXPECT_EQ(next.violation(), "") << "\n" << at.Snapshot();
      if (::testing::Test::HasFailure()) return found;
      if (known.insert(absl::HashOf(next.Snapshot())).second) {
        open.push_back(std::move(next));
      }
    }
    if (!is_end) continue;
    ++found.ends;
    StepCommitModel end = at;
    end.Settle();
    EXPECT_EQ(end.violation(), "") << "\n" << at.Snapshot();
    if (::testing::Test::HasFailure()) return found;
  }
  std::cout << found.states << " states, " << found.ends << " ends\n";
  return found;
}

TEST(StepCommitExploration, UndisturbedRanksEndTogether) {
  StepCommitModel::Bounds bounds;
  bounds.epochs = 2;
  const Found found = Explore(bounds);
  EXPECT_GE(found.states, 100);
  EXPECT_EQ(found.abandoned, 0);
}

TEST(StepCommitExploration, DeathAtEveryMessage) {
  StepCommitModel::Bounds bounds;
  bounds.epochs = 2;
  bounds.deaths = 1;
  const Found found = Explore(bounds);
  EXPECT_GE(found.states, 1000);
  EXPECT_EQ(found.abandoned, 2);  // by the two that are left, once each
}

// The second death also while the two that are left share the state.
TEST(StepCommitExploration, TwoDeathsAtEveryMessage) {
  StepCommitModel::Bounds bounds;
  bounds.deaths = 2;
  const Found found = Explore(bounds);
  EXPECT_GE(found.states, 10000);
  EXPECT_GE(found.restored, 1);  // the source has died
}

TEST(StepCommitExploration, RankThatDiesIsStartedAgain) {
  StepCommitModel::Bounds bounds;
  bounds.deaths = 1;
  bounds.comings = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

TEST(StepCommitExploration, NewcomerComesAtAnyTimeAndAnyRankDies) {
  StepCommitModel::Bounds bounds;
  bounds.epochs = 2;
  bounds.late = 1;
  bounds.comings = 1;
  bounds.deaths = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

// The others stop until the group is made.
TEST(StepCommitExploration, NewcomerThatMakesTheOthersStop) {
  StepCommitModel::Bounds bounds;
  bounds.late = 1;
  bounds.comings = 1;
  bounds.deaths = 1;
  bounds.meets_ahead = false;
  EXPECT_GE(Explore(bounds).states, 5000);
}

// They go over to its group while one of them stands still.
TEST(StepCommitExploration, NewcomerComesWhileAnotherStandsStill) {
  StepCommitModel::Bounds bounds;
  bounds.steps_of_epoch = 3;
  bounds.late = 1;
  bounds.comings = 1;
  bounds.pauses = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

// The newcomer does not train what the others train.
TEST(StepCommitExploration, OtherNewcomerIsLeftOut) {
  StepCommitModel::Bounds bounds;
  bounds.late = 1;
  bounds.comings = 1;
  bounds.others = 1;
  bounds.deaths = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

// It goes on to the next operation that needs others, maybe by a step.
TEST(StepCommitExploration, RankThatIsPausedCountsAsGoneAndComesAsNew) {
  StepCommitModel::Bounds bounds;
  bounds.pauses = 1;
  bounds.comings = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

TEST(StepCommitExploration, RanksAreAskedToLeaveAndOneDies) {
  StepCommitModel::Bounds bounds;
  bounds.steps_of_epoch = 1;
  bounds.epochs = 2;
  bounds.leaves = 2;
  bounds.deaths = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

// All within the time: the training stops.
TEST(StepCommitExploration, AllAreAskedToLeave) {
  StepCommitModel::Bounds bounds;
  bounds.leaves = 3;
  bounds.deaths = 1;
  bounds.leave_after = absl::Hours(1);
  EXPECT_GE(Explore(bounds).states, 10000);
}

TEST(StepCommitExploration, RanksDieComeAndArePaused) {
  StepCommitModel::Bounds bounds;
  bounds.late = 1;
  bounds.steps_of_epoch = 1;
  bounds.deaths = 1;
  bounds.comings = 1;
  bounds.pauses = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

TEST(StepCommitExploration, OneMoreThanMaxWaitsOutside) {
  StepCommitModel::Bounds bounds;
  bounds.max = 2;
  bounds.deaths = 1;
  EXPECT_GE(Explore(bounds).states, 1000);
}

// --- With tables. ------------------------------------------------------------

TEST(StepCommitExploration, UndisturbedRanksPushEachStep) {
  StepCommitModel::Bounds bounds;
  bounds.has_tables = true;
  EXPECT_GE(Explore(bounds).states, 100);
}

// The second one may take the step that the first had taken, too.
TEST(StepCommitExploration, TwoDeathsAtEveryMessageAndPush) {
  StepCommitModel::Bounds bounds;
  bounds.has_tables = true;
  bounds.deaths = 2;
  const Found found = Explore(bounds);
  EXPECT_GE(found.states, 10000);
  EXPECT_GE(found.restored, 1);
}

// A primary dies with the rank whose parts it alone had.
TEST(StepCommitExploration, RankAndServerDieTogether) {
  StepCommitModel::Bounds bounds;
  bounds.has_tables = true;
  bounds.deaths = 1;
  bounds.server_deaths = 1;
  bounds.comings = 1;
  const Found found = Explore(bounds);
  EXPECT_GE(found.states, 10000);
  EXPECT_GE(found.lost_parts, 1);
}

TEST(StepCommitExploration, NewcomerHasThePartsOfTheLastStep) {
  StepCommitModel::Bounds bounds;
  bounds.has_tables = true;
  bounds.late = 1;
  bounds.comings = 1;
  bounds.deaths = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

TEST(StepCommitExploration, RankThatIsPausedPushesNothingThatOthersMayRepeat) {
  StepCommitModel::Bounds bounds;
  bounds.has_tables = true;
  bounds.pauses = 1;
  bounds.comings = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

TEST(StepCommitExploration, RankLeavesOnceItsPartsAreStable) {
  StepCommitModel::Bounds bounds;
  bounds.has_tables = true;
  bounds.leaves = 1;
  bounds.deaths = 1;
  bounds.server_deaths = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

// --- Bounds of a group. ------------------------------------------------------

TEST(StepCommitExploration, BelowMinTheyWait) {
  StepCommitModel::Bounds bounds;
  bounds.min = 2;
  bounds.steps_of_epoch = 1;
  bounds.deaths = 1;
  bounds.comings = 1;
  bounds.leaves = 1;
  EXPECT_GE(Explore(bounds).states, 10000);
}

}  // namespace
}  // namespace weft::train
