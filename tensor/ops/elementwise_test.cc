#include "weft/tensor/ops/elementwise.h"

#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::ExpectSameOnDevice;
using ::weft::testing::ExpectTwoDevicesRefused;
using ::weft::testing::ViewsOf;

constexpr DType kNumbers[] = {DType::kF32, DType::kF64, DType::kI64,
                              DType::kU8};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct ShapePair {
  Shape a, b, result;
};

const ShapePair kPairs[] = {
    {{}, {}, {}},
    {{5}, {5}, {5}},
    {{70}, {}, {70}},
    {{}, {3, 4}, {3, 4}},
    {{3, 4}, {4}, {3, 4}},
    {{3, 1}, {1, 4}, {3, 4}},
    {{2, 3, 40}, {3, 1}, {2, 3, 40}},
    {{4, 1, 3}, {2, 1}, {4, 2, 3}},
    {{0}, {1}, {0}},
    {{2, 0, 3}, {3}, {2, 0, 3}},
};

// The element of `x` that meets `index` of the broadcast shape.
double BroadcastAt(const Tensor& x, const Shape& index) {
  Shape own;
  for (int d = 0; d < x.dim(); ++d) {
    const int64_t i = index[index.size() - x.dim() + d];
    own.push_back(x.shape()[d] == 1 ? 0 : i);
  }
  return At(x, own);
}

struct BinaryCase {
  const char* name;
  Tensor (*op)(const Tensor&, const Tensor&);
  double (*reference)(double, double);
  bool is_comparison;
};

const BinaryCase kBinary[] = {
    {"Add", Add, [](double a, double b) { return a + b; }, false},
    {"Sub", Sub, [](double a, double b) { return a - b; }, false},
    {"Mul", Mul, [](double a, double b) { return a * b; }, false},
    {"Maximum", Maximum, [](double a, double b) { return std::fmax(a, b); },
     false},
    {"Minimum", Minimum, [](double a, double b) { return std::fmin(a, b); },
     false},
    {"Equal", Equal, [](double a, double b) { return double(a == b); }, true},
    {"NotEqual", NotEqual, [](double a, double b) { return double(a != b); },
     true},
    {"Less", Less, [](double a, double b) { return double(a < b); }, true},
    {"LessEqual", LessEqual, [](double a, double b) { return double(a <= b); },
     true},
    {"Greater", Greater, [](double a, double b) { return double(a > b); },
     true},
    {"GreaterEqual", GreaterEqual,
     [](double a, double b) { return double(a >= b); }, true},
};

class BinaryTest : public ::testing::TestWithParam<BinaryCase> {};

TEST_P(BinaryTest, AgreesWithScalarsInEveryShapeAndLayout) {
  const BinaryCase& test = GetParam();
  Generator generator(1);
  for (const DType dtype : kNumbers) {
    for (const ShapePair& shapes : kPairs) {
      for (const Lie lie : kLies) {
        for (const Lie other : kLies) {
          // From 4 to 8 and 1 to 4: a u8 difference does not wrap.
          const Tensor a = Integers(shapes.a, dtype, 4, 8, generator, lie);
          const Tensor b = Integers(shapes.b, dtype, 1, 4, generator, other);
          std::vector<double> wanted;
          ForEachIndex(shapes.result, [&](const Shape& index) {
            wanted.push_back(
                test.reference(BroadcastAt(a, index), BroadcastAt(b, index)));
          });
          const Tensor found = test.op(a, b);
          EXPECT_EQ(found.dtype(), test.is_comparison ? DType::kBool : dtype);
          EXPECT_TRUE(found.is_contiguous());
          ExpectValues(found, shapes.result, wanted, 0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BinaryTest, ::testing::ValuesIn(kBinary),
                         [](const auto& info) { return info.param.name; });

TEST(Div, DividesFloatsAndTruncatesIntegers) {
  const auto f = Tensor::FromVector<float>({1, -3, 0}) /
                 Tensor::FromVector<float>({4, 2, 0});
  ExpectValues(f, {3}, {0.25, -1.5, kNan}, 0);
  const auto i = Tensor::FromVector<int64_t>({7, -7}) /
                 Tensor::FromVector<int64_t>({2, 2});
  ExpectValues(i, {2}, {3, -3}, 0);
}

TEST(Div, RefusesAnIntegerDivisorOfZero) {
  const auto one = Tensor::FromVector<int64_t>({1});
  EXPECT_THAT(Complaint([&] { Div(one, Tensor::Zeros({1}, DType::kI64)); }),
              HasSubstr("division by 0"));
  EXPECT_THAT(Complaint([&] { Div(one, 0.0); }), HasSubstr("division by 0"));
}

TEST(Integers, WrapInsteadOfOverflowing) {
  const int64_t low = std::numeric_limits<int64_t>::min();
  const int64_t high = std::numeric_limits<int64_t>::max();
  const auto x = Tensor::FromVector<int64_t>({low, high});
  EXPECT_EQ(Add(x, x).ToVector<int64_t>(), (std::vector<int64_t>{0, -2}));
  EXPECT_EQ(Neg(x).ToVector<int64_t>(), (std::vector<int64_t>{low, -high}));
  EXPECT_EQ(Div(x, -1).ToVector<int64_t>(), (std::vector<int64_t>{low, -high}));
  const auto bytes = Tensor::FromVector<uint8_t>({200});
  EXPECT_EQ(Add(bytes, bytes).item<uint8_t>(), 144);
}

TEST(Numbers, StandOnEitherSide) {
  const auto x = Tensor::FromVector<double>({1, 2, 4});
  ExpectValues(x + 1, {3}, {2, 3, 5}, 0);
  ExpectValues(1 - x, {3}, {0, -1, -3}, 0);
  ExpectValues(x - 1, {3}, {0, 1, 3}, 0);
  ExpectValues(2 * x, {3}, {2, 4, 8}, 0);
  ExpectValues(x / 2, {3}, {0.5, 1, 2}, 0);
  ExpectValues(8 / x, {3}, {8, 4, 2}, 0);
  ExpectValues(Greater(x, 1), {3}, {0, 1, 1}, 0);
  ExpectValues(Less(x, 2), {3}, {1, 0, 0}, 0);
  ExpectValues(Equal(x, 2), {3}, {0, 1, 0}, 0);
  ExpectValues(GreaterEqual(x, 2), {3}, {0, 1, 1}, 0);
}

TEST(Numbers, MustBeValuesOfTheDType) {
  const auto x = Tensor::FromVector<int64_t>({1});
  EXPECT_THAT(Complaint([&] { Add(x, 0.5); }),
              HasSubstr("Add: 0.5 is not a value of dtype i64"));
  EXPECT_THAT(Complaint([&] { Add(Tensor::Zeros({1}, DType::kU8), 256); }),
              HasSubstr("256 is not a value of dtype u8"));
}

TEST(Elementwise, ErrorNamesTheMismatch) {
  const Tensor f = Tensor::Zeros({2, 3});
  EXPECT_THAT(Complaint([&] {
                Add(f, Tensor::Zeros({2, 3}, DType::kF64));
              }),
              HasSubstr("Add: lhs is f32[2, 3], rhs is f64[2, 3]"));
  EXPECT_THAT(Complaint([&] { Mul(f, Tensor::Zeros({4})); }),
              HasSubstr("sizes 3 and 4 differ"));
  EXPECT_THAT(Complaint([&] { Add_(Tensor::Zeros({3}), f); }),
              HasSubstr("does not expand to [3]"));
  const Tensor b = Tensor::Zeros({1}, DType::kBool);
  EXPECT_THAT(Complaint([&] { Add(b, b); }), HasSubstr("dtype is bool"));
  EXPECT_THAT(Complaint([&] { Exp(Tensor::Zeros({1}, DType::kI64)); }),
              HasSubstr("wanted f32 or f64"));
}

struct UnaryCase {
  const char* name;
  Tensor (*op)(const Tensor&);
  double (*reference)(double);
  double low, high;  // The arguments tried.
};

const UnaryCase kUnary[] = {
    {"Neg", Neg, [](double x) { return -x; }, -9, 9},
    {"Abs", Abs, [](double x) { return std::fabs(x); }, -9, 9},
    {"Sign", Sign, [](double x) { return x > 0   ? 1.0
                                         : x < 0 ? -1.0
                                                 : 0; }, -2,
     2},
    {"Square", Square, [](double x) { return x * x; }, -9, 9},
    {"Relu", Relu, [](double x) { return x > 0 ? x : 0; }, -9, 9},
    {"Exp", Exp, [](double x) { return std::exp(x); }, -87, 80},
    {"Log", Log, [](double x) { return std::log(x); }, 1e-3, 100},
    {"Log1p", Log1p, [](double x) { return std::log1p(x); }, -0.9, 100},
    {"Sqrt", Sqrt, [](double x) { return std::sqrt(x); }, 0, 100},
    {"Sigmoid", Sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -30,
     30},
    {"Tanh", Tanh, [](double x) { return std::tanh(x); }, -12, 12},
    {"Softplus", Softplus, [](double x) { return std::log1p(std::exp(x)); },
     -40, 40},
    {"Sin", Sin, [](double x) { return std::sin(x); }, -7, 7},
    {"Cos", Cos, [](double x) { return std::cos(x); }, -7, 7},
};

class UnaryTest : public ::testing::TestWithParam<UnaryCase> {};

TEST_P(UnaryTest, AgreesWithScalarsInEveryLayout) {
  const UnaryCase& test = GetParam();
  Generator generator(2);
  const Shape shapes[] = {{}, {1}, {1000}, {3, 5, 7}, {0}, {2, 0}};
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const Shape& shape : shapes) {
      for (const Lie lie : kLies) {
        const Tensor x = EmptyThatLies(lie, shape, dtype);
        x.CopyFrom(Uniform(shape, test.low, test.high, generator, DType::kF64));
        std::vector<double> wanted;
        for (const double value : Values(x)) {
          wanted.push_back(test.reference(value));
        }
        ExpectValues(test.op(x), shape, wanted,
                     dtype == DType::kF32 ? 1e-6 : 1e-14);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, UnaryTest, ::testing::ValuesIn(kUnary),
                         [](const auto& info) { return info.param.name; });

TEST(Functions, KeepInfinitiesAndNan) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const auto x =
        Tensor::FromVector<double>({-kInfinity, kInfinity, kNan}).To(dtype);
    const Tensor zeros = Tensor::Zeros({3}, dtype);
    ExpectValues(Exp(x), {3}, {0, kInfinity, kNan}, 0);
    ExpectValues(Relu(x), {3}, {0, kInfinity, kNan}, 0);
    ExpectValues(Sigmoid(x), {3}, {0, 1, kNan}, 0);
    ExpectValues(Tanh(x), {3}, {-1, 1, kNan}, 0);
    ExpectValues(Maximum(x, zeros), {3}, {0, kInfinity, kNan}, 0);
    ExpectValues(Minimum(zeros, x), {3}, {-kInfinity, 0, kNan}, 0);
    ExpectValues(Clamp(x, -1, 1), {3}, {-1, 1, kNan}, 0);
  }
}

TEST(Exp, IsAccurateToTwoUnitsInTheLastPlace) {
  std::vector<float> arguments;
  // From where results are no longer 0.
  for (float x = -86.8f; x < 88; x += 0.0137f) arguments.push_back(x);
  const std::vector<float> found =
      Exp(Tensor::FromVector(arguments)).ToVector<float>();
  for (size_t i = 0; i < found.size(); ++i) {
    const double exact = std::exp(static_cast<double>(arguments[i]));
    ASSERT_NEAR(found[i] / exact, 1.0, 2.4e-7) << arguments[i];
  }
}

TEST(Pow, TakesAnyExponent) {
  const auto x = Tensor::FromVector<double>({1, 4, 9});
  ExpectValues(Pow(x, 0.5), {3}, {1, 2, 3}, 1e-15);
  ExpectValues(Pow(x, -1), {3}, {1, 0.25, 1.0 / 9}, 1e-15);
}

TEST(Backward, IsTheDerivativeFromTheResult) {
  const auto y = Tensor::FromVector<double>({0, 0.25, 0.75});
  const auto g = Tensor::FromVector<double>({10, 10, 10});
  ExpectValues(ReluBackward(g, y), {3}, {0, 10, 10}, 0);
  ExpectValues(SigmoidBackward(g, y), {3}, {0, 1.875, 1.875}, 1e-15);
  ExpectValues(TanhBackward(g, y), {3}, {10, 9.375, 4.375}, 1e-15);
}

TEST(Where, ChoosesAndBroadcasts) {
  const auto c = Tensor::FromVector<bool>({true, false}, {2, 1});
  const auto a = Tensor::FromVector<int64_t>({1, 2, 3});
  const auto b = Tensor::FromVector<int64_t>({-1}, {1});
  ExpectValues(Where(c, a, b), {2, 3}, {1, 2, 3, -1, -1, -1}, 0);
  const auto flags = Tensor::FromVector<bool>({true, false, true});
  ExpectValues(Where(flags, a, Mul(a, 10)), {3}, {1, 20, 3}, 0);
}

TEST(Logic, IsThatOfBool) {
  const auto a = Tensor::FromVector<bool>({true, true, false, false});
  const auto b = Tensor::FromVector<bool>({true, false, true, false});
  ExpectValues(LogicalAnd(a, b), {4}, {1, 0, 0, 0}, 0);
  ExpectValues(LogicalOr(a, b), {4}, {1, 1, 1, 0}, 0);
  ExpectValues(LogicalNot(a), {4}, {0, 0, 1, 1}, 0);
}

TEST(InPlace, WritesThroughViewsAndBumpsTheVersion) {
  for (const Lie lie : kLies) {
    Generator generator(3);
    const Tensor y = Integers({4, 6}, DType::kF32, -9, 9, generator, lie);
    const Tensor x = Integers({6}, DType::kF32, 1, 4, generator);
    const uint64_t version = y.version();
    Tensor wanted = Add(y, x);
    Add_(y, x);
    ExpectSame(y, wanted);
    EXPECT_GT(y.version(), version);
    wanted = Mul(y, x);
    Mul_(y, x);
    ExpectSame(y, wanted);
    wanted = Sub(y, x);
    Sub_(y, x);
    ExpectSame(y, wanted);
    wanted = Add(y, Mul(x, -2));
    Axpy_(y, -2, x);
    ExpectSame(y, wanted);
    wanted = Add(Mul(y, 0.5), 1);
    Mul_(y, 0.5);
    Add_(y, 1);
    ExpectSame(y, wanted);
    wanted = Div(y, x);
    Div_(y, x);
    ExpectSame(y, wanted);
    wanted = Relu(y);
    Relu_(y);
    ExpectSame(y, wanted);
  }
}

TEST(InPlace, ReadsAnOverlappingOperandBeforeItIsWritten) {
  const auto x = Tensor::FromVector<double>({1, 2, 3, 4});
  Add_(x.Slice(0, 1, 4), x.Slice(0, 0, 3));
  ExpectValues(x, {4}, {1, 3, 5, 7}, 0);
  Add_(x, x);
  ExpectValues(x, {4}, {2, 6, 10, 14}, 0);
}

// [24] of each dtype; of 1 to 9, so that a divisor is not 0, or bool.
std::vector<Tensor> BasesOf(absl::Span<const DType> dtypes,
                            Generator& generator) {
  std::vector<Tensor> bases;
  for (const DType dtype : dtypes) {
    const bool is_flag = dtype == DType::kBool;
    bases.push_back(
        Integers({24}, dtype, is_flag ? 0 : 1, is_flag ? 1 : 9, generator));
    if (IsDifferentiable(dtype)) Mul_(bases.back(), 0.37);
  }
  return bases;
}

using Binary = Tensor (*)(const Tensor&, const Tensor&);
using Unary = Tensor (*)(const Tensor&);

void ExpectSameOfTwo(const char* name, absl::Span<const DType> dtypes,
                     const std::function<Tensor(Tensor, Tensor)>& op) {
  Generator generator(11);
  const auto bases = BasesOf(dtypes, generator);
  ExpectSameOnDevice(name, bases, [&](absl::Span<const Tensor> inputs) {
    std::vector<Tensor> results;
    for (const Tensor& input : inputs) {
      for (const Tensor& a : ViewsOf(input)) {
        for (const Tensor& b : ViewsOf(input)) results.push_back(op(a, b));
        results.push_back(op(a, input.View({6, 1, 4}).Slice(0, 1, 3)));
        results.push_back(op(input.Select(0, 0), a));
      }
    }
    return results;
  });
}

void ExpectSameOfOne(const char* name, absl::Span<const DType> dtypes,
                     const std::function<Tensor(Tensor)>& op) {
  Generator generator(12);
  const auto bases = BasesOf(dtypes, generator);
  ExpectSameOnDevice(name, bases, [&](absl::Span<const Tensor> inputs) {
    std::vector<Tensor> results;
    for (const Tensor& input : inputs) {
      for (const Tensor& x : ViewsOf(input)) results.push_back(op(x));
      results.push_back(op(input.Slice(0, 0, 0)));
    }
    return results;
  });
}

TEST(OnDevice, FunctionsOfTwoAreThoseOfTheCpu) {
  for (const BinaryCase& test : kBinary) {
    ExpectSameOfTwo(test.name, kNumbers, test.op);
    ExpectTwoDevicesRefused(test.name, Tensor::Ones({3}), Tensor::Ones({3}),
                            test.op);
  }
  ExpectSameOfTwo("Div", kNumbers, Binary{Div});
  const DType flag[] = {DType::kBool};
  ExpectSameOfTwo("LogicalAnd", flag, LogicalAnd);
  ExpectSameOfTwo("LogicalOr", flag, LogicalOr);
  ExpectSameOfTwo("Equal of bool", flag, Binary{Equal});
}

TEST(OnDevice, FunctionsOfOneAreThoseOfTheCpu) {
  const DType floats[] = {DType::kF32, DType::kF64};
  const std::pair<const char*, Unary> of_numbers[] = {
      {"Neg", Neg},       {"Abs", Abs},   {"Sign", Sign},
      {"Square", Square}, {"Relu", Relu},
  };
  for (const auto& [name, op] : of_numbers) ExpectSameOfOne(name, kNumbers, op);
  const std::pair<const char*, Unary> of_floats[] = {
      {"Exp", Exp},           {"Log", Log},   {"Log1p", Log1p}, {"Sqrt", Sqrt},
      {"Sigmoid", Sigmoid},   {"Tanh", Tanh}, {"Sin", Sin},     {"Cos", Cos},
      {"Softplus", Softplus}, {"Silu", Silu},
  };
  for (const auto& [name, op] : of_floats) ExpectSameOfOne(name, floats, op);
  for (const GeluKind kind : {GeluKind::kExact, GeluKind::kTanh}) {
    ExpectSameOfOne("Gelu", floats, [=](Tensor x) { return Gelu(x, kind); });
  }
  ExpectSameOfOne("Pow", floats, [](Tensor x) { return Pow(x, 1.5); });
  ExpectSameOfOne("Clamp", kNumbers, [](Tensor x) { return Clamp(x, 2, 3); });
  const DType flag[] = {DType::kBool};
  ExpectSameOfOne("LogicalNot", flag, LogicalNot);
}

TEST(OnDevice, NumbersBesideATensorAreThoseOfTheCpu) {
  const std::pair<const char*, std::function<Tensor(Tensor)>> all[] = {
      {"x + 2", [](Tensor x) { return x + 2; }},
      {"x - 2", [](Tensor x) { return x - 2; }},
      {"2 - x", [](Tensor x) { return 2 - x; }},
      {"x * 2", [](Tensor x) { return x * 2; }},
      {"x / 2", [](Tensor x) { return x / 2; }},
      {"2 / x", [](Tensor x) { return 2 / x; }},
      {"x = 2", [](Tensor x) { return Equal(x, 2); }},
      {"x < 2", [](Tensor x) { return Less(x, 2); }},
      {"x > 2", [](Tensor x) { return Greater(x, 2); }},
      {"x >= 2", [](Tensor x) { return GreaterEqual(x, 2); }},
  };
  for (const auto& [name, op] : all) ExpectSameOfOne(name, kNumbers, op);
}

TEST(OnDevice, GradientsAreThoseOfTheCpu) {
  const DType floats[] = {DType::kF32, DType::kF64};
  const std::pair<const char*, Binary> all[] = {
      {"ReluBackward", ReluBackward},
      {"SigmoidBackward", SigmoidBackward},
      {"TanhBackward", TanhBackward},
      {"SiluBackward", SiluBackward},
  };
  for (const auto& [name, op] : all) {
    ExpectSameOfTwo(name, floats, op);
    ExpectTwoDevicesRefused(name, Tensor::Ones({3}), Tensor::Ones({3}), op);
  }
  for (const GeluKind kind : {GeluKind::kExact, GeluKind::kTanh}) {
    ExpectSameOfTwo("GeluBackward", floats, [=](Tensor g, Tensor x) {
      return GeluBackward(g, x, kind);
    });
  }
}

TEST(OnDevice, ChoiceIsThatOfTheCpu) {
  ExpectSameOfTwo("Where", kNumbers, [](Tensor a, Tensor b) {
    return Where(Less(b, 2).Select(0, 0), a, b);
  });
  const DType more[] = {DType::kF32, DType::kI64, DType::kBF16};
  ExpectSameOfOne("Where, MaskedFill", more, [](Tensor x) {
    const Tensor ones = Tensor::Ones({1}, x.dtype(), x.device());
    const Tensor mask = Equal(x.To(DType::kF32), 2);
    return MaskedFill(Where(mask, x, ones), LogicalNot(mask), 5);
  });
  const Tensor mask = Tensor::Ones({3}, DType::kBool);
  const Tensor x = Tensor::Ones({3});
  ExpectTwoDevicesRefused("MaskedFill", x, mask,
                          [](auto& a, auto& b) { MaskedFill(a, b, 0); });
  ExpectTwoDevicesRefused("Where", mask, x, [&](auto& condition, auto& a) {
    Where(condition, a, a);
  });
  ExpectTwoDevicesRefused("Where", x, x, [&](auto& a, auto& b) {
    Where(mask.To(a.device()), a, b);
  });
}

TEST(OnDevice, UpdatesAreThoseOfTheCpu) {
  using Update = void (*)(const Tensor&, const Tensor&);
  const std::pair<const char*, std::function<void(Tensor, Tensor)>> all[] = {
      {"Add_", Update{Add_}},
      {"Sub_", Update{Sub_}},
      {"Mul_", Update{Mul_}},
      {"Div_", Div_},
      {"Add_ a number", [](Tensor y, Tensor) { Add_(y, 2); }},
      {"Mul_ by a number", [](Tensor y, Tensor) { Mul_(y, 2); }},
      {"Axpy_", [](Tensor y, Tensor x) { Axpy_(y, 2, x); }},
      {"Relu_", [](Tensor y, Tensor) { Relu_(y); }},
  };
  Generator generator(13);
  for (const auto& update : all) {
    ExpectSameOnDevice(update.first, BasesOf(kNumbers, generator),
                       [&](absl::Span<const Tensor> inputs) {
                         std::vector<Tensor> results;
                         for (const Tensor& x : inputs) {
                           const Tensor y = Neg(x);
                           update.second(y, x);
                           update.second(
                               y.View({4, 6}).Transpose(0, 1).Slice(0, 1, 4),
                               x.Slice(0, 4, 8));
                           update.second(y.Slice(0, 5, 20), x.Slice(0, 4, 19));
                           results.push_back(y);
                           const Tensor z = x.Clone();
                           update.second(z.Slice(0, 5, 20), z.Slice(0, 4, 19));
                           Add_(z.Slice(0, 1, 24), z.Slice(0, 0, 23));
                           results.push_back(z);
                         }
                         return results;
                       });
  }
  ExpectTwoDevicesRefused("Add_", Tensor::Ones({3}), Tensor::Ones({3}),
                          Update{Add_});
}

TEST(OnDevice, AnIntegerDivisorOfZeroIsRefused) {
  device::testing::SimulatedDevices devices(1);
  const Device device(devices.context(), 0);
  const Tensor x = Tensor::Ones({2}, DType::kI64, device);
  EXPECT_THAT(Complaint([&] { Div(x, Tensor::ZerosLike(x)); }),
              HasSubstr("division by 0"));
  ExpectSame(Add(x, x).To(Device::Cpu()), Tensor::Full({2}, 2, DType::kI64));
}

}  // namespace
}  // namespace weft
