#include "weft/collectives/backends/host/phases.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// The controls of ranks, as they are in a segment: zeros.
class PhasesTest : public ::testing::Test {
 protected:
  Phases Rank(int rank, int ranks, int spin_rounds = 0) {
    while (static_cast<int>(controls_.size()) < ranks) {
      controls_.push_back(std::make_unique<RankControl>());
      memset(static_cast<void*>(controls_.back().get()), 0,
             sizeof(RankControl));
    }
    std::vector<RankControl*> controls;
    for (int r = 0; r < ranks; ++r) controls.push_back(controls_[r].get());
    return Phases(controls, rank, spin_rounds);
  }

  std::vector<std::unique_ptr<RankControl>> controls_;
};

absl::Status Never(const std::vector<int>&) {
  ADD_FAILURE() << "waited";
  return absl::OkStatus();
}

TEST_F(PhasesTest, PhaseOfOneRankIsOverOnceItHasArrived) {
  Phases one = Rank(0, 1);
  EXPECT_EQ(one.next(), 1);
  for (uint64_t phase = 1; phase <= 3; ++phase) {
    one.Arrive();
    EXPECT_EQ(one.next(), phase + 1);
    EXPECT_THAT(one.Await(phase, Never), IsOk());
  }
}

TEST_F(PhasesTest, EarlierPhasesAreOverForALateRank) {
  Phases a = Rank(0, 2), b = Rank(1, 2);
  for (int i = 0; i < 3; ++i) a.Arrive();
  for (int i = 0; i < 2; ++i) b.Arrive();
  EXPECT_THAT(b.Await(1, Never), IsOk());
  EXPECT_THAT(b.Await(2, Never), IsOk());
  EXPECT_THAT(a.Await(3,
                      [](const std::vector<int>& missing) {
                        EXPECT_THAT(missing, ElementsAre(1));
                        return absl::UnavailableError("rank 1 is gone");
                      }),
              StatusIs(absl::StatusCode::kUnavailable, "rank 1 is gone"));
}

TEST_F(PhasesTest, CheckIsToldWhoIsMissing) {
  Phases a = Rank(0, 4), c = Rank(2, 4);
  a.Arrive();
  c.Arrive();
  std::vector<int> found;
  EXPECT_THAT(a.Await(1,
                      [&](const std::vector<int>& missing) {
                        found = missing;
                        return absl::AbortedError("enough");
                      }),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_THAT(found, ElementsAre(1, 3));
}

// A rank arrives, and leaves, while another looks why it does not come.
TEST_F(PhasesTest, ArrivalDuringAFailingCheckCounts) {
  Phases a = Rank(0, 2), b = Rank(1, 2);
  a.Arrive();
  int looks = 0;
  EXPECT_THAT(a.Await(1,
                      [&](const std::vector<int>&) {
                        ++looks;
                        b.Arrive();
                        return absl::UnavailableError("rank 1 has left");
                      }),
              IsOk());
  EXPECT_EQ(looks, 1);
}

// One of two that are missing arrives meanwhile: the check is asked again, and
// its error names the other.
TEST_F(PhasesTest, CheckIsAskedAgainWhereAnotherRankArrivedMeanwhile) {
  Phases a = Rank(0, 3), b = Rank(1, 3);
  a.Arrive();
  std::vector<std::vector<int>> looks;
  EXPECT_THAT(a.Await(1,
                      [&](const std::vector<int>& missing) {
                        looks.push_back(missing);
                        if (looks.size() == 1) b.Arrive();
                        return absl::UnavailableError("somebody has left");
                      }),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(looks, ElementsAre(ElementsAre(1, 2), ElementsAre(2)));
}

TEST_F(PhasesTest, RankThatSleepsIsNotMarkedAsleepAfterItsWait) {
  Phases a = Rank(0, 2), b = Rank(1, 2);
  a.Arrive();
  EXPECT_THAT(a.Await(1,
                      [&](const std::vector<int>&) {
                        EXPECT_EQ(controls_[0]->is_sleeping.load(), 1);
                        const uint32_t before = controls_[0]->doorbell.load();
                        b.Arrive();
                        EXPECT_EQ(controls_[0]->doorbell.load(), before + 1);
                        return absl::OkStatus();
                      }),
              IsOk());
  EXPECT_EQ(controls_[0]->is_sleeping.load(), 0);
  // Nobody sleeps: nobody is woken.
  const uint32_t before = controls_[0]->doorbell.load();
  b.Arrive();
  EXPECT_EQ(controls_[0]->doorbell.load(), before);
}

TEST_F(PhasesTest, WhatWasWrittenBeforeAnArrivalIsSeenAfterThePhase) {
  constexpr int kRanks = 4;
  constexpr uint64_t kPhases = 2000;
  for (const int spin_rounds : {0, 100}) {
    std::vector<Phases> ranks;
    controls_.clear();
    for (int r = 0; r < kRanks; ++r) {
      ranks.push_back(Rank(r, kRanks, spin_rounds));
    }
    // As slots: two of each rank.
    uint64_t slots[kRanks][2] = {};
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        for (uint64_t phase = 1; phase <= kPhases; ++phase) {
          slots[r][phase % 2] = phase;
          ranks[r].Arrive();
          const absl::Status over = ranks[r].Await(
              phase, [](const std::vector<int>&) { return absl::OkStatus(); });
          wrong += !over.ok();
          for (const auto& slot : slots) wrong += slot[phase % 2] != phase;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
  }
}

// The error of a check reaches the others by a flag that they look at, once
// they are woken.
TEST_F(PhasesTest, WakeAllHasSleepersAskTheirChecks) {
  Phases a = Rank(0, 3), b = Rank(1, 3);
  std::atomic<bool> is_aborted{false};
  std::atomic<int> looks{0};
  a.Arrive();
  std::thread sleeper([&] {
    EXPECT_THAT(a.Await(1,
                        [&](const std::vector<int>&) {
                          ++looks;
                          return is_aborted ? absl::AbortedError("aborted")
                                            : absl::OkStatus();
                        }),
                StatusIs(absl::StatusCode::kAborted));
  });
  while (looks == 0) std::this_thread::yield();
  is_aborted = true;
  b.WakeAll();
  sleeper.join();
}

}  // namespace
}  // namespace weft::collectives
