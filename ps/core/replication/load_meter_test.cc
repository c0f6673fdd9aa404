#include "weft/ps/core/replication/load_meter.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace weft::ps {
namespace {

Instant At(double seconds) {
  return Instant::FromNanoseconds(static_cast<int64_t>(seconds * 1e9));
}

TEST(LoadMeter, RatesAreRightFromTheFirstMomentOn) {
  LoadMeter meter(4);
  meter.Advance(At(100));
  for (int second = 1; second <= 40; ++second) {
    for (int i = 0; i < 50; ++i) meter.Count(2, 10, 400);
    meter.Busy(2, absl::Milliseconds(250));
    meter.BackupBusy(3, absl::Milliseconds(125));
    meter.Advance(At(100 + second));
    const auto loads = meter.Loads();
    ASSERT_EQ(loads.size(), 4U);
    EXPECT_NEAR(loads[2].load.requests, 50, 0.01);
    EXPECT_NEAR(loads[2].load.rows, 500, 0.1);
    EXPECT_NEAR(loads[2].load.bytes, 20'000, 1);
    EXPECT_NEAR(loads[2].load.busy, 0.25, 1e-4);
    EXPECT_EQ(loads[2].load.backup, 0);
    EXPECT_NEAR(loads[3].load.backup, 0.125, 1e-4);
    EXPECT_EQ(loads[0].load.requests, 0);
    EXPECT_NEAR(meter.Total().requests, 50, 0.01);
  }
  EXPECT_EQ(meter.Sum().requests, 40 * 50);
  EXPECT_EQ(meter.Sum().rows, 40 * 500);
  EXPECT_NEAR(meter.Sum().busy, 10, 1e-9);
}

TEST(LoadMeter, WhatWasCountedLosesHalfItsWeightInAHalfLife) {
  LoadMeter meter(1, 0, 1, absl::Seconds(10));
  meter.Advance(At(0));
  meter.Count(0, 1000, 0);
  meter.Advance(At(1));
  EXPECT_NEAR(meter.Total().rows, 1000, 0.1);
  double before = 0;
  for (int second = 2; second <= 61; ++second) {
    meter.Advance(At(second));
    if (second == 51) before = meter.Total().rows;
  }
  // By then the weighted time is nearly what it will be for ever.
  EXPECT_NEAR(meter.Total().rows / before, 0.5, 0.02);
}

// This happens when the role of a partition moves from one server to another:
// the number by which servers are balanced does not change.
TEST(LoadMeter, RatesOfTwoServersAddUpToThatOfThePartition) {
  LoadMeter a(1);
  LoadMeter b(1);
  a.Advance(At(0));
  b.Advance(At(0));
  for (int second = 1; second <= 60; ++second) {
    LoadMeter& serves = second <= 30 ? a : b;
    for (int i = 0; i < 100; ++i) serves.Count(0, 1, 1);
    a.Advance(At(second));
    b.Advance(At(second));
    EXPECT_NEAR(a.Total().requests + b.Total().requests, 100, 0.01) << second;
  }
  EXPECT_LT(a.Total().requests, 15);
}

TEST(LoadMeter, TimeOfARequestIsSharedByRows) {
  LoadMeter meter(8);
  meter.Advance(At(0));
  using Shares = std::vector<LoadMeter::Share>;
  meter.Busy(Shares{{1, 9}, {5, 29}}, absl::Milliseconds(40));
  meter.BackupBusy(Shares{{1, 0}}, absl::Milliseconds(3));
  meter.Busy(Shares(), absl::Seconds(1));
  meter.Advance(At(1));
  EXPECT_NEAR(meter.Loads()[1].load.busy, 0.010, 1e-6);
  EXPECT_NEAR(meter.Loads()[5].load.busy, 0.030, 1e-6);
  EXPECT_NEAR(meter.Loads()[1].load.backup, 0.003, 1e-6);
}

TEST(LoadMeter, CountsThePartitionsOfOneServer) {
  LoadMeter meter(16, /*first=*/1, /*stride=*/3);
  meter.Advance(At(0));
  for (int p = -2; p < 20; ++p) meter.Count(p, 1, 1);
  meter.Advance(At(1));
  const auto loads = meter.Loads();
  ASSERT_EQ(loads.size(), 5U);
  for (size_t i = 0; i < loads.size(); ++i) {
    EXPECT_EQ(loads[i].partition, static_cast<int>(1 + 3 * i));
    EXPECT_NEAR(loads[i].load.requests, 1, 1e-6);
  }
  EXPECT_TRUE(LoadMeter(2, /*first=*/2, /*stride=*/3).Loads().empty());
}

TEST(LoadMeter, NoTimeHarmsIt) {
  LoadMeter meter(1);
  meter.Count(0, 1, 1);
  EXPECT_EQ(meter.Total().requests, 0);
  meter.Advance(At(5));
  meter.Advance(At(5));
  meter.Advance(At(1));  // earlier
  meter.Advance(At(5.01));
  EXPECT_EQ(meter.Total().requests, 0);
  meter.Advance(At(6));
  EXPECT_NEAR(meter.Total().requests, 1, 1e-6);
  meter.Advance(At(1e9));
  EXPECT_NEAR(meter.Total().requests, 0, 1e-6);
}

TEST(LoadMeter, LosesNothingOfSeveralThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 20'000;
  LoadMeter meter(2);
  meter.Advance(At(0));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) meter.Count(i & 1, 2, 3);
    });
  }
  for (int second = 1; second <= 200; ++second) meter.Advance(At(second));
  for (std::thread& thread : threads) thread.join();
  meter.Advance(At(300));
  EXPECT_EQ(meter.Sum().requests, kThreads * kEach);
  EXPECT_EQ(meter.Sum().rows, 2 * kThreads * kEach);
  EXPECT_EQ(meter.Sum().bytes, 3 * kThreads * kEach);
}

}  // namespace
}  // namespace weft::ps
