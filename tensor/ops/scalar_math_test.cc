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

// The largest error of `got` over numbers of both signs from 1e-30 to `end`
// whose result is finite and not near the smallest normal number.
template <typename Got, typename Wanted>
double WorstError(float end, Got got, Wanted wanted) {
  double worst = 0;
  for (float magnitude = 1e-30f; magnitude < end; magnitude *= 1.0001f) {
    for (const float x : {magnitude, -magnitude}) {
      const double exact = wanted(double{x});
      const double size = std::fabs(exact);
      if (size < 2.1e-38 || size > std::numeric_limits<float>::max()) continue;
      worst = std::fmax(worst, UlpError(got(x), exact));
    }
  }
  return worst;
}

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  EXPECT_LE(WorstError(
                100, [](float x) { return Exp(x); },
                [](double x) { return std::exp(x); }),
            2);
}

TEST(Exp, EndsOfTheRangeAreExact) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(89.0f), kInfinity);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(-88.0f), 0.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(Tanh, IsWithinTwoUnitsInTheLastPlace) {
  EXPECT_LE(WorstError(
                100, [](float x) { return Tanh(x); },
                [](double x) { return std::tanh(x); }),
            2);
}

TEST(Sigmoid, IsWithinThreeUnitsInTheLastPlace) {
  EXPECT_LE(WorstError(
                80, [](float x) { return Sigmoid(x); },
                [](double x) { return 1 / (1 + std::exp(-x)); }),
            3);
}

double Below(double x) { return NormalDistribution(x).below; }

TEST(NormalDistribution, ErrorIsAFewUnitsInTheLastPlace) {
  const double unit = double{std::nextafter(0.5f, 1.0f)} - 0.5;
  double of_half = 0, of_tail = 0;
  for (float magnitude = 1e-30f; magnitude < 20; magnitude *= 1.00003f) {
    for (const float x : {magnitude, -magnitude}) {
      const float got = NormalDistribution(x).below;
      of_half = std::fmax(of_half, std::fabs(got - Below(x)) / unit);
      if (x < 0 && x > -5) {
        of_tail = std::fmax(of_tail, UlpError(got, Below(x)));
      }
    }
  }
  EXPECT_LE(of_half, 3);
  EXPECT_LE(of_tail, 12);
}

TEST(NormalDistribution, EndsOfTheRangeAreExact) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(NormalDistribution(0.0f).below, 0.5f);
  EXPECT_EQ(NormalDistribution(kInfinity).below, 1.0f);
  EXPECT_EQ(NormalDistribution(kInfinity).density, 0.0f);
  EXPECT_EQ(NormalDistribution(-kInfinity).below, 0.0f);
  EXPECT_EQ(NormalDistribution(-kInfinity).density, 0.0f);
  const NormalAt<float> nan =
      NormalDistribution(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(nan.below));
  EXPECT_TRUE(std::isnan(nan.density));
}

TEST(NormalDistribution, DensityIsItsSlope) {
  for (double x = -4; x <= 4; x += 0.125) {
    const double slope = (Below(x + 1e-4) - Below(x - 1e-4)) / 2e-4;
    EXPECT_NEAR(NormalDistribution(x).density, slope, 1e-8) << x;
    EXPECT_NEAR(NormalDistribution(static_cast<float>(x)).density, slope, 3e-7)
        << x;
  }
}

}  // namespace
}  // namespace weft::internal
