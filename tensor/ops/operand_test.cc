// What holds for operands of all operations: undefined ones, those of dtypes
// for storage, those without elements, and those that share memory.

#include <algorithm>
#include <cmath>
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

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Unary {
  const char* name;
  std::function<void(const Tensor& x)> run;
};

// Operations on one tensor [2, 2], or on it and `y`, in either place.
std::vector<Unary> OperationsWith(const Tensor& y, const Tensor& labels) {
  return {
      {"Add", [=](const Tensor& x) { Add(x, y); }},
      {"Add right", [=](const Tensor& x) { Add(y, x); }},
      {"Add number", [=](const Tensor& x) { Add(x, 1); }},
      {"Sub number", [=](const Tensor& x) { Sub(1, x); }},
      {"Div", [=](const Tensor& x) { Div(y, x); }},
      {"Maximum", [=](const Tensor& x) { Maximum(x, y); }},
      {"Neg", [=](const Tensor& x) { Neg(x); }},
      {"Abs", [=](const Tensor& x) { Abs(x); }},
      {"Sign", [=](const Tensor& x) { Sign(x); }},
      {"Relu", [=](const Tensor& x) { Relu(x); }},
      {"Clamp", [=](const Tensor& x) { Clamp(x, 0, 1); }},
      {"Exp", [=](const Tensor& x) { Exp(x); }},
      {"Pow", [=](const Tensor& x) { Pow(x, 2); }},
      {"Gelu", [=](const Tensor& x) { Gelu(x); }},
      {"SiluBackward", [=](const Tensor& x) { SiluBackward(x, y); }},
      {"TanhBackward", [=](const Tensor& x) { TanhBackward(y, x); }},
      {"Less", [=](const Tensor& x) { Less(x, y); }},
      {"Greater number", [=](const Tensor& x) { Greater(x, 0); }},
      {"Add_", [=](const Tensor& x) { Add_(x, y); }},
      {"Add_ right", [=](const Tensor& x) { Add_(y, x); }},
      {"Mul_ number", [=](const Tensor& x) { Mul_(x, 1); }},
      {"Axpy_", [=](const Tensor& x) { Axpy_(y, 1, x); }},
      {"Relu_", [=](const Tensor& x) { Relu_(x); }},
      {"Sum", [=](const Tensor& x) { Sum(x); }},
      {"Mean", [=](const Tensor& x) { Mean(x, {0}); }},
      {"Var", [=](const Tensor& x) { Var(x); }},
      {"Max", [=](const Tensor& x) { Max(x); }},
      {"ArgMin", [=](const Tensor& x) { ArgMin(x, 0); }},
      {"AllFinite", [=](const Tensor& x) { AllFinite(x); }},
      {"SquaredNorm", [=](const Tensor& x) { SquaredNorm(x); }},
      {"Cumsum", [=](const Tensor& x) { Cumsum(x, 0); }},
      {"TopK", [=](const Tensor& x) { TopK(x, 1, 0); }},
      {"MatMul", [=](const Tensor& x) { MatMul(x, y); }},
      {"MatMul right", [=](const Tensor& x) { MatMul(y, x); }},
      {"MatMulInto", [=](const Tensor& x) { MatMulInto(x, y, y); }},
      {"MatMulAdd_", [=](const Tensor& x) { MatMulAdd_(y, x, y); }},
      {"Linear", [=](const Tensor& x) { Linear(x, y, {}); }},
      {"Linear weight", [=](const Tensor& x) { Linear(y, x, {}); }},
      {"Einsum", [=](const Tensor& x) { Einsum("ij->i", x); }},
      {"Einsum two", [=](const Tensor& x) { Einsum("ij,jk->ik", y, x); }},
      {"Softmax", [=](const Tensor& x) { Softmax(x, 0); }},
      {"SoftmaxBackward", [=](const Tensor& x) { SoftmaxBackward(y, x, 0); }},
      {"NllLoss", [=](const Tensor& x) { NllLoss(x, labels); }},
      {"CrossEntropy", [=](const Tensor& x) { CrossEntropy(x, labels); }},
      {"MseLoss", [=](const Tensor& x) { MseLoss(x, y); }},
      {"BceWithLogits", [=](const Tensor& x) { BceWithLogits(y, x); }},
      {"HuberLoss", [=](const Tensor& x) { HuberLoss(x, y); }},
      {"KlDivLoss", [=](const Tensor& x) { KlDivLoss(x, y); }},
      {"LayerNorm", [=](const Tensor& x) { LayerNorm(x, {2}, {}, {}); }},
      {"RmsNorm", [=](const Tensor& x) { RmsNorm(x, {2}, {}); }},
      {"MomentsOf", [=](const Tensor& x) { MomentsOf(x); }},
      {"Attention", [=](const Tensor& x) { AttentionInto(y, x, y, y, {}); }},
      {"IndexAdd_", [=](const Tensor& x) { IndexAdd_(x, 0, labels, y); }},
      {"ScatterAdd_",
       [=](const Tensor& x) {
         ScatterAdd_(y, 0, labels.View({1, 2}), x.Slice(0, 0, 1));
       }},
  };
}

TEST(Operations, RefuseUndefinedOperandsAsFailedPreconditions) {
  const Tensor y = Tensor::Ones({2, 2}), none;
  const Tensor flags = Tensor::Ones({2, 2}, DType::kBool);
  const Tensor labels = Tensor::Zeros({2}, DType::kI64);
  std::vector<Unary> all = OperationsWith(y, labels);
  const std::vector<Unary> more = {
      {"Equal", [=](const Tensor& x) { Equal(y, x); }},
      {"LogicalAnd", [=](const Tensor& x) { LogicalAnd(flags, x); }},
      {"LogicalNot", [=](const Tensor& x) { LogicalNot(x); }},
      {"Where", [=](const Tensor& x) { Where(x, y, y); }},
      {"Where a", [=](const Tensor& x) { Where(flags, x, y); }},
      {"Where b", [=](const Tensor& x) { Where(flags, y, x); }},
      {"MaskedFill", [=](const Tensor& x) { MaskedFill(x, flags, 0); }},
      {"MaskedFill mask", [=](const Tensor& x) { MaskedFill(y, x, 0); }},
      {"SumTo", [=](const Tensor& x) { SumTo(x, {2}); }},
      {"ExtremumBackward", [=](const Tensor& x) { ExtremumBackward(x, y, y); }},
      {"IndexSelect", [=](const Tensor& x) { IndexSelect(x, 0, labels); }},
      {"IndexSelect index", [=](const Tensor& x) { IndexSelect(y, 0, x); }},
      {"Gather", [=](const Tensor& x) { Gather(y, 0, x); }},
      {"Concat",
       [=](const Tensor& x) {
         Concat({y, x}, 0);
       }},
      {"Stack",
       [=](const Tensor& x) {
         Stack({x, y}, 0);
       }},
      {"Split", [=](const Tensor& x) { Split(x, 1, 0); }},
      {"Tril", [=](const Tensor& x) { Tril(x); }},
      {"OneHot", [=](const Tensor& x) { OneHot(x, 2); }},
      {"Embedding", [=](const Tensor& x) { Embedding(x, labels); }},
      {"Embedding indices", [=](const Tensor& x) { Embedding(y, x); }},
      {"EmbeddingBag",
       [=](const Tensor& x) { EmbeddingBag(y, labels, x, BagMode::kSum); }},
      {"Coalesce",
       [=](const Tensor& x) {
         Coalesce({x, y, 2});
       }},
      {"AddRows_",
       [=](const Tensor& x) {
         AddRows_(y, 1, {labels, x, 2});
       }},
      {"CrossEntropy targets", [=](const Tensor& x) { CrossEntropy(y, x); }},
      {"Conv2d", [=](const Tensor& x) { Conv2d(x, y, {}); }},
      {"Conv2d weight",
       [=](const Tensor& x) {
         Conv2d(Tensor::Ones({1, 1, 2, 2}), x, {});
       }},
      {"MaxPool2d", [=](const Tensor& x) { MaxPool2d(x); }},
      {"AvgPool2d", [=](const Tensor& x) { AvgPool2d(x); }},
      {"BatchNorm",
       [=](const Tensor& x) { BatchNorm(y, x, Tensor::Ones({2}), {}, {}); }},
      {"RowNormBackward",
       [=](const Tensor& x) {
         RowNormBackward(y, y, {y, x, x}, {2}, {}, false);
       }},
      {"AttentionBackward",
       [=](const Tensor& x) { AttentionBackwardInto({}, y, y, y, y, x, {}); }},
  };
  all.insert(all.end(), more.begin(), more.end());
  for (const Unary& one : all) {
    EXPECT_EQ(CodeOf([&] { one.run(none); }),
              absl::StatusCode::kFailedPrecondition)
        << one.name;
  }
}

// Neither computed wrongly nor read as something else. With and without
// elements.
TEST(Operations, RefuseDTypesThatAreForStorage) {
  const Tensor labels = Tensor::Zeros({2}, DType::kI64);
  for (const DType dtype : {DType::kI32, DType::kI8}) {
    const Tensor y = Tensor::Ones({2, 2}, dtype);
    for (const Unary& one : OperationsWith(y, labels)) {
      EXPECT_EQ(CodeOf([&] {
                  one.run(Tensor::Ones({2, 2}, dtype));
                }),
                absl::StatusCode::kInvalidArgument)
          << one.name << " of " << Name(dtype);
    }
    ExpectSame(y, Tensor::Ones({2, 2}, dtype));
  }
}

struct InPlace {
  const char* name;
  void (*write)(const Tensor& y, const Tensor& x);
  Tensor (*reference)(const Tensor& y, const Tensor& x);
};

// Any two views of one memory, x also stretched: the values from before count.
TEST(InPlace, OnViewsOfOneMemoryIsThatOnSeparateOnes) {
  const InPlace kAll[] = {
      {"Add_", Add_, Add},
      {"Sub_", Sub_, Sub},
      {"Mul_", Mul_, Mul},
      {"Div_", Div_, Div},
      {"Axpy_", [](const Tensor& y, const Tensor& x) { Axpy_(y, -3, x); },
       [](const Tensor& y, const Tensor& x) { return Add(y, Mul(x, -3)); }},
  };
  Generator generator(1);
  for (const InPlace& op : kAll) {
    int written = 0;
    for (int i = 0; i < 2000; ++i) {
      const Tensor base = Tensor::Arange(30, DType::kF64);
      const Shape shape = AnyShape(3, 3, generator);
      const Tensor y = AnyView(base, shape, 7, generator);
      Shape narrow = shape;
      for (int64_t& size : narrow) {
        if (generator.NextBelow(3) == 0) size = 1;
      }
      const Tensor x = AnyView(base, narrow, 7, generator);
      const Tensor wanted = op.reference(y.Clone(), x.Clone());
      const uint64_t version = y.version();
      const absl::StatusCode code = CodeOf([&] { op.write(y, x); });
      if (code == absl::StatusCode::kOk && wanted.shape() == shape) {
        ++written;
        ExpectSame(y, wanted);
        EXPECT_EQ(y.version(), version + 1);
      } else {  // y overlaps itself: nothing is written.
        ExpectSame(base, Tensor::Arange(30, DType::kF64));
        EXPECT_EQ(y.version(), version);
      }
      if (HasFailure()) {
        FAIL() << op.name << " " << ShapeText(shape) << " by "
               << ShapeText(y.strides()) << ", " << ShapeText(narrow) << " by "
               << ShapeText(x.strides());
      }
    }
    EXPECT_GT(written, 500) << op.name;
  }
}

TEST(InPlace, ThatIsRefusedChangesNothing) {
  const Tensor i64 = Tensor::Ones({2}, DType::kI64), f32 = Tensor::Ones({2});
  const Tensor zero = Tensor::FromVector<int64_t>({1, 0});
  const std::function<void()> bad[] = {
      [&] { Div_(i64, zero); },
      [&] { Add_(i64, f32); },
      [&] { Add_(i64, Tensor::Ones({3}, DType::kI64)); },
      [&] {
        Add_(i64, Tensor::Ones({2, 2}, DType::kI64));
      },
      [&] { Add_(i64, 0.5); },
      [&] { Mul_(i64, 0x1p63); },
      [&] { Axpy_(i64, kNan, i64); },
      [&] { Axpy_(i64, 1, f32); },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
  ExpectValues(i64, {2}, {1, 1}, 0);
  EXPECT_EQ(i64.version(), Tensor::Ones({2}, DType::kI64).version());
}

TEST(Integers, KeepTheirEnds) {
  const int64_t least = std::numeric_limits<int64_t>::min();
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto x = Tensor::FromVector<int64_t>({least, most});
  EXPECT_EQ(Abs(x).ToVector<int64_t>(), x.ToVector<int64_t>());  // Wraps.
  EXPECT_EQ(Sign(x).ToVector<int64_t>(), (std::vector<int64_t>{-1, 1}));
  EXPECT_EQ(Relu(x).ToVector<int64_t>(), (std::vector<int64_t>{0, most}));
  EXPECT_EQ(Clamp(x, -0x1p63, 5).ToVector<int64_t>(),
            (std::vector<int64_t>{least, 5}));
  EXPECT_EQ(CodeOf([&] { Less(x, 0x1p63); }),
            absl::StatusCode::kInvalidArgument);
  const auto bytes = Tensor::FromVector<uint8_t>({0, 1, 255});
  EXPECT_EQ(Neg(bytes).ToVector<uint8_t>(), (std::vector<uint8_t>{0, 255, 1}));
  EXPECT_EQ(Square(bytes).ToVector<uint8_t>(), (std::vector<uint8_t>{0, 1, 1}));
  EXPECT_EQ(Div(255, Add(bytes, 1).Slice(0, 0, 2)).ToVector<uint8_t>(),
            (std::vector<uint8_t>{255, 127}));
}

// By IEEE 754's pow, sign and comparison, and the limits of the functions.
TEST(Functions, TakeSpecialValues) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = Tensor::FromVector<double>(
                         {-kInfinity, -2, -0.0, 0, 2, kInfinity, kNan})
                         .To(dtype);
    ExpectValues(Pow(x, 0), {7}, {1, 1, 1, 1, 1, 1, 1}, 0);
    ExpectValues(Pow(x, 3), {7}, {-kInfinity, -8, 0, 0, 8, kInfinity, kNan}, 0);
    ExpectValues(Pow(x, -1), {7},
                 {0, -0.5, -kInfinity, kInfinity, 0.5, 0, kNan}, 0);
    ExpectValues(Pow(x, 0.5), {7},
                 {kInfinity, kNan, 0, 0, std::sqrt(2), kInfinity, kNan}, 1e-7);
    ExpectValues(Sqrt(x), {7},
                 {kNan, kNan, 0, 0, std::sqrt(2), kInfinity, kNan}, 1e-7);
    ExpectValues(
        Log(x), {7},
        {kNan, kNan, -kInfinity, -kInfinity, std::log(2), kInfinity, kNan},
        1e-7);
    ExpectValues(Softplus(x), {7},
                 {0, std::log1p(std::exp(-2)), std::log(2), std::log(2),
                  2 + std::log1p(std::exp(-2)), kInfinity, kNan},
                 1e-6);
    ExpectValues(Sign(x), {7}, {-1, -1, 0, 0, 1, 1, kNan}, 0);
    ExpectValues(Abs(x), {7}, {kInfinity, 2, 0, 0, 2, kInfinity, kNan}, 0);
    EXPECT_TRUE(std::signbit(At(Sqrt(x), {2})));
    EXPECT_TRUE(std::signbit(At(Neg(x), {3})));
    EXPECT_FALSE(std::signbit(At(Abs(x), {2})));
    ExpectValues(Equal(x, x), {7}, {1, 1, 1, 1, 1, 1, 0}, 0);
    ExpectValues(NotEqual(x, x), {7}, {0, 0, 0, 0, 0, 0, 1}, 0);
    const Tensor nan = Tensor::Full({7}, kNan, dtype);
    for (const Tensor& found :
         {Maximum(x, nan), Maximum(nan, x), Minimum(x, nan), Minimum(nan, x)}) {
      EXPECT_THAT(Values(found), ::testing::Each(::testing::IsNan()));
    }
    for (const Tensor& found : {Less(x, nan), LessEqual(nan, x),
                                Greater(nan, x), GreaterEqual(x, nan)}) {
      EXPECT_THAT(Values(found), ::testing::Each(0));
    }
  }
}

// Where the square of x or its exponential overflows, slopes are 0 and 1.
TEST(Functions, HaveTheirSlopesFarFromZero) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const double most =
        dtype == DType::kF32
            ? static_cast<double>(std::numeric_limits<float>::max())
            : std::numeric_limits<double>::max();
    const Tensor x =
        Tensor::FromVector<double>({-most, -1e20, -1e4, 1e4, 1e20, most})
            .To(dtype);
    const Tensor grad = Tensor::Full({6}, 3, dtype);
    const std::vector<double> slopes = {0, 0, 0, 3, 3, 3};
    ExpectValues(SiluBackward(grad, x), {6}, slopes, 0);
    ExpectValues(GeluBackward(grad, x, GeluKind::kExact), {6}, slopes, 0);
    ExpectValues(GeluBackward(grad, x, GeluKind::kTanh), {6}, slopes, 0);
    std::vector<double> values = Values(x);
    for (size_t i = 0; i < 3; ++i) values[i] = 0;
    ExpectValues(Silu(x), {6}, values, 0);
    ExpectValues(Gelu(x), {6}, values, 0);
    ExpectValues(Gelu(x, GeluKind::kTanh), {6}, values, 0);
    const Tensor nan = Tensor::Full({1}, kNan, dtype);
    for (const GeluKind kind : {GeluKind::kExact, GeluKind::kTanh}) {
      const Tensor back = GeluBackward(Tensor::Ones({1}, dtype), nan, kind);
      EXPECT_TRUE(std::isnan(At(back, {0})));
    }
  }
}

TEST(Where, ChoosesInEachDTypeAndBroadcastsAllThree) {
  for (const DType dtype : kAllDTypes) {
    const Tensor condition =
        Tensor::FromVector<bool>({true, false}).View({2, 1, 1});
    const Tensor a = Tensor::FromVector<double>({1, 0, 1}).To(dtype);
    const Tensor b = Tensor::Zeros({2, 1}, dtype);
    ExpectValues(Where(condition, a, b), {2, 2, 3},
                 {1, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0}, 0);
    ExpectValues(MaskedFill(b, Tensor::FromVector<bool>({false, true}), 1),
                 {2, 2}, {0, 1, 0, 1}, 0);
    // A number that the dtype lacks, even where no element is filled.
    if (IsFloating(dtype)) continue;
    EXPECT_EQ(
        CodeOf([&] { MaskedFill(b, Tensor::Zeros({1}, DType::kBool), 0.5); }),
        absl::StatusCode::kInvalidArgument);
  }
}

// TopK against a stable sort, with many equals.
TEST(TopK, AgreesWithAStableSortInEveryLayout) {
  Generator generator(2);
  for (const DType dtype : {DType::kF64, DType::kI64, DType::kU8}) {
    for (const Lie lie : kLies) {
      const Tensor x = Integers({3, 9, 2}, dtype, 0, 4, generator, lie);
      for (const bool is_largest : {false, true}) {
        for (int64_t k = 0; k <= 9; k += 3) {
          const TopKResult found = TopK(x, k, 1, is_largest);
          ForEachIndex({3, 2}, [&](const Shape& line) {
            std::vector<int64_t> order(9);
            for (int64_t i = 0; i < 9; ++i) order[static_cast<size_t>(i)] = i;
            const auto value = [&](int64_t i) {
              return At(x, {line[0], i, line[1]}) * (is_largest ? -1 : 1);
            };
            std::stable_sort(
                order.begin(), order.end(),
                [&](int64_t i, int64_t j) { return value(i) < value(j); });
            for (int64_t i = 0; i < k; ++i) {
              const int64_t at = order[static_cast<size_t>(i)];
              ASSERT_EQ(At(found.indices, {line[0], i, line[1]}), at);
              ASSERT_EQ(At(found.values, {line[0], i, line[1]}),
                        At(x, {line[0], at, line[1]}));
            }
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
