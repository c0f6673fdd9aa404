#include "weft/worker/silence.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::worker {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

struct Times {
  Limits limits;
  absl::Duration rpc_timeout = absl::Minutes(1);
  absl::Duration join_timeout = absl::Minutes(5);

  absl::Status Derive() {
    DeriveFromSilence({limits, rpc_timeout, join_timeout});
    return CheckSilence({limits, rpc_timeout, join_timeout});
  }
};

Times Of(absl::Duration silence) {
  Times times;
  times.limits.silence = silence;
  return times;
}

TEST(Silence, DefaultsAreThoseOfTenSeconds) {
  const Limits by_default;
  Times times = Of(absl::Seconds(10));
  ASSERT_THAT(times.Derive(), IsOk());
  EXPECT_EQ(times.limits.dead_after, by_default.dead_after);
  EXPECT_EQ(times.limits.suspect_after, by_default.suspect_after);
  EXPECT_EQ(times.limits.give_up_after, by_default.give_up_after);
  EXPECT_EQ(times.limits.heartbeat_interval, by_default.heartbeat_interval);
  EXPECT_EQ(times.rpc_timeout, Times().rpc_timeout);
  EXPECT_EQ(times.join_timeout, Times().join_timeout);
}

TEST(Silence, OfTwoSecondsAllTimesFollow) {
  Times times = Of(absl::Seconds(2));
  ASSERT_THAT(times.Derive(), IsOk());
  EXPECT_EQ(times.limits.dead_after, absl::Seconds(2));
  EXPECT_EQ(times.limits.suspect_after, absl::Milliseconds(600));
  EXPECT_EQ(times.limits.give_up_after, absl::Seconds(2));
  EXPECT_EQ(times.limits.heartbeat_interval, absl::Milliseconds(100));
  EXPECT_EQ(times.rpc_timeout, absl::Minutes(1));
}

TEST(Silence, WhatWouldEndBeforeALongOneWaitsForLonger) {
  Times times = Of(absl::Minutes(10));
  ASSERT_THAT(times.Derive(), IsOk());
  EXPECT_EQ(times.rpc_timeout, absl::Minutes(20));
  EXPECT_EQ(times.join_timeout, absl::Minutes(20));
  EXPECT_EQ(times.limits.heartbeat_interval, absl::Milliseconds(500));
}

TEST(Silence, OrderThatFollowsFromAnyIsOneThatWorks) {
  for (int seconds = 1; seconds <= 3600; ++seconds) {
    Times times = Of(absl::Seconds(seconds));
    ASSERT_THAT(times.Derive(), IsOk()) << seconds;
    ASSERT_THAT(times.Derive(), IsOk()) << seconds << " again";
  }
}

TEST(Silence, WhatTheUserSaysOfOneTimeStays) {
  Times times = Of(absl::Seconds(4));
  ASSERT_THAT(SetLimits("suspect_after=3s,give_up_after=7s", &times.limits),
              IsOk());
  times.rpc_timeout = absl::Seconds(5);
  ASSERT_THAT(times.Derive(), IsOk());
  EXPECT_EQ(times.limits.suspect_after, absl::Seconds(3));
  EXPECT_EQ(times.limits.give_up_after, absl::Seconds(7));
  EXPECT_EQ(times.limits.dead_after, absl::Seconds(4));
  EXPECT_EQ(times.rpc_timeout, absl::Seconds(5));
}

// Tests and programs set fields themselves.
TEST(Silence, WithoutItNothingIsChanged) {
  Times times;
  times.limits.dead_after = absl::Seconds(5);
  times.rpc_timeout = absl::Seconds(1);
  EXPECT_THAT(times.Derive(), IsOk());
  EXPECT_EQ(times.limits.dead_after, absl::Seconds(5));
  EXPECT_EQ(times.limits.heartbeat_interval, absl::Milliseconds(500));
}

TEST(Silence, OrderThatCannotWorkIsRefusedWithBothNumbers) {
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"suspect_after=10s", 0, "dead_after=10s and suspect_after=10s"},
      {"heartbeat_interval=2s", 0,
       "heartbeat_interval=2s and suspect_after=3s: wanted at least two"},
      {"suspect_after=300ms", 0,
       "heartbeat_interval=500ms and suspect_after=300ms"},
      {"heartbeat_interval=1m", 20,
       "heartbeat_interval=1m and suspect_after=6s"},
      {"suspect_after=5s", 4, "dead_after=4s and suspect_after=5s"},
  };
  for (const auto& [limits, silence, message] : cases) {
    Times times = Of(absl::Seconds(silence));
    ASSERT_THAT(SetLimits(limits, &times.limits), IsOk());
    EXPECT_THAT(times.Derive(),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
  }
}

TEST(Silence, CallsAndWaitsThatEndBeforeItAreRefused) {
  Times times = Of(absl::Seconds(20));
  times.rpc_timeout = absl::Seconds(20);
  EXPECT_THAT(times.Derive(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       "--rpc-timeout=20s and --silence=20s"));
  times.rpc_timeout = absl::Seconds(21);
  EXPECT_THAT(times.Derive(), IsOk());
  times.join_timeout = absl::Seconds(15);
  EXPECT_THAT(times.Derive(), StatusIs(absl::StatusCode::kInvalidArgument,
                                       "--join-timeout=15s and --silence=20s"));
}

TEST(Silence, IsADurationFromASecondToAnHour) {
  absl::Duration silence;
  ASSERT_THAT(ParseSilence("2.5", &silence), IsOk());
  EXPECT_EQ(silence, absl::Milliseconds(2500));
  ASSERT_THAT(ParseSilence("1h", &silence), IsOk());
  for (const char* text : {"", "0", "-1", "0.9", "999ms", "3601", "2h", "nan",
                           "inf", "soon", "5x"}) {
    EXPECT_THAT(ParseSilence(text, &silence),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted a duration from 1s to 1h"))
        << text;
  }
  EXPECT_EQ(silence, absl::Hours(1));
}

}  // namespace
}  // namespace weft::worker
