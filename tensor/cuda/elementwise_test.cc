// The launchers of copy.h and elementwise.h, run on the CPU, against the
// operations of the CPU.

#include "weft/tensor/cuda/elementwise.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tensor/cuda/copy.h"
#include "weft/tensor/cuda/on_host.h"
#include "weft/tensor/cuda_operands.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/random.h"

namespace weft::internal::cuda {
namespace {

using HostLauncher = const char* (*)(const Call& call, OnHost& executor);

std::string BytesOf(const Tensor& x) {
  const Tensor flat = x.Contiguous();
  return std::string(static_cast<const char*>(flat.raw()),
                     static_cast<size_t>(flat.bytes()));
}

// Bit by bit, but for the roundings that a CPU with fused multiply-add saves.
void ExpectAlike(const Tensor& found, const Tensor& wanted) {
  ASSERT_EQ(found.shape(), wanted.shape());
  ASSERT_EQ(found.dtype(), wanted.dtype());
  if (BytesOf(found) == BytesOf(wanted)) return;
  ASSERT_TRUE(IsDifferentiable(found.dtype())) << found << wanted;
  const double unit = found.dtype() == DType::kF32 ? 0x1p-24 : 0x1p-53;
  const auto f = found.To(DType::kF64).ToVector<double>();
  const auto w = wanted.To(DType::kF64).ToVector<double>();
  for (size_t i = 0; i < f.size(); ++i) {
    if (f[i] == w[i] || (std::isnan(f[i]) && std::isnan(w[i]))) continue;
    ASSERT_LE(std::fabs(f[i] - w[i]),
              64 * unit * std::max(1.0, std::fabs(w[i])))
        << i << ": " << f[i] << ", wanted " << w[i];
  }
}

void RunOnHost(HostLauncher launch, const Operation& operation,
               const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(&tensor);
  OnHost executor;
  const char* const lack = launch(CallOf(operation, pointers), executor);
  ASSERT_EQ(lack, nullptr) << operation.name << ": " << lack;
}

// Tensors [3, 4, 5] that lie in several ways.
std::vector<Tensor> Views(DType dtype, Generator& generator, double scale) {
  const auto draw = [&](const Shape& shape) {
    return Normal(shape, 0, scale, generator, DType::kF64).To(dtype);
  };
  return {draw({3, 4, 5}),
          draw({5, 4, 3}).Transpose(0, 2),
          draw({3, 9, 5}).Slice(1, 2, 6),
          draw({3, 1, 5}).Expand({3, 4, 5}),
          draw({5}).Expand({3, 4, 5}),
          draw({0, 4, 5})};
}

struct UnaryCase {
  const char* name;
  HostLauncher launch;
  std::function<Tensor(const Tensor&)> wanted;
  bool has_integers;
  std::vector<double> numbers = {};
};

Operation OperationOf(const char* name, const std::vector<double>& numbers) {
  Operation operation(name);
  std::copy(numbers.begin(), numbers.end(), operation.numbers.begin());
  return operation;
}

// Operations that also have integers.
std::vector<UnaryCase> ArithmeticCases() {
  return {
      {"Neg", &Unary<Neg>, [](auto& x) { return weft::Neg(x); }, true},
      {"Abs", &Unary<Abs>, [](auto& x) { return weft::Abs(x); }, true},
      {"Sign", &Unary<Sign>, [](auto& x) { return weft::Sign(x); }, true},
      {"Square", &Unary<Square>, [](auto& x) { return weft::Square(x); }, true},
      {"Relu", &Unary<Relu>, [](auto& x) { return weft::Relu(x); }, true},
      {"Clamp",
       &Unary<Clamp>,
       [](auto& x) { return weft::Clamp(x, -1, 2); },
       true,
       {-1, 2}},
      {"AddNumber",
       &Unary<WithNumber<AddOp>>,
       [](auto& x) { return weft::Add(x, 3); },
       true,
       {3}},
      {"SubNumber",
       &Unary<WithNumber<SubOp>>,
       [](auto& x) { return weft::Sub(x, 3); },
       true,
       {3}},
      {"NumberSub",
       &Unary<OfNumberAnd<SubOp>>,
       [](auto& x) { return weft::Sub(3, x); },
       true,
       {3}},
      {"MulNumber",
       &Unary<WithNumber<MulOp>>,
       [](auto& x) { return weft::Mul(x, 3); },
       true,
       {3}},
      {"DivNumber",
       &Unary<WithNumber<DivOp>>,
       [](auto& x) { return weft::Div(x, 3); },
       true,
       {3}},
      {"EqualNumber",
       &Unary<WithNumber<EqualOp>>,
       [](auto& x) { return weft::Equal(x, 1); },
       true,
       {1}},
      {"LessNumber",
       &Unary<WithNumber<LessOp>>,
       [](auto& x) { return weft::Less(x, 1); },
       true,
       {1}},
      {"GreaterNumber",
       &Unary<WithNumber<GreaterOp>>,
       [](auto& x) { return weft::Greater(x, 1); },
       true,
       {1}},
      {"GreaterEqualNumber",
       &Unary<WithNumber<GreaterEqualOp>>,
       [](auto& x) { return weft::GreaterEqual(x, 1); },
       true,
       {1}},
  };
}

// Operations of floating-point numbers alone.
std::vector<UnaryCase> RealCases() {
  return {
      {"NumberDiv",
       &Unary<OfNumberAnd<DivOp>>,
       [](auto& x) { return weft::Div(3, x); },
       false,
       {3}},
      {"Exp", &Unary<Exponential>, [](auto& x) { return weft::Exp(x); }, false},
      {"Log", &Unary<Log>, [](auto& x) { return weft::Log(x); }, false},
      {"Log1p", &Unary<Log1p>, [](auto& x) { return weft::Log1p(x); }, false},
      {"Sqrt", &Unary<Sqrt>, [](auto& x) { return weft::Sqrt(x); }, false},
      {"Sigmoid", &Unary<Logistic>, [](auto& x) { return weft::Sigmoid(x); },
       false},
      {"Tanh", &Unary<HyperbolicTangent>, [](auto& x) { return weft::Tanh(x); },
       false},
      {"Softplus", &Unary<Softplus>, [](auto& x) { return weft::Softplus(x); },
       false},
      {"Sin", &Unary<Sin>, [](auto& x) { return weft::Sin(x); }, false},
      {"Cos", &Unary<Cos>, [](auto& x) { return weft::Cos(x); }, false},
      {"Pow",
       &Unary<Pow>,
       [](auto& x) { return weft::Pow(x, 2.5); },
       false,
       {2.5}},
      {"Silu", &Unary<Silu>, [](auto& x) { return weft::Silu(x); }, false},
      {"Gelu", &Unary<Gelu>,
       [](auto& x) { return weft::Gelu(x, GeluKind::kExact); }, false},
      {"GeluTanh", &Unary<GeluTanh>,
       [](auto& x) { return weft::Gelu(x, GeluKind::kTanh); }, false},
  };
}

std::vector<UnaryCase> UnaryCases() {
  std::vector<UnaryCase> cases = ArithmeticCases();
  for (UnaryCase& c : RealCases()) cases.push_back(std::move(c));
  return cases;
}

std::vector<DType> DTypesOf(bool has_integers) {
  std::vector<DType> dtypes = {DType::kF32, DType::kF64};
  if (has_integers) dtypes.push_back(DType::kI64);
  return dtypes;
}

TEST(Elementwise, UnaryIsThatOfTheCpu) {
  Generator generator(1);
  for (const UnaryCase& c : UnaryCases()) {
    for (const DType dtype : DTypesOf(c.has_integers)) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(Name(dtype)));
      for (const Tensor& x : Views(dtype, generator, 5)) {
        const Tensor wanted = c.wanted(x);
        const Tensor found = Tensor::EmptyLike(wanted);
        RunOnHost(c.launch, OperationOf(c.name, c.numbers), {x, found});
        ExpectAlike(found, wanted);
      }
    }
  }
}

TEST(Elementwise, UnaryWritesInPlaceThroughStrides) {
  Generator generator(2);
  const Tensor base = Normal({5, 4, 3}, 0, 1, generator);
  const Tensor wanted = weft::Relu(base);
  RunOnHost(&Unary<Relu>, "Relu_", {base.Transpose(0, 2)});
  EXPECT_TRUE(BytesOf(base) == BytesOf(wanted));
}

struct BinaryCase {
  const char* name;
  HostLauncher launch;
  std::function<Tensor(const Tensor&, const Tensor&)> wanted;
  bool has_integers;
};

std::vector<BinaryCase> BinaryCases() {
  const auto of = [](auto function) {
    return
        [function](const Tensor& a, const Tensor& b) { return function(a, b); };
  };
  using Two = Tensor (*)(const Tensor&, const Tensor&);
  return {
      {"Add", &Binary<OfTwo<AddOp>>, of(static_cast<Two>(&weft::Add)), true},
      {"Sub", &Binary<OfTwo<SubOp>>, of(static_cast<Two>(&weft::Sub)), true},
      {"Mul", &Binary<OfTwo<MulOp>>, of(static_cast<Two>(&weft::Mul)), true},
      {"Div", &Binary<OfTwo<DivOp>>, of(static_cast<Two>(&weft::Div)), false},
      {"Maximum", &Binary<OfTwo<MaximumOp>>, of(&weft::Maximum), true},
      {"Minimum", &Binary<OfTwo<MinimumOp>>, of(&weft::Minimum), true},
      {"Equal", &Binary<OfAnyTwo<EqualOp>>, of(static_cast<Two>(&weft::Equal)),
       true},
      {"NotEqual", &Binary<OfAnyTwo<NotEqualOp>>, of(&weft::NotEqual), true},
      {"Less", &Binary<OfTwo<LessOp>>, of(static_cast<Two>(&weft::Less)), true},
      {"LessEqual", &Binary<OfTwo<LessEqualOp>>, of(&weft::LessEqual), true},
      {"Greater", &Binary<OfTwo<GreaterOp>>,
       of(static_cast<Two>(&weft::Greater)), true},
      {"GreaterEqual", &Binary<OfTwo<GreaterEqualOp>>,
       of(static_cast<Two>(&weft::GreaterEqual)), true},
      {"ReluBackward", &Binary<ReluBackward>, of(&weft::ReluBackward), false},
      {"SigmoidBackward", &Binary<SigmoidBackward>, of(&weft::SigmoidBackward),
       false},
      {"TanhBackward", &Binary<TanhBackward>, of(&weft::TanhBackward), false},
      {"SiluBackward", &Binary<SiluBackward>, of(&weft::SiluBackward), false},
      {"GeluBackward", &Binary<GeluBackward>,
       [](auto& g, auto& x) {
         return weft::GeluBackward(g, x, GeluKind::kExact);
       },
       false},
      {"GeluTanhBackward", &Binary<GeluTanhBackward>,
       [](auto& g, auto& x) {
         return weft::GeluBackward(g, x, GeluKind::kTanh);
       },
       false},
  };
}

TEST(Elementwise, BinaryIsThatOfTheCpu) {
  Generator generator(3);
  for (const BinaryCase& c : BinaryCases()) {
    for (const DType dtype : DTypesOf(c.has_integers)) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(Name(dtype)));
      std::vector<Tensor> views = Views(dtype, generator, 5);
      const Tensor none = views.back();
      views.pop_back();
      views.push_back(views[0].Select(0, 1));  // [4, 5]
      for (const Tensor& a : views) {
        for (const Tensor& b : views) {
          const Tensor wanted = c.wanted(a, b);
          const Tensor found = Tensor::EmptyLike(wanted);
          RunOnHost(c.launch, c.name, {a, b, found});
          ExpectAlike(found, wanted);
        }
      }
      RunOnHost(c.launch, c.name, {none, none, c.wanted(none, none)});
    }
  }
}

TEST(Elementwise, BinaryWritesInPlaceThroughStrides) {
  Generator generator(4);
  const Tensor x = Normal({4, 5}, 0, 1, generator);
  const Tensor y = Normal({5, 4, 3}, 0, 1, generator);
  const Tensor wanted = y.Clone();
  Axpy_(wanted.Transpose(0, 2), 0.3, x);
  RunOnHost(&Binary<Axpy>, {"Axpy_", {0.3}}, {y.Transpose(0, 2), x});
  ExpectAlike(y, wanted);
  Sub_(wanted.Transpose(0, 2), x);
  RunOnHost(&Binary<OfTwo<SubOp>>, "Sub_", {y.Transpose(0, 2), x});
  ExpectAlike(y, wanted);
}

TEST(Elementwise, SaysWhichDTypesHaveNoKernel) {
  OnHost executor;
  const Tensor ints = Tensor::Zeros({2}, DType::kI32);
  const Tensor floats = Tensor::Zeros({2});
  EXPECT_EQ(Unary<Neg>(CallOf("Neg", {&ints, &ints}), executor), kNoDType);
  EXPECT_EQ(Unary<Neg>(CallOf("Neg", {&floats, &ints}), executor), kNoDType);
  EXPECT_EQ(
      Binary<OfTwo<AddOp>>(CallOf("Add", {&floats, &ints, &floats}), executor),
      kNoDType);
  EXPECT_EQ(Unary<Neg>(CallOf("Neg", {&floats, &floats, &floats}), executor),
            kNoCount);
}

TEST(Copying, CastsAndBroadcastsAsTheCpu) {
  Generator generator(5);
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      SCOPED_TRACE(std::string(Name(from)) + " " + std::string(Name(to)));
      for (const Tensor& x : Views(from, generator, 100)) {
        const Tensor base = Tensor::Zeros({5, 4, x.size(0)}, to);
        const Tensor wanted = base.Clone();
        wanted.Transpose(0, 2).CopyFrom(x);
        RunOnHost(&Copy, "Copy", {x, base.Transpose(0, 2)});
        EXPECT_TRUE(BytesOf(base) == BytesOf(wanted)) << base << wanted;
      }
      const Tensor row = Normal({5}, 0, 1, generator).To(from);
      const Tensor found = Tensor::Empty({4, 5}, to);
      RunOnHost(&Copy, "Copy", {row, found});
      EXPECT_TRUE(BytesOf(found) == BytesOf(row.To(to).Expand({4, 5})));
    }
  }
}

TEST(Copying, FillsEveryDType) {
  for (const DType dtype : kAllDTypes) {
    const Tensor found = Tensor::Zeros({3, 4}, dtype);
    const Tensor wanted = found.Clone();
    wanted.Slice(1, 1, 3).Fill(1);
    RunOnHost(&Fill, {"Fill", {1}}, {found.Slice(1, 1, 3)});
    EXPECT_TRUE(BytesOf(found) == BytesOf(wanted)) << found;
  }
}

TEST(Copying, ChoosesAsTheCpu) {
  Generator generator(6);
  const Tensor condition =
      Greater(Normal({4, 1}, 0, 1, generator), 0).Expand({3, 4, 5});
  for (const DType dtype : kAllDTypes) {
    const Tensor a = Normal({5}, 0, 1, generator).To(dtype);
    const Tensor b =
        Normal({5, 4, 3}, 0, 1, generator).To(dtype).Transpose(0, 2);
    const Tensor wanted = weft::Where(condition, a, b);
    const Tensor found = Tensor::EmptyLike(wanted);
    RunOnHost(&cuda::Where, "Where", {condition, a, b, found});
    ExpectAlike(found, wanted);
  }
}

}  // namespace
}  // namespace weft::internal::cuda
