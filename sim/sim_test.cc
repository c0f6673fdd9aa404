#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/sim/baton_scheduler.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/sim_driver.h"
#include "weft/sim/simulator.h"
#include "weft/sim/skewed_driver.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::sim {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

TEST(Simulator, RunsEventsInTheOrderOfTheirTimes) {
  Simulator simulator(1);
  std::vector<int> order;
  simulator.After(absl::Seconds(2), [&] { order.push_back(2); });
  simulator.After(absl::Seconds(1), [&] {
    order.push_back(1);
    simulator.After(absl::Milliseconds(500), [&] { order.push_back(15); });
  });
  EXPECT_EQ(simulator.RunUntilIdle(), 3);
  EXPECT_THAT(order, ElementsAre(1, 15, 2));
  EXPECT_EQ(simulator.Now() - Instant(), absl::Seconds(2));
}

TEST(SkewedDriver, WaitsUntilItsSkewedDeadline) {
  for (const int64_t millionths : {-100000, -1, 0, 7, 100000}) {
    Simulator simulator(1);
    SimDriver driver(simulator);
    SkewedDriver skewed(driver, {absl::Minutes(3), millionths});
    for (int i = 0; i < 100; ++i) {
      const Instant when = skewed.clock().Now() + absl::Nanoseconds(999 * i);
      simulator.AdvanceTo(skewed.ToInner(when));
      EXPECT_GE(skewed.clock().Now(), when);
      EXPECT_LE(skewed.clock().Now(), when + absl::Nanoseconds(2));
    }
  }
}

TEST(SkewedDriver, AppliesItsRate) {
  Simulator simulator(1);
  SimDriver driver(simulator);
  SkewedDriver skewed(driver, {absl::Hours(1), 100000});
  simulator.AdvanceTo(Instant() + absl::Hours(1));
  EXPECT_EQ(skewed.clock().Now() - Instant(), absl::Minutes(60 + 66));
  EXPECT_TRUE(skewed.ToInner(Instant::Infinite()).is_infinite());
}

std::vector<int> OrderOfOneInstant(uint64_t seed) {
  Simulator simulator(seed);
  std::vector<int> order;
  for (int i = 0; i < 8; ++i) {
    simulator.Schedule(Instant(), [&order, i] { order.push_back(i); });
  }
  simulator.RunUntilIdle();
  return order;
}

TEST(Simulator, TheSeedOrdersEventsOfOneInstant) {
  EXPECT_EQ(OrderOfOneInstant(1), OrderOfOneInstant(1));
  EXPECT_NE(OrderOfOneInstant(1), OrderOfOneInstant(2));
}

TEST(Simulator, ACancelledEventDoesNotRun) {
  Simulator simulator(1);
  bool ran = false;
  const auto id = simulator.After(absl::Seconds(1), [&] { ran = true; });
  EXPECT_TRUE(simulator.Cancel(id));
  EXPECT_FALSE(simulator.Cancel(id));
  EXPECT_EQ(simulator.RunUntilIdle(), 0);
  EXPECT_FALSE(ran);
}

TEST(Simulator, RunUntilStopsAtTheDeadline) {
  Simulator simulator(1);
  int ran = 0;
  simulator.After(absl::Seconds(1), [&] { ++ran; });
  simulator.After(absl::Seconds(3), [&] { ++ran; });
  EXPECT_EQ(simulator.RunUntil(Instant() + absl::Seconds(2)), 1);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(simulator.Now(), Instant() + absl::Seconds(2));
}

TEST(Simulator, AnEventCannotWait) {
  Simulator simulator(1);
  SimDriver driver(simulator);
  auto [promise, future] = MakePromise<int>(driver);
  absl::Status waited;
  simulator.Schedule(Instant(), [&, pending = future] {
    waited = pending.Wait(absl::Seconds(1)).status();
  });
  simulator.RunUntilIdle();
  EXPECT_THAT(waited, StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(SimDriver, WaitingRunsTheEventsThatAnswer) {
  Simulator simulator(1);
  SimDriver driver(simulator);
  auto [promise, future] = MakePromise<int>(driver);
  simulator.After(absl::Seconds(3), [&, p = &promise] { p->Set(42); });
  EXPECT_THAT(future.Wait(absl::Seconds(5)), IsOkAndHolds(42));
  EXPECT_EQ(simulator.Now(), Instant() + absl::Seconds(3));
}

TEST(SimDriver, WaitingEndsAtTheVirtualDeadline) {
  Simulator simulator(1);
  SimDriver driver(simulator);
  auto [promise, future] = MakePromise<int>(driver);
  simulator.After(absl::Hours(2), [&, p = &promise] { p->Set(42); });
  EXPECT_THAT(future.Wait(absl::Hours(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(simulator.Now(), Instant() + absl::Hours(1));
}

TEST(FaultPlan, StrikesAtItsRate) {
  FaultPlan plan(7, FaultPlan::Options::Of({Fault::kLoss}, 0.25));
  for (int i = 0; i < 10000; ++i) {
    plan.Strikes(Fault::kLoss);
    plan.Strikes(Fault::kDelay);
  }
  // Five standard deviations of a binomial: 5 * sqrt(10000 * 0.25 * 0.75).
  EXPECT_NEAR(plan.hits(Fault::kLoss), 2500, 217);
  EXPECT_EQ(plan.hits(Fault::kDelay), 0);
  EXPECT_EQ(plan.opportunities(Fault::kDelay), 10000);
}

TEST(FaultPlan, StrikesItsMinimumHoweverLowTheRate) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    FaultPlan plan(seed, FaultPlan::Options::Of({Fault::kReset}, 1e-9, 3));
    for (int i = 0; i < 100; ++i) plan.Strikes(Fault::kReset);
    EXPECT_EQ(plan.hits(Fault::kReset), 3) << "seed " << seed;
    EXPECT_THAT(plan.CheckHits(), IsOk());
  }
}

TEST(FaultPlan, NamesTheKindThatNeverStruck) {
  FaultPlan plan(1,
                 FaultPlan::Options::Of({Fault::kCrash, Fault::kLoss}, 0.5, 2));
  for (int i = 0; i < 100; ++i) plan.Strikes(Fault::kLoss);
  const absl::Status checked = plan.CheckHits();
  EXPECT_THAT(checked, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "crash (0 hits of 0)"));
  EXPECT_THAT(std::string(checked.message()),
              ::testing::Not(HasSubstr("loss")));
  EXPECT_THAT(plan.Report(), HasSubstr("crash"));
}

TEST(FaultPlan, AKindDoesNotMoveAnother) {
  FaultPlan alone(3, FaultPlan::Options::Of({Fault::kLoss}, 0.5));
  FaultPlan beside(3,
                   FaultPlan::Options::Of({Fault::kLoss, Fault::kDelay}, 0.5));
  for (int i = 0; i < 200; ++i) {
    beside.Strikes(Fault::kDelay);
    EXPECT_EQ(alone.Strikes(Fault::kLoss), beside.Strikes(Fault::kLoss));
  }
}

TEST(FaultPlan, RulesStrikeTheFirstMessagesOfAKindInTheirOrder) {
  FaultPlan::Options options;
  options.rules = {FaultPlan::Rule::Drop("request", "Push", 3),
                   FaultPlan::Rule::Delay("request", absl::Seconds(1.5)),
                   FaultPlan::Rule::Drop("reply", "", 1)};
  FaultPlan plan(7, options);
  std::string struck;
  const auto send = [&](const std::vector<FaultPlan::Message>& together) {
    const FaultPlan::Rule* rule = plan.Strikes(together);
    struck += rule == nullptr ? '-' : rule->fault == Fault::kDelay ? 'd' : 'x';
  };
  send({{"request", "Pull"}});
  for (int i = 0; i < 5; ++i) send({{"request", "Push"}});
  send({{"close", ""}});
  EXPECT_THAT(
      plan.CheckHits(),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               "the rule \"reset of the first 1 reply\" (0 hits of 0)"));
  send({{"close", ""}, {"reply", ""}});
  send({{"reply", ""}});
  EXPECT_EQ(struck, "dxxxdd-x-");
  EXPECT_EQ(plan.hits(Fault::kReset), 4);
  EXPECT_EQ(plan.hits(Fault::kDelay), 3);
  EXPECT_THAT(plan.CheckHits(), IsOk());
  EXPECT_THAT(plan.Report(),
              HasSubstr("reset of the first 3 request of Push: 3 hits of 5\n"
                        "delay by 1.5s of request: 3 hits of 3\n"));
  EXPECT_EQ(plan.opportunities(Fault::kReset), 0);
}

TEST(FaultPlan, PrintsItsRules) {
  FaultPlan::Options options =
      FaultPlan::Options::Of({Fault::kLoss, Fault::kDelay}, 0.02, 1);
  options.rules = {FaultPlan::Rule::Drop("request", "Push", 3),
                   FaultPlan::Rule::Delay("", absl::Seconds(1.5))};
  EXPECT_EQ(FaultPlan(7, options).Replay(),
            "seed 7, loss 0.02, delay 0.02, each at least 1 times within 100, "
            "reset of the first 3 request of Push, delay by 1.5s of any "
            "message");
  // Each rate to its last bit.
  const auto replay = [](double rate) {
    return FaultPlan(7, FaultPlan::Options::Of({Fault::kLoss}, rate)).Replay();
  };
  EXPECT_EQ(replay(1.0 / 3), "seed 7, loss 0.3333333333333333");
  EXPECT_EQ(replay(0.0012345678), "seed 7, loss 0.0012345678");
}

// Ranks that pass a token round by futures, with timers in between.
struct RingRun {
  uint64_t trace_hash;
  std::vector<int> order;
  std::vector<absl::Status> statuses;
};

RingRun RunRing(uint64_t seed, int ranks) {
  Simulator simulator(seed);
  BatonScheduler scheduler(simulator);
  std::vector<Promise<int>> promises;
  std::vector<Future<int>> futures;
  for (int i = 0; i < ranks; ++i) {
    auto [promise, future] = MakePromise<int>(scheduler.driver());
    promises.push_back(std::move(promise));
    futures.push_back(future);
  }
  RingRun run;
  run.statuses = scheduler.Run(ranks, [&](int rank) -> absl::Status {
    for (int i = 0; i < 5; ++i) {
      run.order.push_back(rank);
      scheduler.Yield();
    }
    if (rank == 0) {
      scheduler.SleepFor(absl::Milliseconds(3));
    } else {
      auto token = futures[rank - 1].Wait(absl::Seconds(1));
      if (!token.ok()) return token.status();
    }
    run.order.push_back(rank);
    promises[rank].Set(rank);
    return absl::OkStatus();
  });
  run.trace_hash = simulator.trace_hash();
  return run;
}

TEST(BatonScheduler, OneSeedIsOneInterleaving) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RingRun first = RunRing(seed, 4);
    const RingRun second = RunRing(seed, 4);
    EXPECT_THAT(first.statuses, Each(IsOk()));
    EXPECT_EQ(first.trace_hash, second.trace_hash) << "seed " << seed;
    EXPECT_EQ(first.order, second.order) << "seed " << seed;
    EXPECT_NE(first.order, RunRing(seed + 100, 4).order) << "seed " << seed;
  }
}

TEST(BatonScheduler, FindsALostUpdateThatAnOrderHides) {
  // Two ranks read, give way and write back: some orders lose an update.
  int lost = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Simulator simulator(seed);
    BatonScheduler scheduler(simulator);
    int counter = 0;
    scheduler.Run(2, [&](int) {
      const int read = counter;
      scheduler.Yield();
      counter = read + 1;
      return absl::OkStatus();
    });
    if (counter == 1) ++lost;
  }
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, 50);
}

TEST(BatonScheduler, AWaitEndsAtItsVirtualDeadline) {
  Simulator simulator(1);
  BatonScheduler scheduler(simulator);
  auto [promise, future] = MakePromise<int>(scheduler.driver());
  const auto statuses = scheduler.Run(2, [&, pending = future](int rank) {
    return pending.Wait(absl::Hours(rank + 1)).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kDeadlineExceeded)));
  EXPECT_EQ(simulator.Now(), Instant() + absl::Hours(2));
  EXPECT_EQ(scheduler.deadlocks(), 0);
}

TEST(BatonScheduler, EndsADeadlock) {
  Simulator simulator(1);
  BatonScheduler scheduler(simulator);
  auto [promise, future] = MakePromise<int>(scheduler.driver());
  const auto statuses = scheduler.Run(2, [&, pending = future](int) {
    return pending.Wait(absl::InfiniteDuration()).status();
  });
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kDeadlineExceeded)));
  EXPECT_EQ(scheduler.deadlocks(), 1);
}

TEST(BatonScheduler, EventsAnswerRanksThatWait) {
  Simulator simulator(1);
  BatonScheduler scheduler(simulator);
  auto [promise, future] = MakePromise<int>(scheduler.driver());
  simulator.After(absl::Seconds(1), [p = &promise] { p->Set(7); });
  const auto statuses = scheduler.Run(3, [&, pending = future](int) {
    return pending.Wait(absl::Seconds(2)).status();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
  EXPECT_EQ(simulator.Now(), Instant() + absl::Seconds(1));
}

TEST(BatonScheduler, TasksOfItsExecutorMayWait) {
  Simulator simulator(1);
  BatonScheduler scheduler(simulator);
  auto [question, asked] = MakePromise<int>(scheduler.driver());
  auto [answer, answered] = MakePromise<int>(scheduler.driver());
  // An event hands over to the executor, as a transport does.
  simulator.After(absl::Seconds(1), [&, question = asked, p = &answer] {
    scheduler.executor().Schedule(
        [question, p] { p->Set(*question.Wait(absl::Minutes(1)) * 2); });
  });
  int doubled = 0;
  const auto statuses = scheduler.Run(
      1, [&, p = &question, answer = answered](int) -> absl::Status {
        scheduler.SleepFor(absl::Seconds(5));
        p->Set(21);
        auto got = answer.Wait(absl::Seconds(1));
        if (got.ok()) doubled = *got;
        return got.status();
      });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(doubled, 42);
}

TEST(BatonScheduler, AThrowingRankFailsAlone) {
  Simulator simulator(1);
  BatonScheduler scheduler(simulator);
  const auto statuses = scheduler.Run(2, [&](int rank) -> absl::Status {
    if (rank == 0) throw std::runtime_error("no luck");
    scheduler.SleepFor(absl::Seconds(1));
    return absl::OkStatus();
  });
  EXPECT_THAT(
      statuses,
      ElementsAre(StatusIs(absl::StatusCode::kInternal, "no luck"), IsOk()));
}

}  // namespace
}  // namespace weft::sim
