#include "weft/optimizer/schedule.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/optimizer/clip.h"
#include "weft/optimizer/optimizer.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::optimizer {
namespace {

using ::nlohmann::json;
using ::weft::testing::StatusIs;

const json& Golden() {
  static const json* golden = [] {
    std::ifstream in("tests/golden/schedules.json");
    return new json(json::parse(in));
  }();
  return *golden;
}

void ExpectGolden(const char* name, const Schedule& schedule) {
  const auto wanted = Golden()["schedules"][name].get<std::vector<double>>();
  ASSERT_EQ(wanted.size(), 30u);
  for (size_t step = 0; step < wanted.size(); ++step) {
    // PyTorch multiplies from step to step, which rounds each time.
    EXPECT_NEAR(schedule(static_cast<int64_t>(step)), wanted[step], 1e-13)
        << name << " at step " << step;
  }
}

TEST(Schedule, EqualsPyTorch) {
  ExpectGolden("step", StepDecay(7, 0.5));
  ExpectGolden("multi_step", MultiStepDecay({11, 3, 10}, 0.3));
  ExpectGolden("exponential", ExponentialDecay(0.9));
  ExpectGolden("cosine", CosineDecay(40, 0.05));
  ExpectGolden("warm_up", LinearWarmUp(10, 0.25));
  OneCycleOptions cycle;
  cycle.steps = 31;
  ExpectGolden("one_cycle", OneCycle(cycle));
  ExpectGolden("warm_up_then_cosine",
               Sequence({{LinearWarmUp(8, 0.1), 8}}, CosineDecay(40)));
}

TEST(Schedule, StaysAtItsEnd) {
  EXPECT_DOUBLE_EQ(CosineDecay(10, 0.25)(11), 0.25);
  EXPECT_DOUBLE_EQ(CosineDecay(10, 0.25)(1000000), 0.25);
  EXPECT_DOUBLE_EQ(LinearWarmUp(10)(11), 1);
  OneCycleOptions cycle;
  cycle.steps = 10;
  EXPECT_DOUBLE_EQ(OneCycle(cycle)(9), cycle.final_share);
  EXPECT_DOUBLE_EQ(OneCycle(cycle)(100), cycle.final_share);
}

// What PyTorch's formula gives: (step - begin) / (end - begin) of the phase
// that `step` is in, with the phases' ends at share * steps - 1 and steps - 1.
double OneCycleOfPyTorch(const OneCycleOptions& cycle, int64_t step) {
  const double top = cycle.rising_share * static_cast<double>(cycle.steps) - 1;
  const double at = static_cast<double>(step);
  const auto anneal = [](double from, double to, double share) {
    return to + (from - to) / 2 * (1 + std::cos(std::acos(-1.0) * share));
  };
  if (at <= top) return anneal(cycle.initial_share, 1, at / top);
  return anneal(1, cycle.final_share,
                (at - top) / (static_cast<double>(cycle.steps) - 1 - top));
}

TEST(Schedule, OneCycleWithLittleRiseEqualsPyTorch) {
  OneCycleOptions cycle;
  for (const double share : {1e-9, 0.1, 0.3, 0.9, 1 - 0x1p-53}) {
    cycle.rising_share = share;
    for (const int64_t steps : {1, 2, 3, 4, 5, 11}) {
      cycle.steps = steps;
      const Schedule schedule = OneCycle(cycle);
      for (int64_t step = 0; step < steps; ++step) {
        const double scale = schedule(step);
        EXPECT_TRUE(scale >= 0 && scale <= 1) << steps << ", " << step;
        // Where the top is the last step to rounding, PyTorch's is NaN or any.
        if (share > 0.95) continue;
        EXPECT_NEAR(scale, OneCycleOfPyTorch(cycle, step), 1e-13)
            << share << ", " << steps << ", " << step;
      }
      EXPECT_NEAR(schedule(steps - 1), cycle.final_share, 1e-15)
          << share << ", " << steps;
    }
  }
}

// There PyTorch divides by zero.
TEST(Schedule, OneCycleWhoseTopIsStep0BeginsThere) {
  OneCycleOptions cycle;
  cycle.rising_share = 0.5;
  cycle.steps = 2;
  EXPECT_EQ(OneCycle(cycle)(0), 1);
  EXPECT_DOUBLE_EQ(OneCycle(cycle)(1), cycle.final_share);
  cycle.rising_share = 0.25;
  cycle.steps = 4;
  EXPECT_EQ(OneCycle(cycle)(0), 1);
}

TEST(Schedule, OfNoStepsIsAtItsEndAndOfOneStepAfterIt) {
  for (const int64_t step : {0, 1, 2, 100}) {
    EXPECT_EQ(LinearWarmUp(0, 0.1)(step), 1);
    EXPECT_EQ(CosineDecay(0, 0.25)(step), 0.25);
    EXPECT_EQ(LinearWarmUp(1, 0.25)(step), step == 0 ? 0.25 : 1);
    EXPECT_DOUBLE_EQ(CosineDecay(1, 0.25)(step), step == 0 ? 1 : 0.25);
    EXPECT_EQ(StepDecay(1, 0.5)(step), std::pow(0.5, step));
    EXPECT_EQ(MultiStepDecay({}, 0.5)(step), 1);
    EXPECT_EQ(MultiStepDecay({0}, 0.5)(step), 0.5);
    // A warm-up of no steps before another schedule.
    const Schedule joined =
        Sequence({{LinearWarmUp(0, 0.1), 0}}, CosineDecay(10));
    EXPECT_EQ(joined(step), CosineDecay(10)(step));
  }
}

TEST(Schedule, DrivesAnOptimizer) {
  const Variable w(Tensor::FromVector<double>({1}), /*requires_grad=*/true);
  auto optimizer = Optimizer::Create({{SgdOptions{1.0}, {{"w", w}}}});
  WEFT_ASSERT_OK(optimizer);
  const Schedule schedule = StepDecay(2, 0.5);
  w.SetGradient(Tensor::FromVector<double>({0.125}));
  for (int64_t step = 0; step < 4; ++step) {
    WEFT_ASSERT_OK((*optimizer)->SetLearningRateScale(schedule(step)));
    WEFT_ASSERT_OK((*optimizer)->Step());
  }
  EXPECT_EQ(w.value().item<double>(), 1 - 0.125 * (1 + 1 + 0.5 + 0.5));
}

// ---- clipping

Variable Leaf(int64_t n) {
  return Variable(Tensor::Zeros({n}, DType::kF64), /*requires_grad=*/true);
}

TEST(ClipGradNorm, EqualsPyTorch) {
  ASSERT_EQ(Golden()["clip"].size(), 3u);
  for (const json& test : Golden()["clip"]) {
    std::vector<Variable> weights;
    for (const json& gradient : test["gradients"]) {
      weights.push_back(Leaf(4));
      weights.back().SetGradient(
          Tensor::FromVector(gradient.get<std::vector<double>>()));
    }
    weights.push_back(Leaf(4));  // without a gradient
    const auto norm =
        ClipGradNorm(weights, test["largest"],
                     test["norm"] == "inf" ? Norm::kLargest : Norm::kEuclidean);
    WEFT_ASSERT_OK(norm);
    EXPECT_NEAR(*norm, test["total"].get<double>(), 1e-13);
    for (size_t i = 0; i < 3; ++i) {
      const auto wanted = test["clipped"][i].get<std::vector<double>>();
      const auto found = weights[i].grad().ToVector<double>();
      for (size_t j = 0; j < wanted.size(); ++j) {
        EXPECT_NEAR(found[j], wanted[j], 1e-13);
      }
    }
    EXPECT_FALSE(weights[3].has_grad());
  }
}

// PyTorch's clip_grad_norm_ with norm_type 1: gradients times largest / (sum of
// magnitudes + 1e-6).
TEST(ClipGradNorm, OfOrder1IsTheSumOfMagnitudes) {
  const Variable a = Leaf(2), b = Leaf(3);
  a.SetGradient(Tensor::FromVector<double>({-3, 0.5}));
  b.SetGradient(Tensor::FromVector<double>({1, 0, -4}));
  const auto norm = ClipGradNorm({a, b}, 2, Norm::kSum);
  WEFT_ASSERT_OK(norm);
  EXPECT_EQ(*norm, 8.5);
  EXPECT_NEAR(a.grad().ToVector<double>()[0], -3 * 2 / 8.500001, 1e-15);
  EXPECT_NEAR(b.grad().ToVector<double>()[2], -4 * 2 / 8.500001, 1e-15);
  // Within the limit nothing changes.
  const auto before = a.grad().ToVector<double>();
  WEFT_ASSERT_OK(ClipGradNorm({a, b}, 3, Norm::kSum));
  EXPECT_EQ(a.grad().ToVector<double>(), before);
}

TEST(ClipGradNorm, NormsOfOwnersJoinToTheNormOfAll) {
  const Gradient a(Tensor::FromVector<double>({3, -1}));
  const Gradient b(Tensor::FromVector<double>({-4, 2}));
  for (const Norm norm : {Norm::kEuclidean, Norm::kLargest, Norm::kSum}) {
    EXPECT_DOUBLE_EQ(
        JoinNorms(GradientNorm({a}, norm), GradientNorm({b}, norm), norm),
        GradientNorm({a, b}, norm));
  }
}

TEST(ClipGradNorm, WritesIntoTheBucketThatHoldsTheGradient) {
  const Variable w = Leaf(2);
  const Tensor bucket = Tensor::FromVector<double>({9, 3, 4});
  w.SetGradient(bucket.Slice(0, 1, 3));
  WEFT_ASSERT_OK(ClipGradNorm({w}, 1));
  EXPECT_EQ(w.grad().raw(), bucket.data<double>() + 1);
  EXPECT_NEAR(bucket.ToVector<double>()[1], 0.6, 1e-6);
  EXPECT_EQ(bucket.ToVector<double>()[0], 9);
}

// Rows 1 and 1 add up to 3, 4.
SparseRows Rows() {
  return {Tensor::FromVector<int64_t>({1, 1}),
          Tensor::FromVector<double>({1, 4, 2, 0}, {2, 2}), 3};
}

TEST(ClipGradNorm, OfRowsCountsTheirSums) {
  const Variable table(Tensor::Zeros({3, 2}, DType::kF64), true);
  const SparseRows rows = Rows();
  table.SetGradient(rows);
  const auto norm = ClipGradNorm({table}, 2.5);
  WEFT_ASSERT_OK(norm);
  EXPECT_DOUBLE_EQ(*norm, 5);
  ASSERT_TRUE(table.gradient().is_sparse());
  const auto found = table.grad().ToVector<double>();
  EXPECT_NEAR(found[2], 1.5, 1e-6);
  EXPECT_NEAR(found[3], 2, 1e-6);
  EXPECT_EQ(rows.values.ToVector<double>(), std::vector<double>({1, 4, 2, 0}));
}

TEST(ClipGradNorm, NormThatIsNotFiniteChangesNothing) {
  const Variable a = Leaf(1), b = Leaf(1);
  a.SetGradient(Tensor::FromVector<double>({8}));
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    b.SetGradient(Tensor::FromVector<double>({bad}));
    for (const Norm norm : {Norm::kEuclidean, Norm::kLargest, Norm::kSum}) {
      EXPECT_THAT(ClipGradNorm({a, b}, 1, norm),
                  StatusIs(absl::StatusCode::kFailedPrecondition, "norm"));
      EXPECT_THAT(ClipGradNorm({b, a}, 1, norm),
                  StatusIs(absl::StatusCode::kFailedPrecondition, "norm"));
    }
    EXPECT_EQ(a.grad().item<double>(), 8);
  }
  EXPECT_THAT(ClipGradNorm({a}, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "positive"));
}

TEST(ClipGradValue, LimitsEachElement) {
  const Variable w = Leaf(3);
  const Variable table(Tensor::Zeros({3, 2}, DType::kF64), true);
  w.SetGradient(Tensor::FromVector<double>({-5, 0.5, 5}));
  table.SetGradient(Rows());
  WEFT_ASSERT_OK(ClipGradValue({w, table, Leaf(1)}, 3.5));
  EXPECT_EQ(w.grad().ToVector<double>(), std::vector<double>({-3.5, 0.5, 3.5}));
  EXPECT_EQ(table.grad().ToVector<double>(),
            std::vector<double>({0, 0, 3, 3.5, 0, 0}));
  EXPECT_THAT(ClipGradValue({w}, -1),
              StatusIs(absl::StatusCode::kInvalidArgument, "positive"));
}

}  // namespace
}  // namespace weft::optimizer
