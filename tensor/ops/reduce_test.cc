#include "weft/tensor/ops/reduce.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

namespace weft {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF64};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The shape of x with size 1 where it is reduced.
Shape KeptShape(const Shape& shape, const std::vector<int64_t>& dims) {
  Shape kept = shape;
  for (const int64_t d : dims) kept[static_cast<size_t>(d)] = 1;
  return dims.empty() ? Shape(shape.size(), 1) : kept;
}

// By a walk over all elements.
template <typename Op>
std::vector<double> Folded(const Tensor& x, const Shape& kept, double start,
                           Op op) {
  const Tensor out = Tensor::Full(kept, start, DType::kF64);
  ForEachIndex(x.shape(), [&](const Shape& at) {
    int64_t place = 0;
    for (size_t d = 0; d < at.size(); ++d) {
      place += kept[d] == 1 ? 0 : at[d] * out.strides()[d];
    }
    double& total = out.data<double>()[place];
    total = op(total, At(x, at));
  });
  return Values(out);
}

// Any view, reversed and overlapping ones too, over any choice of dimensions.
TEST(Reductions, AgreeWithLoopsOverAnyViewAndDims) {
  Generator generator(1);
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kU8}) {
    const Tensor base = Integers({400}, dtype, 0, 9, generator);
    for (int i = 0; i < 1500; ++i) {
      const Tensor x = AnyView(base, AnyShape(4, 5, generator), 20, generator);
      std::vector<int64_t> dims, negative;
      for (int64_t d = 0; d < x.dim(); ++d) {
        if (generator.NextBelow(2) == 0) continue;
        dims.insert(dims.begin(), d);  // In no order.
        negative.push_back(d - x.dim());
      }
      const Shape kept = KeptShape(x.shape(), dims);
      const auto sum =
          Folded(x, kept, 0, [](double a, double b) { return a + b; });
      ExpectValues(Sum(x, dims, true), kept, sum, 0);
      ExpectValues(Sum(x, negative, true), kept, sum, 0);
      EXPECT_EQ(Sum(x, dims).dtype(),
                dtype == DType::kU8 ? DType::kI64 : dtype);
      if (x.numel() == 0) continue;
      ExpectValues(Max(x, dims, true), kept,
                   Folded(x, kept, -kInfinity,
                          [](double a, double b) { return std::fmax(a, b); }),
                   0);
      ExpectValues(Min(x, dims, true), kept,
                   Folded(x, kept, kInfinity,
                          [](double a, double b) { return std::fmin(a, b); }),
                   0);
      if (HasFailure()) {
        FAIL() << x.Describe() << " by " << ShapeText(x.strides()) << " over "
               << ShapeText(dims);
      }
    }
  }
}

// At each place of each length: lanes, what is left of them, blocks.
TEST(Extremes, FindNanAndTheExtremeAtEachPlace) {
  for (const int64_t n : {1, 2, 31, 32, 33, 63, 65, 4095, 4096, 4097, 8200}) {
    const int64_t step = n > 100 ? 61 : 1;
    for (const int64_t stride : {1, 2}) {
      const Tensor x = Tensor::Zeros({n, stride}).Select(1, 0);
      for (int64_t at = (n - 1) % step; at < n; at += step) {
        const Tensor element = x.Slice(0, at, at + 1);
        element.Fill(1);
        ASSERT_EQ(Max(x).item<float>(), 1) << n << " " << at;
        ASSERT_EQ(ArgMax(x, 0).item<int64_t>(), at);
        ASSERT_EQ(Sum(x).item<float>(), 1);
        element.Fill(-kInfinity);
        ASSERT_EQ(Min(x).item<float>(), -kInfinity);
        ASSERT_EQ(ArgMin(x, 0).item<int64_t>(), at);
        ASSERT_FALSE(AllFinite(x));
        element.Fill(kNan);
        ASSERT_TRUE(std::isnan(Max(x).item<float>()));
        ASSERT_TRUE(std::isnan(Min(x).item<float>()));
        ASSERT_EQ(ArgMax(x, 0).item<int64_t>(), at);
        ASSERT_FALSE(AllFinite(x));
        element.Fill(0);
      }
      ASSERT_TRUE(AllFinite(x));
    }
  }
}

TEST(Extremes, OfTheEndsOfTheirDTypeAreThese) {
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Max(Tensor::FromVector<int64_t>({least, least})).item<int64_t>(),
            least);
  EXPECT_EQ(Min(Tensor::FromVector<int64_t>({most, most})).item<int64_t>(),
            most);
  EXPECT_EQ(
      ArgMax(Tensor::FromVector<int64_t>({least, least}), 0).item<int64_t>(),
      0);
  ExpectValues(Max(Tensor::Full({3}, -kInfinity)), {}, {-kInfinity}, 0);
  ExpectValues(Min(Tensor::Full({3}, kInfinity)), {}, {kInfinity}, 0);
  EXPECT_EQ(ArgMin(Tensor::Full({3}, kInfinity), 0).item<int64_t>(), 0);
  EXPECT_EQ(Sum(Tensor::FromVector<int64_t>({most, 1})).item<int64_t>(), least);
}

TEST(Var, AgreesWithTwoPassesForEachCorrection) {
  Generator generator(2);
  for (const DType dtype : kFloats) {
    for (const Lie lie : kLies) {
      const Tensor x = Reals({3, 5, 2}, dtype, generator, lie);
      for (const std::vector<int64_t>& dims :
           {std::vector<int64_t>{}, {1}, {0, 2}, {2}}) {
        const Shape kept = KeptShape(x.shape(), dims);
        const auto sum =
            Folded(x, kept, 0, [](double a, double b) { return a + b; });
        const double count = 30.0 / static_cast<double>(sum.size());
        const Tensor mean = Tensor::FromVector<double>(sum, kept);
        Mul_(mean, 1 / count);
        const Tensor squares = Square(Sub(x.To(DType::kF64), mean));
        const auto total =
            Folded(squares, kept, 0, [](double a, double b) { return a + b; });
        for (const int64_t correction : {0, 1, 2, 3}) {
          std::vector<double> var, deviation;
          for (const double t : total) {
            const double divisor = count - static_cast<double>(correction);
            var.push_back(divisor > 0 ? t / divisor : kNan);
            deviation.push_back(std::sqrt(var.back()));
          }
          const double tolerance = dtype == DType::kF32 ? 1e-7 : 1e-14;
          ExpectValues(Var(x, dims, correction, true), kept, var, tolerance);
          ExpectValues(Std(x, dims, correction, true), kept, deviation,
                       tolerance);
        }
      }
    }
  }
  EXPECT_TRUE(std::isnan(At(Var(Tensor::Zeros({0})), {})));
  EXPECT_TRUE(std::isnan(At(Var(Tensor::Full({2}, kInfinity)), {})));
}

// (expand x, g) = (x, sum_to g), whatever is stretched.
TEST(SumTo, IsTheAdjointOfExpand) {
  Generator generator(3);
  for (int i = 0; i < 500; ++i) {
    const Shape wide = AnyShape(4, 3, generator);
    const size_t lead = generator.NextBelow(wide.size() + 1);
    Shape narrow(wide.begin() + static_cast<std::ptrdiff_t>(lead), wide.end());
    for (int64_t& size : narrow) {
      if (generator.NextBelow(2) == 0) size = 1;
    }
    const Tensor x = Integers(narrow, DType::kF64, -4, 4, generator);
    const Tensor g = Integers(wide, DType::kF64, -4, 4, generator);
    const Tensor back = SumTo(g, narrow);
    ASSERT_EQ(back.shape(), narrow);
    EXPECT_EQ(Sum(Mul(x.Expand(wide), g)).item<double>(),
              Sum(Mul(x, back)).item<double>())
        << ShapeText(narrow) << " to " << ShapeText(wide);
  }
  for (const Shape& bad : {Shape{1, 2, 3}, Shape{2}, Shape{3, 3}, Shape{0}}) {
    EXPECT_EQ(CodeOf([&] {
                SumTo(Tensor::Zeros({2, 3}), bad);
              }),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(ExtremumBackward, TakesAGradientOfAnyLayout) {
  const auto x =
      Tensor::FromVector<double>({1, 1, 0, 2, 3, 3, 3, 0}, {2, 2, 2});
  const Tensor y = Max(x, {2}, true);
  const auto grad = Tensor::FromVector<double>({2, 4, 6, 8}, {2, 2});
  const std::vector<double> wanted = {1, 1, 0, 6, 2, 2, 8, 0};
  ExpectValues(ExtremumBackward(grad.Transpose(0, 1), x, y, {2}), {2, 2, 2},
               wanted, 0);
  ExpectValues(ExtremumBackward(grad.Transpose(0, 1).Unsqueeze(-1), x, y, {-1}),
               {2, 2, 2}, wanted, 0);
  ExpectValues(ExtremumBackward(Tensor::Scalar(3.0), x, Max(x, {}, true)),
               {2, 2, 2}, {0, 0, 0, 0, 1, 1, 1, 0}, 0);
}

TEST(SquaredNorm, DoesNotOverflowAndSeesEachView) {
  EXPECT_DOUBLE_EQ(SquaredNorm(Tensor::Full({4}, 1e30)),
                   4 * std::pow(static_cast<double>(1e30f), 2));
  EXPECT_EQ(
      SquaredNorm(Tensor::Arange(6, DType::kF64).View({2, 3}).Select(1, 2)),
      4 + 25);
  EXPECT_EQ(SquaredNorm(Tensor::Ones({}).Expand({50, 60})), 3000);
  EXPECT_EQ(SquaredNorm(Tensor::Zeros({0})), 0);
  EXPECT_TRUE(AllFinite(Tensor::Zeros({0})));
}

TEST(Reductions, RefuseWhatDoesNotFit) {
  const Tensor x = Tensor::Zeros({2, 3}), none = Tensor::Zeros({0, 3});
  const std::function<void()> bad[] = {
      [&] { Sum(x, {-3}); },
      [&] {
        Sum(x, {1, 1});
      },
      [&] { Sum(Tensor::Scalar(1.0), {0}); },
      [&] { Sum(x.To(DType::kI32)); },
      [&] { Mean(x.To(DType::kI64)); },
      [&] { Var(x.To(DType::kI64)); },
      [&] { Std(x.To(DType::kBool)); },
      [&] { Centered(x.To(DType::kI64)); },
      [&] { Max(x.To(DType::kBool)); },
      [&] { Max(none); },
      [&] { Min(none, {0}); },
      [&] {
        Min(x, {0, -2});
      },
      [&] { ArgMax(none, 0); },
      [&] { ArgMin(x, 2); },
      [&] { ArgMin(Tensor::Scalar(1.0), 0); },
      [&] { ArgMin(x.To(DType::kI8), 0); },
      [&] { AllFinite(x.To(DType::kI64)); },
      [&] { SquaredNorm(x.To(DType::kI8)); },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(Max(none, {1}).shape(), Shape{0});  // Nothing is chosen.
}

std::vector<Tensor> BasesOf(absl::Span<const DType> dtypes) {
  Generator generator(21);
  std::vector<Tensor> bases;
  for (const DType dtype : dtypes) {
    bases.push_back(
        Integers({24}, dtype, 0, dtype == DType::kBool ? 1 : 9, generator));
    if (IsDifferentiable(dtype)) Mul_(bases.back(), 0.37);
  }
  return bases;
}

TEST(OnDevice, ReductionsAreThoseOfTheCpu) {
  using Dims = std::vector<int64_t>;
  using Reduction = std::function<Tensor(const Tensor&, const Dims&, bool)>;
  struct Case {
    const char* name;
    std::vector<DType> dtypes;
    Reduction run;
  };
  const std::vector<DType> floats = {DType::kF32, DType::kF64};
  const std::vector<DType> numbers = {DType::kF32, DType::kF64, DType::kI64,
                                      DType::kU8};
  std::vector<DType> all = numbers;
  all.push_back(DType::kBool);
  const std::vector<Case> cases = {
      {"Sum", all, Sum},
      {"Mean", floats, Mean},
      {"Max", numbers, Max},
      {"Min", numbers, Min},
      {"Centered", floats,
       [](auto& x, auto& dims, bool) { return Centered(x, dims); }},
      {"Var", floats,
       [](auto& x, auto& dims, bool keep) { return Var(x, dims, 1, keep); }},
      {"Var of one", floats,
       [](auto& x, auto& dims, bool keep) { return Var(x, dims, 12, keep); }},
      {"Std", floats,
       [](auto& x, auto& dims, bool keep) { return Std(x, dims, 0, keep); }},
      {"ArgMax", numbers,
       [](auto& x, auto& dims, bool keep) {
         return ArgMax(x, dims.empty() ? 0 : dims[0], keep);
       }},
      {"ArgMin", numbers,
       [](auto& x, auto& dims, bool keep) {
         return ArgMin(x, dims.empty() ? 0 : dims[0], keep);
       }},
      {"ExtremumBackward", floats,
       [](auto& x, auto& dims, bool) {
         const Tensor y = Max(x, dims, true);
         return ExtremumBackward(Add(y, 1), x, y, dims);
       }},
  };
  for (const Case& test : cases) {
    testing::ExpectSameOnDevice(
        test.name, BasesOf(test.dtypes), [&](absl::Span<const Tensor> inputs) {
          std::vector<Tensor> results;
          for (const Tensor& input : inputs) {
            for (const Tensor& x : testing::ViewsOf(input)) {
              for (const Dims& dims : std::vector<Dims>{{}, {0}, {1}, {0, 1}}) {
                results.push_back(test.run(x, dims, false));
                results.push_back(test.run(x, dims, true));
              }
            }
          }
          return results;
        });
  }
}

TEST(OnDevice, SumsOfManyAndOfNothingAreThoseOfTheCpu) {
  Generator generator(22);
  testing::ExpectSameOnDevice(
      "Sum", {Uniform({3, 50, 401}, -1, 1, generator)},
      [](absl::Span<const Tensor> inputs) {
        const Tensor& x = inputs[0];
        const Tensor none = x.Slice(1, 0, 0);
        return std::vector<Tensor>{
            Sum(x),          Sum(x, {1}),       Sum(x, {0, 2}),
            SumTo(x, {401}), SumTo(x, {50, 1}), Sum(none),
            Sum(none, {1}),  Mean(none, {1})};
      });
}

TEST(OnDevice, WhatTheHostGetsIsThatOfTheCpu) {
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Tensor x = BasesOf({DType::kF32})[0].View({4, 6}).Transpose(0, 1);
  EXPECT_EQ(SquaredNorm(x.To(device)), SquaredNorm(x));
  EXPECT_TRUE(AllFinite(x.To(device)));
  x.Select(0, 0).Fill(std::numeric_limits<double>::infinity());
  EXPECT_FALSE(AllFinite(x.To(device)));
  testing::ExpectTwoDevicesRefused(
      "ExtremumBackward", Tensor::Ones({3}), Tensor::Ones({1}),
      [](auto& x, auto& y) { ExtremumBackward(y, x, y); });
}

}  // namespace
}  // namespace weft
