// Long sums in f32: within 10 times the error of PyTorch on the same input.
//
// tests/golden/sums.json has PyTorch's error of each case; tools/make_golden.py
// says what each case is. Errors are relative to the largest element of the
// result computed in f64.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/norm.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMany = int64_t{1} << 20;

// In [0, 1), spread evenly.
Tensor Fractions(const Shape& shape) {
  const Tensor x = Tensor::Empty(shape);
  int64_t i = 0;
  for (float& element : x.span<float>()) {
    const double multiple = static_cast<double>(++i) * 0.6180339887498949;
    element = static_cast<float>(std::fmod(multiple, 1.0));
  }
  return x;
}

double Largest(const Tensor& x) { return Max(Abs(x)).item<double>(); }

struct Case {
  std::string name;
  std::function<Tensor()> make;
  std::function<Tensor(const Tensor& x)> run;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

Tensor BatchNormed(const Tensor& x) {
  const ChannelMoments moments = MomentsOf(x);
  return BatchNorm(x, moments.mean, moments.variance, {}, {}).y;
}

std::vector<Case> Cases() {
  const auto leading = [] { return Fractions({kMany, 4}); };
  const auto line = [] { return Fractions({kMany}); };
  const auto scores = [] { return Mul(Fractions({kMany}), 4); };
  const auto planes = [] { return Fractions({4096, 4, 64}); };
  const auto sum_leading = [](const Tensor& x) { return Sum(x, {0}); };
  const auto log_softmax = [](const Tensor& x) { return LogSoftmax(x, 0); };
  return {
      {"all", line, [](const Tensor& x) { return Sum(x); }},
      {"equal terms",
       [] {
         return Tensor::Full({kMany, 3}, 0.1);
       },
       sum_leading},
      {"leading", leading, sum_leading},
      {"leading wide",
       [] {
         return Fractions({1 << 14, 300});
       },
       sum_leading},
      {"last",
       [] {
         return Fractions({4, kMany});
       },
       [](const Tensor& x) { return Sum(x, {1}); }},
      {"strided",
       [] {
         return Fractions({kMany, 3});
       },
       [](const Tensor& x) { return Sum(x.Select(1, 1)); }},
      {"outer and inner", planes,
       [](const Tensor& x) {
         return Sum(x, {0, 2});
       }},
      {"outer and short inner",
       [] {
         return Fractions({kMany / 2, 3, 2});
       },
       [](const Tensor& x) {
         return Sum(x, {0, 2});
       }},
      {"mean", leading, [](const Tensor& x) { return Mean(x, {0}); }},
      {"bias of Linear", leading, sum_leading},
      {"log_softmax 50257", [] { return Mul(Fractions({50257}), 4); },
       log_softmax},
      {"log_softmax", scores, log_softmax},
      {"softmax", scores, [](const Tensor& x) { return Softmax(x, 0); }},
      {"log_softmax backward", line,
       [](const Tensor& x) {
         return LogSoftmaxBackward(x, LogSoftmax(Mul(x, 4), 0), 0);
       }},
      {"softmax backward", line,
       [](const Tensor& x) {
         return SoftmaxBackward(x, Softmax(Mul(x, 4), 0), 0);
       }},
      {"layer_norm",
       [] {
         return Fractions({2, kMany});
       },
       [](const Tensor& x) { return LayerNorm(x, {kMany}, {}, {}).y; }},
      {"batch_norm", leading, BatchNormed},
      {"batch_norm planes", planes, BatchNormed},
  };
}

class LongSum : public ::testing::TestWithParam<Case> {};

TEST_P(LongSum, ErrsAtMostTenTimesAsMuchAsPyTorch) {
  static const Json* golden =
      new Json(Json::parse(std::ifstream("tests/golden/sums.json")));
  ASSERT_TRUE(golden->contains(GetParam().name));
  // An error of PyTorch's below one rounding is luck.
  const double theirs =
      std::max((*golden)[GetParam().name].get<double>(), 0x1p-24);
  const Tensor x = GetParam().make();
  const Tensor wanted = GetParam().run(x.To(DType::kF64));
  const Tensor found = GetParam().run(x).To(DType::kF64);
  const double error = Largest(Sub(found, wanted)) / Largest(wanted);
  RecordProperty("error", std::to_string(error / theirs));
  EXPECT_LE(error, 10 * theirs);
}

std::string TestName(const ::testing::TestParamInfo<Case>& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Each, LongSum, ::testing::ValuesIn(Cases()), TestName);

// A mean far above the deviation: relative error of f32 against f64, whose own
// mean is exact enough here.
Tensor FarFromZero(double mean, int64_t n, DType dtype = DType::kF32) {
  const Tensor x = Tensor::Empty({3, n}, DType::kF64);
  int64_t i = 0;
  for (double& element : x.span<double>()) {
    // In f32 a multiple of 1 / 8 up to 2^21.
    element = mean + static_cast<double>((++i * 7919) % 17) / 8;
  }
  return x.To(dtype);
}

double RelativeError(const Tensor& found, const Tensor& wanted) {
  return Largest(Sub(found.To(DType::kF64), wanted)) / Largest(wanted);
}

TEST(Var, OfAMeanFarAboveTheDeviationErrsByOneRounding) {
  for (const double mean : {0.0, 1e3, 1e5, 2e6}) {
    for (const int64_t n : {5, 1000, 1 << 18}) {
      const Tensor x = FarFromZero(mean, n);
      // Whole eighths below 2^21: sums in f64 are exact.
      const Tensor near = Sub(x.To(DType::kF64), mean);
      EXPECT_LE(RelativeError(Var(x, {1}), Var(near, {1})), 6e-8) << mean;
      EXPECT_LE(RelativeError(Std(x, {1}), Std(near, {1})), 1.2e-7) << mean;
      EXPECT_LE(RelativeError(Var(x, {0, 1}, 0), Var(near, {0, 1}, 0)), 6e-8);
    }
  }
  // f64: a deviation of 1e-9 of the mean.
  const Tensor wide = FarFromZero(1e9, 1000, DType::kF64);
  EXPECT_LE(RelativeError(Var(wide, {1}), Var(Sub(wide, 1e9), {1})), 1e-14);
}

TEST(Var, OfEqualElementsIsExactly0) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const double value : {0.1, 1e7 / 3, -1e30 / 7}) {
      for (const int64_t n : {2, 3, 1000, 100001}) {
        const Tensor x = Tensor::Full({n, 2}, value, dtype);
        EXPECT_EQ(Largest(Var(x, {0}).To(DType::kF64)), 0) << value << " " << n;
        EXPECT_EQ(Largest(Std(x).To(DType::kF64)), 0) << value << " " << n;
      }
    }
  }
}

TEST(Norm, OfAMeanFarAboveTheDeviationErrsByItsRounding) {
  for (const double mean : {1e3, 1e5, 2e6}) {
    for (const int64_t n : {50, 1000, 1 << 16}) {
      const Tensor x = FarFromZero(mean, n);
      const Tensor near = Sub(x.To(DType::kF64), mean);
      // What is left of a mean that is rounded to f32, by the deviation.
      const double rounding = mean * 0x1p-24 / 0.6 + 1e-6;
      EXPECT_LE(RelativeError(LayerNorm(x, {n}, {}, {}).y,
                              LayerNorm(near, {n}, {}, {}).y),
                rounding)
          << mean << " " << n;
      const Tensor columns = x.Transpose(0, 1), exact = near.Transpose(0, 1);
      const ChannelMoments moments = MomentsOf(columns);
      const ChannelMoments wanted = MomentsOf(exact);
      EXPECT_LE(RelativeError(moments.variance, wanted.variance), 1e-6)
          << mean << " " << n;
      EXPECT_LE(RelativeError(BatchNormed(columns), BatchNormed(exact)),
                rounding)
          << mean << " " << n;
    }
  }
}

// In the order of memory a sum of many views must not depend on the layout.
TEST(Sum, OfEveryOrderOfDimensionsIsExactForWholeNumbers) {
  const Tensor x = Tensor::Empty({5, 6, 7, 3});
  int64_t i = 0;
  for (float& element : x.span<float>()) element = static_cast<float>(i++ % 11);
  Shape order = {0, 1, 2, 3};
  do {
    const Tensor view = x.Permute(order);
    for (int mask = 1; mask < 16; ++mask) {
      Shape dims;
      Shape of_x;
      for (int64_t d = 0; d < 4; ++d) {
        if ((mask >> d & 1) == 0) continue;
        dims.push_back(d);
        of_x.push_back(order[d]);
      }
      const Tensor found = Sum(view, dims, true);
      const Tensor wanted = Sum(x.To(DType::kI64), of_x, true).Permute(order);
      EXPECT_EQ(found.To(DType::kI64).ToVector<int64_t>(),
                wanted.ToVector<int64_t>());
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

// In f32 against f64, in units in the last place of what the header names.
TEST(Gelu, ErrorIsAFewUnitsInTheLastPlaceOfX) {
  std::vector<float> numbers;
  for (float x = 1e-20f; x < 20; x *= 1.0003f) {
    numbers.push_back(x);
    numbers.push_back(-x);
  }
  const Tensor x = Tensor::FromVector(numbers);
  const Tensor ones = Tensor::Ones(x.shape());
  const Tensor wide = x.To(DType::kF64);
  const auto worst = [](const Tensor& got, const Tensor& wanted,
                        const Tensor& scale) {
    const Tensor error = Abs(Sub(got.To(DType::kF64), wanted));
    double largest = 0;
    for (int64_t i = 0; i < error.numel(); ++i) {
      const float size = std::fabs(scale.data<float>()[i]);
      const double unit = double{std::nextafter(size, HUGE_VALF)} - size;
      largest = std::max(largest, error.data<double>()[i] / unit);
    }
    return largest;
  };
  for (const GeluKind kind : {GeluKind::kExact, GeluKind::kTanh}) {
    EXPECT_LE(worst(Gelu(x, kind), Gelu(wide, kind), x), 3);
    EXPECT_LE(worst(GeluBackward(ones, x, kind),
                    GeluBackward(ones.To(DType::kF64), wide, kind), ones),
              kind == GeluKind::kExact ? 3 : 6);
  }
}

// So that no chain of additions is long over many rows.
TEST(LayerNorm, GradientsOfParametersOverManyRowsLoseLittle) {
  const Tensor x = Fractions({20000, 24});
  const Tensor grad = Add(Mul(Fractions({24, 20000}).Transpose(0, 1), 0.5), 1);
  const Tensor weight = Fractions({24});
  const RowNormResult forward = LayerNorm(x, {24}, weight, weight);
  const NormGradients got =
      RowNormBackward(grad, x, forward, {24}, weight, true);
  const Tensor wide = x.To(DType::kF64), wide_weight = weight.To(DType::kF64);
  const NormGradients wanted = RowNormBackward(
      grad.To(DType::kF64), wide, LayerNorm(wide, {24}, wide_weight, {}), {24},
      wide_weight, true);
  const auto error = [](const Tensor& a, const Tensor& b) {
    return Largest(Sub(a.To(DType::kF64), b)) / Largest(b);
  };
  EXPECT_LT(error(got.bias, wanted.bias), 5e-7);
  EXPECT_LT(error(got.x, wanted.x), 5e-6);
  EXPECT_LT(error(got.weight, wanted.weight), 5e-6);
}

}  // namespace
}  // namespace weft
