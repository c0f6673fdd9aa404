#include "weft/net/loop/alarm.h"

#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"

namespace weft::net {
namespace {

Instant In(absl::Duration d) { return SteadyClock().Now() + d; }

TEST(Alarm, RingsAtItsTime) {
  Alarm alarm;
  const Instant when = In(absl::Milliseconds(20));
  alarm.Set(when);
  alarm.Wait();
  EXPECT_GE(SteadyClock().Now(), when);
}

// Whether `alarm`, which has rung or rings at once, ends a wait: within a
// minute, however crowded the host is.
::testing::AssertionResult EndsAWait(Alarm& alarm) {
  std::atomic<bool> is_over{false};
  std::thread sleeper([&] {
    alarm.Wait();
    is_over.store(true);
  });
  const auto ended = testing::Becomes([&] { return is_over.load(); });
  if (!ended) alarm.Set(In(-absl::Seconds(1)));
  sleeper.join();
  return ended;
}

TEST(Alarm, TimeThatHasPassedRingsAtOnce) {
  Alarm alarm;
  alarm.Set(Instant::FromNanoseconds(0));
  EXPECT_TRUE(EndsAWait(alarm));
  alarm.Set(In(-absl::Seconds(1)));
  EXPECT_TRUE(EndsAWait(alarm));
}

TEST(Alarm, RungBeforeTheWaitEndsTheWait) {
  Alarm alarm;
  alarm.Set(In(absl::Milliseconds(1)));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(EndsAWait(alarm));
}

TEST(Alarm, LaterTimeDoesNotWakeTheSleeper) {
  Alarm alarm;
  alarm.Set(In(absl::Hours(1)));
  std::atomic<bool> rung{false};
  std::thread sleeper([&] {
    alarm.Wait();
    rung.store(true);
  });
  for (int i = 0; i < 100; ++i) {
    alarm.Set(In(absl::Hours(2)));
    alarm.Set(Instant::Infinite());
  }
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(rung.load());
  alarm.Set(Instant::FromNanoseconds(0));
  sleeper.join();
}

TEST(Alarm, WithoutADescriptorItSaysSoAndWaitsAreShort) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Alarm alarm;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(alarm.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(alarm.status().message(), ::testing::HasSubstr("timer"));
  alarm.Set(Instant::Infinite());
  alarm.Wait();
}

}  // namespace
}  // namespace weft::net
