// Up to 32 ranks that train in virtual time, of which some are slow, die, come,
// stand still or are asked to leave. What holds is checked by
// step_commit_model.cc; a seed gives the same run each time.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"
#include "weft/train/core/step_commit_model.h"

namespace weft::train {
namespace {

using Event = StepCommitModel::Event;

// What all seeds came to.
struct Totals {
  int64_t groups = 0;
  int64_t abandoned = 0;
  int64_t restored = 0;
  int64_t faults = 0;
  int64_t lost_parts = 0;
};

class Simulation {
 public:
  // `calm`: the mean time between two faults.
  Simulation(uint64_t seed, const StepCommitModel::Bounds& bounds,
             absl::Duration calm)
      : random_(seed), model_(bounds), calm_(calm) {
    for (int r = 0; r < bounds.ranks; ++r) {
      const bool is_slow = random_.Chance(0.1);
      latency_.push_back(absl::Milliseconds(is_slow ? 200 : 20));
    }
  }

  // Runs until nothing but faults is left to happen.
  void Run(Totals* totals) {
    fault_at_ = now_ + Wait(calm_);
    while (model_.violation().empty() && Step(totals)) {
    }
    model_.Settle();
    totals->groups += model_.groups();
    totals->abandoned += model_.abandoned();
    totals->restored += model_.restored();
    totals->lost_parts += model_.lost_parts();
  }
  const StepCommitModel& model() const { return model_; }

 private:
  absl::Duration Wait(absl::Duration mean) {
    return random_.Between(absl::ZeroDuration(), 2 * mean);
  }

  // How long after it can happen an event happens.
  absl::Duration DelayOf(const Event& event) {
    switch (event.kind) {
      case Event::kComplete:
        return Wait(latency_[event.rank]);
      case Event::kFail:  // a closed stream, or silence
        return Wait(random_.Chance(0.8) ? absl::Milliseconds(30)
                                        : absl::Seconds(5));
      case Event::kMeet:
        return Wait(absl::Milliseconds(50));
      default:
        return Wait(absl::Seconds(2));
    }
  }

  bool Step(Totals* totals) {
    std::map<Event, Instant> due;
    std::vector<Event> faults;
    for (const Event& event : model_.Events()) {
      if (event.is_fault()) {
        faults.push_back(event);
        continue;
      }
      const auto known = due_.find(event);
      due[event] = known != due_.end() ? known->second : now_ + DelayOf(event);
    }
    if (due.empty()) return false;
    due_ = due;
    const auto next = std::min_element(
        due_.begin(), due_.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    if (!faults.empty() && fault_at_ < next->second) {
      now_ = fault_at_;
      fault_at_ = now_ + Wait(calm_);
      ++totals->faults;
      Happen(faults[random_.Below(static_cast<int64_t>(faults.size()))]);
      return true;
    }
    now_ = std::max(now_, next->second);
    Happen(next->first);
    return true;
  }

  // By value: it may be one of those that are erased.
  void Happen(Event event) {
    due_.erase({Event::kComplete, event.rank});
    due_.erase({Event::kFail, event.rank});
    due_.erase(event);
    model_.Do(event, now_);
  }

  sim::Random random_;
  StepCommitModel model_;
  const absl::Duration calm_;
  std::vector<absl::Duration> latency_;  // of each rank, the mean
  std::map<Event, Instant> due_;
  Instant now_;
  Instant fault_at_;
};

Totals RunSeeds(int seeds, const StepCommitModel::Bounds& faults) {
  Totals totals;
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    sim::Random random(static_cast<uint64_t>(seed) << 32);
    StepCommitModel::Bounds bounds = faults;
    bounds.ranks = static_cast<int>(seed % 16 == 0 ? 32 : 2 + random.Below(9));
    bounds.late = static_cast<int>(random.Below(bounds.ranks));
    bounds.min = static_cast<int>(1 + random.Below(2));
    // Some wait outside.
    bounds.max = random.Chance(0.3) ? std::max(2, bounds.ranks / 2) : 64;
    bounds.steps_of_epoch = 1 + random.Below(6);
    bounds.epochs = 1 + random.Below(4);
    bounds.leave_after = absl::Seconds(1);
    bounds.meets_ahead = random.Chance(0.8);
    Simulation simulation(
        static_cast<uint64_t>(seed), bounds,
        random.Between(absl::Milliseconds(5), absl::Milliseconds(500)));
    simulation.Run(&totals);
    EXPECT_EQ(simulation.model().violation(), "");
    if (::testing::Test::HasFailure()) break;
  }
  std::cout << totals.faults << " faults, " << totals.groups << " groups, "
            << totals.abandoned << " abandoned steps, " << totals.restored
            << " states restored\n";
  return totals;
}

TEST(StepCommitSimulation, RanksDieAndCome) {
  StepCommitModel::Bounds bounds;
  bounds.deaths = 40;
  bounds.comings = 80;
  const Totals totals = RunSeeds(3000, bounds);
  EXPECT_GT(totals.faults, 3000);
  EXPECT_GT(totals.abandoned, 1000);
  EXPECT_GT(totals.restored, 10);
}

TEST(StepCommitSimulation, RanksStandStillAndComeAsNew) {
  StepCommitModel::Bounds bounds;
  bounds.deaths = 10;
  bounds.comings = 80;
  bounds.pauses = 30;
  bounds.others = 3;
  RunSeeds(3000, bounds);
}

TEST(StepCommitSimulation, RanksAreAskedToLeaveWhileOthersDieAndCome) {
  StepCommitModel::Bounds bounds;
  bounds.deaths = 10;
  bounds.comings = 40;
  bounds.pauses = 5;
  bounds.leaves = 10;
  RunSeeds(3000, bounds);
}

// Servers die as well, some with the only copy of a dead rank's parts.
TEST(StepCommitSimulation, RanksPushToTablesWhileRanksAndServersDie) {
  StepCommitModel::Bounds bounds;
  bounds.has_tables = true;
  bounds.deaths = 40;
  bounds.comings = 80;
  bounds.pauses = 5;
  bounds.leaves = 3;
  bounds.server_deaths = 40;
  const Totals totals = RunSeeds(3000, bounds);
  EXPECT_GT(totals.lost_parts, 100);
}

// All are asked, most often within a second of one another.
TEST(StepCommitSimulation, AllAreAskedToLeave) {
  StepCommitModel::Bounds bounds;
  bounds.comings = 10;
  bounds.leaves = 64;
  RunSeeds(1000, bounds);
}

}  // namespace
}  // namespace weft::train
