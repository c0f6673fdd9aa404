#include "weft/device/simulated/schedule.h"

#include <cstdint>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace weft::device {
namespace {

std::vector<int64_t> RunAll(Schedule& schedule) {
  std::vector<int64_t> order;
  while (const auto pick = schedule.Next()) {
    schedule.Finish(*pick);
    order.push_back(pick->task);
  }
  return order;
}

TEST(Schedule, KeepsTheOrderOfAStream) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Schedule schedule(seed);
    const int stream = schedule.AddStream();
    for (int64_t task = 0; task < 10; ++task) schedule.Enqueue(stream, task);
    EXPECT_EQ(RunAll(schedule),
              (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(schedule.pending_tasks(), 0);
  }
}

TEST(Schedule, RunsStreamsWithoutEventsInEachOrder) {
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Schedule schedule(seed);
    const int a = schedule.AddStream();
    const int b = schedule.AddStream();
    schedule.Enqueue(a, 0);
    schedule.Enqueue(a, 1);
    schedule.Enqueue(b, 2);
    schedule.Enqueue(b, 3);
    orders.insert(RunAll(schedule));
  }
  EXPECT_EQ(orders.size(), 6u);  // all that keep 0 before 1 and 2 before 3
}

TEST(Schedule, RunsNothingBeforeTheMarkThatItWaitsFor) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Schedule schedule(seed);
    const int a = schedule.AddStream();
    const int b = schedule.AddStream();
    const int c = schedule.AddStream();
    schedule.Enqueue(a, 0);
    schedule.Wait(b, schedule.MarkOf(a));
    schedule.Wait(c, schedule.MarkOf(b));  // through b, where no task is
    schedule.Enqueue(c, 1);
    schedule.Enqueue(a, 2);  // after the mark
    const std::vector<int64_t> order = RunAll(schedule);
    ASSERT_EQ(order.size(), 3u);
    EXPECT_EQ(order[0], 0) << "seed " << seed;
  }
}

TEST(Schedule, SaysWhenAMarkIsDone) {
  Schedule schedule(0);
  const int a = schedule.AddStream();
  const Schedule::Mark before = schedule.MarkOf(a);
  schedule.Enqueue(a, 0);
  const Schedule::Mark after = schedule.MarkOf(a);
  EXPECT_TRUE(schedule.IsDone(before));
  EXPECT_FALSE(schedule.IsDone(after));
  RunAll(schedule);
  EXPECT_TRUE(schedule.IsDone(after));
}

TEST(Schedule, RunsNothingOfAStreamThatHangsNorWhatWaitsForIt) {
  Schedule schedule(0);
  const int a = schedule.AddStream();
  const int b = schedule.AddStream();
  schedule.Enqueue(a, 0);
  schedule.Wait(b, schedule.MarkOf(a));
  schedule.Enqueue(b, 1);
  schedule.SetHangs(a, true);
  EXPECT_TRUE(RunAll(schedule).empty());
  schedule.SetHangs(a, false);
  EXPECT_EQ(RunAll(schedule), (std::vector<int64_t>{0, 1}));
}

TEST(Schedule, IsTheSameForTheSameSeed) {
  const auto run = [](uint64_t seed) {
    Schedule schedule(seed);
    for (int i = 0; i < 4; ++i) schedule.AddStream();
    std::vector<int64_t> order;
    for (int64_t task = 0; task < 100; ++task) {
      schedule.Enqueue(static_cast<int>(task % 4), task);
      if (!schedule.DrawEarly()) continue;
      const auto pick = schedule.Next();
      schedule.Finish(*pick);
      order.push_back(pick->task);
    }
    const std::vector<int64_t> rest = RunAll(schedule);
    order.insert(order.end(), rest.begin(), rest.end());
    return order;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

}  // namespace
}  // namespace weft::device
