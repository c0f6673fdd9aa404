#include "weft/net/loop/spin_time.h"

#include "gtest/gtest.h"

namespace weft::net {
namespace {

constexpr absl::Duration kSpin = absl::Microseconds(50);
constexpr absl::Duration kLong = absl::Microseconds(500);

void Repeat(SpinTime& spin, int times, absl::Duration waited) {
  for (int i = 0; i < times; ++i) spin.OnWoken(waited);
}

TEST(SpinTime, GrowsWhereEventsComeRegularlyALittleLater) {
  SpinTime spin(kSpin, kLong);
  EXPECT_EQ(spin.Get(), kSpin);
  Repeat(spin, SpinTime::kRegular - 1, 4 * kSpin);
  EXPECT_EQ(spin.Get(), kSpin);
  spin.OnWoken(kLong);
  EXPECT_EQ(spin.Get(), kLong);
  Repeat(spin, 100, 2 * kSpin);
  EXPECT_EQ(spin.Get(), kLong);
}

TEST(SpinTime, OneLateEventEndsIt) {
  SpinTime spin(kSpin, kLong);
  Repeat(spin, SpinTime::kRegular, 4 * kSpin);
  spin.OnWoken(kLong + absl::Nanoseconds(1));
  EXPECT_EQ(spin.Get(), kSpin);
  Repeat(spin, SpinTime::kRegular - 1, 4 * kSpin);
  EXPECT_EQ(spin.Get(), kSpin);
}

// Events of a heartbeat, or of a user who thinks.
TEST(SpinTime, StaysWhereEventsComeLate) {
  SpinTime spin(kSpin, kLong);
  Repeat(spin, 1000, absl::Milliseconds(1));
  EXPECT_EQ(spin.Get(), kSpin);
}

// The thread slept at once, since others wanted its core.
TEST(SpinTime, SleepThatWasShorterDoesNotCount) {
  SpinTime spin(kSpin, kLong);
  Repeat(spin, 1000, kSpin);
  EXPECT_EQ(spin.Get(), kSpin);
}

TEST(SpinTime, NeverGrowsBeyondTheLongest) {
  SpinTime spin(kSpin, absl::ZeroDuration());
  Repeat(spin, 1000, kSpin + absl::Nanoseconds(1));
  EXPECT_EQ(spin.Get(), kSpin);
}

}  // namespace
}  // namespace weft::net
