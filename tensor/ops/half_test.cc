// Operations on f16 and bf16: each gives what f32 gives, rounded once.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/attention.h"
#include "weft/tensor/ops/conv.h"
#include "weft/tensor/ops/einsum.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/ops/norm.h"
#include "weft/tensor/ops/pool.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/scan.h"
#include "weft/tensor/ops/testing/same_on_device.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kHalves[] = {DType::kF16, DType::kBF16};

// An operation on x and y, [4, 6] each: what it returns or has written to.
struct Case {
  const char* name;
  std::function<std::vector<Tensor>(const Tensor& x, const Tensor& y)> run;
};

// Those that return one tensor.
Case Of(const char* name,
        std::function<Tensor(const Tensor& x, const Tensor& y)> run) {
  return {name, [run](const Tensor& x, const Tensor& y) {
            return std::vector<Tensor>{run(x, y)};
          }};
}

// Those that write into a copy of x.
Case InPlace(const char* name,
             std::function<void(const Tensor& x, const Tensor& y)> run) {
  return {name, [run](const Tensor& x, const Tensor& y) {
            const Tensor target = x.Clone();
            run(target, y);
            return std::vector<Tensor>{target};
          }};
}

std::vector<Case> ElementwiseCases() {
  using T = const Tensor&;
  return {
      Of("Add", [](T x, T y) { return Add(x, y); }),
      Of("Add broadcast", [](T x, T y) { return Add(x, y.Select(0, 1)); }),
      Of("Sub number", [](T x, T) { return Sub(0.3, x); }),
      Of("Mul", [](T x, T y) { return Mul(x, y); }),
      Of("Mul number", [](T x, T) { return Mul(x, 1e-3); }),
      Of("Div", [](T x, T y) { return Div(x, y); }),
      Of("Maximum", [](T x, T y) { return Maximum(x, y); }),
      Of("Neg", [](T x, T) { return Neg(x); }),
      Of("Clamp", [](T x, T) { return Clamp(x, -0.3, 0.7); }),
      Of("Exp", [](T x, T) { return Exp(x); }),
      Of("Log", [](T x, T) { return Log(Abs(x)); }),
      Of("Tanh", [](T x, T) { return Tanh(x); }),
      Of("Gelu", [](T x, T) { return Gelu(x); }),
      Of("GeluBackward",
         [](T x, T y) { return GeluBackward(y, x, GeluKind::kTanh); }),
      Of("ReluBackward", [](T x, T y) { return ReluBackward(y, x); }),
      Of("Less", [](T x, T y) { return Less(x, y); }),
      Of("Equal", [](T x, T) { return Equal(x, x); }),
      Of("Greater number", [](T x, T) { return Greater(x, 0.1); }),
      Of("Where", [](T x, T y) { return Where(Less(x, y), x, y); }),
      InPlace("Add_", [](T x, T y) { Add_(x, y); }),
      InPlace("Div_", [](T x, T y) { Div_(x, y); }),
      InPlace("Mul_ number", [](T x, T) { Mul_(x, 0.7); }),
      InPlace("Axpy_", [](T x, T y) { Axpy_(x, 0.3, y); }),
      InPlace("Relu_", [](T x, T) { Relu_(x); }),
  };
}

std::vector<Case> FoldingCases() {
  using T = const Tensor&;
  return {
      Of("Sum", [](T x, T) { return Sum(x, {1}); }),
      Of("Mean", [](T x, T) { return Mean(x); }),
      Of("Max", [](T x, T) { return Max(x, {0}); }),
      Of("ArgMax", [](T x, T) { return ArgMax(x, 1); }),
      Of("SumTo", [](T x, T) { return SumTo(x, {6}); }),
      Of("Cumsum", [](T x, T) { return Cumsum(x, 1); }),
      {"TopK",
       [](T x, T) -> std::vector<Tensor> {
         const TopKResult best = TopK(x, 2, 1);
         return {best.values, best.indices};
       }},
      Of("Softmax", [](T x, T) { return Softmax(x, 1); }),
      Of("LogSoftmaxBackward",
         [](T x, T y) { return LogSoftmaxBackward(y, x, 0); }),
      Of("MseLoss", [](T x, T y) { return MseLoss(x, y); }),
      Of("HuberLossBackward",
         [](T x, T y) {
           return HuberLossBackward(y, x, y, 0.5, Reduction::kNone);
         }),
      Of("BceWithLogits", [](T x, T y) { return BceWithLogits(x, Abs(y)); }),
      Of("CrossEntropy",
         [](T x, T) {
           return CrossEntropy(x, Tensor::Arange(4).To(x.device())).loss;
         }),
      Of("NllLoss",
         [](T x, T) { return NllLoss(x, Tensor::Arange(4).To(x.device())); }),
      Of("LayerNorm",
         [](T x, T y) {
           return LayerNorm(x, {6}, y.Select(0, 0), y.Select(0, 1)).y;
         }),
      Of("RmsNorm", [](T x, T y) { return RmsNorm(x, {6}, y.Select(0, 0)).y; }),
      {"LayerNorm gradients",
       [](T x, T y) -> std::vector<Tensor> {
         const Tensor weight = y.Select(0, 0);
         const NormGradients to = RowNormBackward(
             y, x, LayerNorm(x, {6}, weight, weight), {6}, weight, true);
         return {to.x, to.weight, to.bias};
       }},
      {"BatchNorm",
       [](T x, T y) -> std::vector<Tensor> {
         const ChannelMoments moments = MomentsOf(x);
         const Tensor weight = y.Select(0, 0);
         const BatchNormResult normed =
             BatchNorm(x, moments.mean, moments.variance, weight, weight);
         const NormGradients to =
             BatchNormBackward(y, x, normed, weight, true, true);
         return {normed.y, to.x, to.weight, to.bias};
       }},
  };
}

std::vector<Case> PartCases() {
  using T = const Tensor&;
  const auto rows = [](T x) {
    return Tensor::FromVector<int64_t>({2, 0, 2}).To(x.device());
  };
  const auto bags = [](T x) {
    return Tensor::FromVector<int64_t>({0, 1}).To(x.device());
  };
  return {
      Of("Einsum", [](T x, T y) { return Einsum("ij,kj->ik", x, y); }),
      {"Attention",
       [](T x, T y) -> std::vector<Tensor> {
         const Tensor out = Tensor::EmptyLike(x);
         AttentionScores scores;
         scores.scale = 0.4;
         const Tensor weights = AttentionInto(out, x, y, y, scores);
         const AttentionGradients to = {
             Tensor::EmptyLike(x), Tensor::EmptyLike(x), Tensor::EmptyLike(x)};
         AttentionBackwardInto(to, y, x, y, y, weights, scores);
         return {out, to.q, to.k, to.v};
       }},
      {"Conv2d",
       [](T x, T y) -> std::vector<Tensor> {
         const Tensor image = x.Reshape({1, 1, 4, 6});
         const Tensor kernel = y.Slice(0, 0, 2).Reshape({2, 1, 2, 3});
         const Tensor bias = y.Select(0, 3).Slice(0, 0, 2);
         const Tensor out = Conv2d(image, kernel, bias);
         const Conv2dGradients to = {Tensor::EmptyLike(image.Contiguous()),
                                     Tensor::EmptyLike(kernel.Contiguous()),
                                     Tensor::EmptyLike(bias.Contiguous())};
         Conv2dBackwardInto(to, out, image, kernel, {});
         return {out, to.x, to.weight, to.bias};
       }},
      {"MaxPool2d",
       [](T x, T) -> std::vector<Tensor> {
         const Tensor image = x.Reshape({1, 1, 4, 6});
         const MaxPool2dResult best = MaxPool2d(image, {});
         return {best.values, best.indices,
                 MaxPool2dBackward(best.values, best.indices, image.shape())};
       }},
      {"AvgPool2d",
       [](T x, T) -> std::vector<Tensor> {
         const Tensor image = x.Reshape({1, 1, 4, 6});
         const Tensor mean = AvgPool2d(image, {});
         return {mean, AvgPool2dBackward(mean, image.shape(), {})};
       }},
      Of("EmbeddingBag",
         [=](T x, T) {
           return EmbeddingBag(x, rows(x), bags(x), BagMode::kMean);
         }),
      Of("EmbeddingBagBackward",
         [=](T x, T) {
           return EmbeddingBagBackward(x.Slice(0, 0, 2), rows(x), bags(x),
                                       BagMode::kMean, 4)
               .values;
         }),
      Of("ToDense",
         [=](T x, T) {
           return ToDense({rows(x), x.Slice(0, 0, 3), 4});
         }),
      Of("Coalesce",
         [=](T x, T) {
           return Coalesce({rows(x), x.Slice(0, 0, 3), 4}).values;
         }),
      InPlace("IndexAdd_",
              [=](T x, T y) { IndexAdd_(x, 0, rows(x), y.Slice(0, 0, 3)); }),
  };
}

std::vector<Case> AllCases() {
  std::vector<Case> all = ElementwiseCases();
  for (const auto& more : {FoldingCases(), PartCases()}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

// By construction, so bit for bit. (Of what is composed, as Log of Abs, each
// part is rounded, and here all but the last are exact.)
TEST(HalfOperations, GiveWhatF32GivesRoundedOnce) {
  for (const DType dtype : kHalves) {
    for (const Lie lie : kLies) {
      Generator generator(7);
      const Tensor x = Reals({4, 6}, dtype, generator, lie);
      const Tensor y = Reals({4, 6}, dtype, generator, lie);
      for (const Case& one : AllCases()) {
        const std::vector<Tensor> found = one.run(x, y);
        const std::vector<Tensor> wide =
            one.run(internal::Wide(x), internal::Wide(y));
        ASSERT_EQ(found.size(), wide.size());
        for (size_t i = 0; i < found.size(); ++i) {
          const bool is_real = wide[i].dtype() == DType::kF32;
          EXPECT_EQ(found[i].dtype(), is_real ? dtype : wide[i].dtype());
          // Gradients are computed from what the forward pass has rounded.
          const bool is_exact = i == 0;
          ExpectSame(found[i].To(DType::kF64),
                     wide[i].To(found[i].dtype()).To(DType::kF64),
                     is_exact ? 0 : 0.05);
          if (::testing::Test::HasFailure()) {
            FAIL() << one.name << ", result " << i << " of " << Name(dtype);
          }
        }
      }
    }
  }
}

TEST(HalfOperations, GiveTheSameOnADevice) {
  for (const DType dtype : kHalves) {
    Generator generator(8);
    const Tensor x = Reals({4, 6}, dtype, generator);
    const Tensor y = Reals({4, 6}, dtype, generator);
    for (const Case& one : AllCases()) {
      testing::ExpectSameOnDevice(
          one.name, {x, y},
          [&](absl::Span<const Tensor> in) { return one.run(in[0], in[1]); });
    }
  }
}

// The distance of two neighbours of `dtype` at x.
double Ulp(DType dtype, double x) {
  const int fraction = dtype == DType::kF16 ? 10 : 7;
  const int least = dtype == DType::kF16 ? -14 : -126;
  return std::ldexp(
      1.0, std::max(std::ilogb(x == 0 ? 1e-300 : x), least) - fraction);
}

// Sums in f32, one rounding: oneDNN's products of bf16 too.
TEST(HalfProducts, AreWithinHalfAUlpOfF64) {
  Generator generator(9);
  const int64_t sizes[][3] = {{1, 1, 1},  {3, 0, 4},    {2, 5, 3},
                              {1, 70, 9}, {33, 65, 17}, {64, 256, 96}};
  for (const DType dtype : kHalves) {
    for (const auto& [m, k, n] : sizes) {
      for (const Lie lie : kLies) {
        const Tensor a = Reals({m, k}, dtype, generator, lie);
        const Tensor b = Reals({n, k}, dtype, generator, lie);
        const Tensor bias = Reals({n}, dtype, generator);
        const Tensor wide =
            MatMul(a.To(DType::kF64), b.To(DType::kF64).Transpose(0, 1));
        const Tensor y = Linear(a, b, bias);
        const Tensor wanted = Add(wide, bias.To(DType::kF64));
        ASSERT_EQ(y.dtype(), dtype);
        ASSERT_EQ(y.shape(), wanted.shape());
        const std::vector<double> found = Values(y), reals = Values(wanted);
        for (size_t i = 0; i < found.size(); ++i) {
          // The rest is f32's: terms are near 1, and sums up to 3 sqrt(k).
          ASSERT_NEAR(found[i], reals[i],
                      0.5 * Ulp(dtype, reals[i]) + 1e-6 * (1 + k))
              << m << "x" << k << "x" << n << ", element " << i;
        }
        const Tensor sum = MatMul(a, b.Transpose(0, 1));
        const Tensor into = Tensor::Ones({m, n}, dtype);
        MatMulAdd_(into, a, b.Transpose(0, 1));
        const std::vector<double> alone = Values(sum), added = Values(into);
        const std::vector<double> products = Values(wide);
        for (size_t i = 0; i < alone.size(); ++i) {
          ASSERT_NEAR(alone[i], products[i],
                      0.5 * Ulp(dtype, products[i]) + 1e-6 * (1 + k));
          ASSERT_NEAR(added[i], products[i] + 1,
                      0.5 * Ulp(dtype, products[i] + 1) + 1e-6 * (1 + k));
        }
        MatMulInto(into, a, b.Transpose(0, 1));
        ExpectSame(into, sum);
      }
    }
  }
}

TEST(HalfOperations, RoundTiesToEvenAndOverflowToInfinity) {
  const auto sum = [](DType dtype, float a, float b) {
    const Tensor x = Tensor::Scalar(a).To(dtype);
    return Add(x, Tensor::Scalar(b).To(dtype)).To(DType::kF32).item<float>();
  };
  EXPECT_EQ(sum(DType::kBF16, 1, 0x1p-8f), 1);
  EXPECT_EQ(sum(DType::kBF16, 1 + 0x1p-7f, 0x1p-8f), 1 + 0x1p-6f);
  EXPECT_EQ(sum(DType::kF16, 1, 0x1p-11f), 1);
  EXPECT_EQ(sum(DType::kF16, 1 + 0x1p-10f, 0x1p-11f), 1 + 0x1p-9f);
  EXPECT_EQ(sum(DType::kF16, 65504, 15), 65504);
  EXPECT_EQ(sum(DType::kF16, 65504, 16), kInfinity);
  EXPECT_EQ(sum(DType::kF16, -65504, -16), -kInfinity);
  EXPECT_EQ(sum(DType::kF16, 0x1p-24f, 0x1p-24f), 0x1p-23f);  // subnormal
  EXPECT_EQ(sum(DType::kBF16, 3e38f, 3e38f), kInfinity);
}

TEST(HalfOperations, KeepNaNAndInfinity) {
  for (const DType dtype : kHalves) {
    const Tensor x =
        Tensor::FromVector<float>({NAN, kInfinity, -kInfinity, 1}).To(dtype);
    const auto of = [&](const Tensor& y) {
      EXPECT_EQ(y.dtype(), dtype);
      return Values(y);
    };
    using ::testing::IsNan;
    EXPECT_THAT(of(Relu(x)), ElementsAre(IsNan(), kInfinity, 0, 1));
    EXPECT_THAT(of(Sub(x, x)), ElementsAre(IsNan(), IsNan(), IsNan(), 0));
    EXPECT_THAT(of(Exp(x))[2], 0);
    EXPECT_THAT(of(Sum(x)), ElementsAre(IsNan()));
    EXPECT_THAT(of(Max(x)), ElementsAre(IsNan()));
    EXPECT_EQ(of(Max(x.Slice(0, 1, 4))), std::vector<double>{kInfinity});
    EXPECT_FALSE(AllFinite(x));
    EXPECT_TRUE(AllFinite(x.Slice(0, 3, 4)));
    const Tensor row = x.View({1, 4});
    EXPECT_THAT(of(MatMul(row, Tensor::Ones({4, 1}, dtype))),
                ElementsAre(IsNan()));
    EXPECT_THAT(of(MatMul(row.Slice(1, 1, 2), Tensor::Ones({1, 1}, dtype))),
                ElementsAre(kInfinity));
  }
}

// Sums of f16 are not themselves f16: 4096 ones would stop at 2048.
TEST(HalfOperations, AccumulateInF32) {
  for (const DType dtype : kHalves) {
    const Tensor ones = Tensor::Ones({64, 64}, dtype);
    EXPECT_EQ(Values(Sum(ones)), std::vector<double>{4096});
    EXPECT_EQ(Values(Mean(Mul(ones, 32.0))), std::vector<double>{32});
    EXPECT_EQ(SquaredNorm(ones), 4096);
  }
}

TEST(HalfOperations, RefuseTwoDTypes) {
  const Tensor f16 = Tensor::Ones({2, 2}, DType::kF16);
  const Tensor bf16 = Tensor::Ones({2, 2}, DType::kBF16);
  const Tensor f32 = Tensor::Ones({2, 2});
  EXPECT_THAT(Complaint([&] { Add(f16, bf16); }),
              HasSubstr("lhs is f16[2, 2], rhs is bf16[2, 2]; dtypes differ"));
  EXPECT_THAT(Complaint([&] { MatMul(bf16, f32); }), HasSubstr("dtypes"));
  EXPECT_THAT(Complaint([&] { Linear(bf16, f32, {}); }), HasSubstr("bf16"));
  EXPECT_THAT(Complaint([&] { Axpy_(f16, 1, f32); }), HasSubstr("dtypes"));
  EXPECT_THAT(Complaint([&] { SoftmaxBackward(f16, f32, 0); }),
              HasSubstr("dtype"));
  EXPECT_THAT(Complaint([&] { MseLoss(bf16, f32); }), HasSubstr("dtype"));
  EXPECT_THAT(Complaint([&] { LayerNorm(f16, {2}, f32.Select(0, 0), {}); }),
              HasSubstr("weight"));
}

}  // namespace
}  // namespace weft
