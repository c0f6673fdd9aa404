#include "weft/tensor/ops/scalar_math.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace weft::internal {
namespace {

// The error of `got` in units in the last place of `wanted`.
double UlpError(float got, double wanted) {
  const float near = std::fabs(static_cast<float>(wanted));
  const float next = std::nextafter(near, HUGE_VALF);
  return std::fabs(got - wanted) / (double{next} - near);
}

TEST(Erf, IsWithinTwoUnitsInTheLastPlace) {
  double worst = 0;
  for (float x = 1e-30f; x < 12; x *= 1.0001f) {
    worst = std::fmax(worst, UlpError(Erf(x), std::erf(double{x})));
    ASSERT_EQ(Erf(-x), -Erf(x)) << x;
  }
  EXPECT_LE(worst, 2);
}

TEST(Erf, BranchesMeetWithoutAStep) {
  float last = 0;
  for (float x = 0.94f; x < 0.96f; x = std::nextafter(x, 1.0f)) {
    ASSERT_GE(Erf(x), last - 1.2e-7f) << x;
    last = Erf(x);
  }
}

TEST(Erf, EndsOfTheRangeAreExact) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Erf(0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(Erf(-0.0f)));
  EXPECT_EQ(Erf(kInfinity), 1.0f);
  EXPECT_EQ(Erf(-kInfinity), -1.0f);
  EXPECT_EQ(Erf(4.0f), 1.0f);
  EXPECT_TRUE(std::isnan(Erf(std::numeric_limits<float>::quiet_NaN())));
  const float smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_GT(Erf(smallest), 0.0f);
}

}  // namespace
}  // namespace weft::internal
