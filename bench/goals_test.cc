#include "weft/bench/goals.h"

#include "gtest/gtest.h"

namespace weft::bench {
namespace {

TEST(Control, AgreesWithinAQuarterAndNotBeyondInAnyFigure) {
  const Control before = {20, 0.3, 8};
  EXPECT_TRUE(Agree(before, before));
  EXPECT_TRUE(Agree(before, {16, 0.36, 9.9}));
  EXPECT_FALSE(Agree(before, {14, 0.3, 8}));
  EXPECT_FALSE(Agree(before, {26, 0.3, 8}));
  EXPECT_FALSE(Agree(before, {20, 0.4, 8}));
  EXPECT_FALSE(Agree(before, {20, 0.3, 10.1}));
}

// A machine that is half as fast as another all the time is no slow spell.
TEST(Control, AgreesOnASlowMachineThatStaysSlow) {
  EXPECT_TRUE(Agree({5, 0.9, 40}, {5.5, 1, 38}));
}

TEST(Control, WithAFailedMeasurementDoesNotAgree) {
  EXPECT_FALSE(Agree({20, 0.3, 0}, {20, 0.3, 0}));
}

}  // namespace
}  // namespace weft::bench
