// What single operations promise beyond values and gradients (op_test.cc).

#include "weft/autograd/ops.h"

#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/gradcheck.h"
#include "weft/base/catch_to_status.h"
#include "weft/tensor/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;
using Inputs = absl::Span<const Variable>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Variable Leaf64(const Shape& shape, uint64_t seed = 1) {
  Generator generator(seed);
  return Variable(Uniform(shape, -1.5, 1.5, generator, DType::kF64),
                  /*requires_grad=*/true);
}

TEST(Attention, OfAQueryThatSeesNoKeyIsZeroAndHasNoGradient) {
  const Variable q = Leaf64({2, 3}), k = Leaf64({4, 3}, 2),
                 v = Leaf64({4, 3}, 3);
  AttentionOptions options;
  options.mask = Tensor::Zeros({2, 4}, DType::kBool);
  options.mask(1, Slice(1, 3)).Fill(1);
  const Variable y = ScaledDotProductAttention(q, k, v, options);
  EXPECT_THAT(y.value()(0).ToVector<double>(), Each(0));
  Sum(y).Backward();
  EXPECT_THAT(q.grad()(0).ToVector<double>(), Each(0));
  // Keys 0 and 3 are seen by no query.
  EXPECT_THAT(v.grad().Select(1, 0).ToVector<double>()[0], 0);
  EXPECT_THAT(k.grad()(3).ToVector<double>(), Each(0));
}

TEST(Attention, CausalAndMaskedIntersect) {
  const Variable q = Leaf64({3, 2}), k = Leaf64({3, 2}, 2),
                 v = Leaf64({3, 2}, 3);
  AttentionOptions options;
  options.is_causal = true;
  options.mask = Tensor::Ones({3}, DType::kBool);
  options.mask(0).Fill(0);
  const Variable y = ScaledDotProductAttention(q, k, v, options);
  EXPECT_THAT(y.value()(0).ToVector<double>(), Each(0));
  EXPECT_EQ(y.value()(1).ToVector<double>(), v.value()(1).ToVector<double>());
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  const Variable q = Leaf64({2, 3}), k = Leaf64({4, 2});
  EXPECT_THAT(CatchToStatus([&] { ScaledDotProductAttention(q, k, k); }),
              StatusIs(kInvalid, "query is f64[2, 3], key f64[4, 2]"));
  AttentionOptions options;
  options.mask = Tensor::Ones({5}, DType::kBool);
  EXPECT_THAT(
      CatchToStatus([&] { ScaledDotProductAttention(q, q, q, options); }),
      StatusIs(kInvalid, "mask"));
}

TEST(BatchNorm, MovesItsRunningMomentsInTrainingOnly) {
  const Variable x(Tensor::FromVector<float>({1, 2, 3, 6}, {4, 1}));
  const Tensor mean = Tensor::Zeros({1}), variance = Tensor::Ones({1});
  BatchNorm(x, Variable(), Variable(), mean, variance);
  // The batch's mean is 3, its sample variance 14 / 3.
  EXPECT_FLOAT_EQ(mean.item<float>(), 0.3f);
  EXPECT_FLOAT_EQ(variance.item<float>(), 0.9f + 0.1f * 14 / 3);
  BatchNormOptions options;
  options.is_training = false;
  const Variable y =
      BatchNorm(x, Variable(), Variable(), mean, variance, options);
  EXPECT_FLOAT_EQ(mean.item<float>(), 0.3f);
  EXPECT_FLOAT_EQ(y.value()(0, 0).item<float>(),
                  0.7f / std::sqrt(variance.item<float>() + 1e-5f));
}

TEST(BatchNorm, OfOneElementInEachChannelIsRefusedAndMovesNothing) {
  const Tensor mean = Tensor::Zeros({3}), variance = Tensor::Ones({3});
  const Variable x(Tensor::Ones({1, 3}));
  EXPECT_THAT(CatchToStatus([&] {
                BatchNorm(x, Variable(), Variable(), mean, variance);
              }),
              StatusIs(kInvalid, "have no variance"));
  const Variable rows(Tensor::Arange(6).To(DType::kF32).View({2, 3}));
  const Variable weight(Tensor::Ones({2}));
  EXPECT_THAT(
      CatchToStatus([&] { BatchNorm(rows, weight, {}, mean, variance); }),
      StatusIs(kInvalid, "weight is f32[2]; wanted f32[3]"));
  EXPECT_THAT(mean.ToVector<float>(), Each(0));
}

TEST(LayerNorm, OfALargeMeanLosesNothing) {
  const Variable x(Tensor::FromVector<float>({10000, 10001, 10002}));
  const Tensor y = LayerNorm(x, {3}, Variable(), Variable(), 0).value();
  EXPECT_NEAR(y(0).item<float>(), -std::sqrt(1.5), 1e-6);
  EXPECT_NEAR(y(2).item<float>(), std::sqrt(1.5), 1e-6);
}

TEST(LayerNorm, RefusesShapesThatDoNotFit) {
  const Variable x(Tensor::Ones({2, 3}));
  EXPECT_THAT(CatchToStatus([&] { LayerNorm(x, {2}, {}, {}); }),
              StatusIs(kInvalid,
                       "LayerNorm: x is f32[2, 3]; wanted one that "
                       "ends in [2]"));
  EXPECT_THAT(CatchToStatus([&] { LayerNorm(x, {}, {}, {}); }),
              StatusIs(kInvalid, "LayerNorm"));
}

TEST(Split, HasTheGradientsOfItsParts) {
  const std::vector<Variable> inputs = {Leaf64({2, 7})};
  EXPECT_THAT(CheckGradients(
                  [](Inputs in) {
                    const std::vector<Variable> parts = Split(in[0], 3, 1);
                    return Concat({parts[2] * parts[0], parts[1]}, 1);
                  },
                  inputs),
              IsOk());
  EXPECT_THAT(CheckGradients(
                  [](Inputs in) {
                    const std::vector<Variable> parts = Chunk(in[0], 4, 1);
                    return parts[0] * parts[3];
                  },
                  inputs),
              IsOk());
}

TEST(TopK, SaysWhereItsValuesCameFrom) {
  const Variable x(Tensor::FromVector<float>({3, 9, 5}),
                   /*requires_grad=*/true);
  const TopKVariables best = TopK(x, 2, 0);
  EXPECT_THAT(best.indices.ToVector<int64_t>(), ElementsAre(1, 2));
  Sum(best.values).Backward();
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(0, 1, 1));
}

TEST(CrossEntropy, OfIgnoredTargetsOnlyIsNanAndItsGradientZero) {
  const Variable logits(Tensor::Ones({2, 3}), /*requires_grad=*/true);
  CrossEntropyOptions options;
  options.ignore_index = -100;
  const Tensor targets = Tensor::Full({2}, -100, DType::kI64);
  const Variable loss = CrossEntropy(logits, targets, options);
  EXPECT_TRUE(std::isnan(loss.value().item<float>()));
  loss.Backward();
  EXPECT_THAT(logits.grad().ToVector<float>(), Each(0));
}

TEST(CrossEntropy, RefusesTargetsAndOptionsThatCannotBe) {
  const Variable logits(Tensor::Ones({2, 3, 4}));
  EXPECT_THAT(CatchToStatus([&] {
                CrossEntropy(logits, Tensor::Full({2, 3}, 4, DType::kI64));
              }),
              StatusIs(kInvalid, "target 4 is not one of 4 classes"));
  EXPECT_THAT(CatchToStatus([&] {
                CrossEntropy(logits, Tensor::Zeros({2}, DType::kI64));
              }),
              StatusIs(kInvalid, "wanted [..., classes] and i64 [...]"));
  CrossEntropyOptions options;
  options.label_smoothing = 1.5;
  EXPECT_THAT(
      CatchToStatus([&] {
        CrossEntropy(logits, Tensor::Zeros({2, 3}, DType::kI64), options);
      }),
      StatusIs(kInvalid, "label_smoothing is 1.5"));
}

TEST(Std, OfEqualNumbersHasTheGradientZero) {
  const Variable x(Tensor::Ones({4}), /*requires_grad=*/true);
  Std(x).Backward();
  EXPECT_THAT(x.grad().ToVector<float>(), Each(0));
}

TEST(Pow, AtZeroHasTheGradientsOfPyTorch) {
  const Variable x(Tensor::Zeros({2}), /*requires_grad=*/true);
  Sum(Pow(x, 0)).Backward();
  EXPECT_THAT(x.grad().ToVector<float>(), Each(0));
  x.ClearGradient();
  Sum(Pow(x, 1)).Backward();
  EXPECT_THAT(x.grad().ToVector<float>(), Each(1));
}

TEST(VarGradient, OfAMeanFarAboveTheDeviationErrsByOneRounding) {
  std::vector<float> values;
  for (int i = 0; i < 4001; ++i) {
    values.push_back(1e6f + static_cast<float>((i * 7919) % 17) / 8);
  }
  const Tensor x = Tensor::FromVector<float>(values);
  const Tensor near = Sub(x.To(DType::kF64), 1e6);
  for (const bool is_std : {false, true}) {
    const auto gradient = [&](const Tensor& at) {
      const Variable leaf(at, /*requires_grad=*/true);
      (is_std ? Std(leaf) : Var(leaf)).Backward();
      return leaf.grad().To(DType::kF64);
    };
    const Tensor found = gradient(x), wanted = gradient(near);
    EXPECT_LE(Max(Abs(Sub(found, wanted))).item<double>(),
              2e-7 * Max(Abs(wanted)).item<double>());
  }
}

TEST(VarGradient, OfEqualElementsIsExactly0) {
  const Variable x(Tensor::Full({1001}, 1e7 / 3), /*requires_grad=*/true);
  Var(x).Backward();
  Std(x).Backward();
  EXPECT_EQ(Max(Abs(x.grad())).item<float>(), 0);
}

TEST(Cast, GradientHasTheDtypeOfWhatWasCast) {
  const Variable x(Tensor::FromVector<float>({1.5f, -2}), true);
  const Variable wide = Cast(x, DType::kF64);
  EXPECT_EQ(wide.dtype(), DType::kF64);
  // In f64 a sum that f32 would lose.
  Sum(wide * Variable(Tensor::FromVector<double>({1e9 + 0.25, 3}))).Backward();
  EXPECT_EQ(x.grad().dtype(), DType::kF32);
  EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(1e9f, 3));
}

TEST(Cast, ToAHalfAndBackRoundsTheValueAndPassesTheGradient) {
  for (const DType half : {DType::kF16, DType::kBF16}) {
    const Variable x(Tensor::FromVector<float>({1 + 0x1p-13f, 3}), true);
    const Variable y = Cast(Cast(x, half), DType::kF32);
    EXPECT_THAT(y.value().ToVector<float>(), ElementsAre(1, 3));
    Sum(y * 2).Backward();
    EXPECT_THAT(x.grad().ToVector<float>(), ElementsAre(2, 2));
  }
}

TEST(Cast, ToAnIntegerHasNoHistory) {
  const Variable x(Tensor::FromVector<float>({1.5f}), true);
  EXPECT_FALSE(Cast(x, DType::kI64).requires_grad());
  EXPECT_EQ(Cast(x, DType::kI64).value().item<int64_t>(), 1);
}

}  // namespace
}  // namespace weft
