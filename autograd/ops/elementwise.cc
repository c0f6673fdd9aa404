#include "weft/autograd/ops/elementwise.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "weft/autograd/op.h"
#include "weft/autograd/ops/autocast.h"
#include "weft/autograd/record.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using internal::Wide;
using Inputs = absl::Span<const Variable>;

std::vector<OpCase> UnaryCase(Variable (*function)(const Variable&), double low,
                              double high) {
  return {
      {"", {{{3, 4}, low, high}}, [=](Inputs in) { return function(in[0]); }}};
}

std::vector<OpCase> BinaryCases(Variable (*function)(const Variable&,
                                                     const Variable&),
                                Shape wide, Shape narrow, double low = -1.5,
                                double high = 1.5) {
  const auto run = [=](Inputs in) { return function(in[0], in[1]); };
  return {{"same", {{{2, 3}}, {{2, 3}, low, high}}, run},
          {"broadcast", {{wide}, {narrow, low, high}}, run}};
}

// The gradients of an operation on two operands that broadcast: `da` and `db`
// make them in the result's shape, from (grad, a, b), which are in f32 where
// the operands are f16 or bf16, so that only the sum is rounded.
template <typename Da, typename Db>
auto BroadcastBackward(const Variable& a, const Variable& b, Da da, Db db) {
  return [a = SavedTensor(a), b = SavedTensor(b), da, db](BackwardCall& call) {
    const DType dtype = call.outputs[0].dtype();
    const Tensor grad = Wide(call.output());
    const Tensor x = Wide(a.Get()), y = Wide(b.Get());
    if (call.needs(0)) {
      call.inputs[0] = SumTo(da(grad, x, y), x.shape()).To(dtype);
    }
    if (call.needs(1)) {
      call.inputs[1] = SumTo(db(grad, x, y), y.shape()).To(dtype);
    }
  };
}

const Op kAdd("Add", BinaryCases(Add, {2, 1, 3}, {4, 1}));
const Op kSub("Sub", BinaryCases(Sub, {3}, {2, 3}));
const Op kMul("Mul", BinaryCases(Mul, {2, 3}, {2, 1}));
const Op kDiv("Div", BinaryCases(Div, {2, 3}, {3}, 0.5, 2.0));
const Op kMaximum("Maximum", BinaryCases(Maximum, {2, 3}, {1}));
const Op kMinimum("Minimum", BinaryCases(Minimum, {2, 3}, {1}));
const Op kAddScalar("AddScalar", {{"", {{{2, 3}}}, [](Inputs in) {
                                     return Add(in[0], 2.5);
                                   }}});
const Op kMulScalar("MulScalar", {{"", {{{2, 3}}}, [](Inputs in) {
                                     return Mul(in[0], -1.5);
                                   }}});
const Op kNeg("Neg", UnaryCase(Neg, -1.5, 1.5));
const Op kExp("Exp", UnaryCase(Exp, -1.5, 1.5));
// To f64 and back, since a test is of one dtype.
const Op kCast("Cast", {{"", {{{3, 4}}}, [](Inputs in) {
                           return Cast(Cast(in[0], DType::kF64), in[0].dtype());
                         }}});
const Op kLog("Log", UnaryCase(Log, 0.5, 2.0));
const Op kSqrt("Sqrt", UnaryCase(Sqrt, 0.5, 2.0));
const Op kRelu("Relu", UnaryCase(Relu, -1.5, 1.5));
const Op kSigmoid("Sigmoid", UnaryCase(Sigmoid, -4, 4));
const Op kTanh("Tanh", UnaryCase(Tanh, -1.5, 1.5));
const Op kAbs("Abs", UnaryCase(Abs, -1.5, 1.5));
const Op kSquare("Square", UnaryCase(Square, -1.5, 1.5));
const Op kLog1p("Log1p", UnaryCase(Log1p, -0.5, 1.5));
const Op kSoftplus("Softplus", UnaryCase(Softplus, -4, 4));
const Op kSin("Sin", UnaryCase(Sin, -1.5, 1.5));
const Op kCos("Cos", UnaryCase(Cos, -1.5, 1.5));
const Op kSilu("Silu", UnaryCase(Silu, -4, 4));
const Op kGelu("Gelu", {{"exact",
                         {{{3, 4}, -3, 3}},
                         [](Inputs in) { return Gelu(in[0]); }},
                        {"tanh", {{{3, 4}, -3, 3}}, [](Inputs in) {
                           return Gelu(in[0], GeluKind::kTanh);
                         }}});
const Op kPow(
    "Pow",
    {{"cube", {{{3, 4}}}, [](Inputs in) { return Pow(in[0], 3); }},
     {"root", {{{3, 4}, 0.5, 2.0}}, [](Inputs in) { return Pow(in[0], 0.5); }},
     {"zero", {{{3, 4}}}, [](Inputs in) { return Pow(in[0], 0); }}});
const Op kClamp("Clamp", {{"", {{{3, 4}}}, [](Inputs in) {
                             return Clamp(in[0], -0.5, 0.75);
                           }}});

Variable WhereCase(Inputs in) { return Where(in[0].value(), in[1], in[2]); }
constexpr SampleInput::Kind kBool = SampleInput::Kind::kBool;
Variable MaskedFillCase(Inputs in) {
  return MaskedFill(in[0], in[1].value(), -2.5);
}
const Op kMaskedFill(
    "MaskedFill",
    {{"same", {{{2, 3}}, {{2, 3}, 0, 1, kBool}}, MaskedFillCase},
     {"broadcast", {{{3}}, {{2, 1}, 0, 1, kBool}}, MaskedFillCase}});
const Op kWhere(
    "Where",
    {{"same", {{{2, 3}, 0, 1, kBool}, {{2, 3}}, {{2, 3}}}, WhereCase},
     {"broadcast", {{{2, 3}, 0, 1, kBool}, {{3}}, {{2, 1}}}, WhereCase}});

// `y` is x as another dtype.
Variable RecordCast(const Variable& x, Tensor y) {
  return Record(kCast, std::move(y), {&x},
                [from = x.dtype()](BackwardCall& call) {
                  call.inputs[0] = call.output().To(from);
                });
}

// The part of `grad` that goes to `mine`: all, half or none of each element.
Tensor ShareOfLarger(const Tensor& grad, const Tensor& mine,
                     const Tensor& other) {
  const Tensor wins = Greater(mine, other).To(grad.dtype());
  const Tensor draws = Equal(mine, other).To(grad.dtype());
  return Mul(grad, Add(wins, Mul(draws, 0.5)));
}

// An operation on one operand x whose gradient is backward(grad, x), of f32
// where they are f16 or bf16.
template <typename Backward>
Variable RecordUnary(const Op& op, Tensor y, const Variable& x,
                     Backward backward) {
  return Record(op, std::move(y), {&x},
                [x = SavedTensor(x), backward](BackwardCall& call) {
                  const Tensor in = x.Get();
                  call.inputs[0] =
                      backward(Wide(call.output()), Wide(in)).To(in.dtype());
                });
}

}  // namespace

Variable Add(const Variable& a, const Variable& b) {
  if (internal::IsAutocasting() && a.dtype() != b.dtype()) {
    return internal::ComputeInWidest(
        [](const Variable& x, const Variable& y) { return Add(x, y); }, a, b);
  }
  Tensor sum = Add(a.value(), b.value());
  if (a.shape() == b.shape()) {
    return Record(kAdd, std::move(sum), {&a, &b}, [](BackwardCall& call) {
      if (call.needs(0)) call.inputs[0] = call.outputs[0];
      if (call.needs(1)) call.inputs[1] = std::move(call.outputs[0]);
    });
  }
  return Record(kAdd, std::move(sum), {&a, &b},
                [x = a.shape(), y = b.shape()](BackwardCall& call) {
                  const Tensor grad = call.output();
                  if (call.needs(0)) call.inputs[0] = SumTo(grad, x);
                  if (call.needs(1)) call.inputs[1] = SumTo(grad, y);
                });
}

Variable Sub(const Variable& a, const Variable& b) {
  if (internal::IsAutocasting() && a.dtype() != b.dtype()) {
    return internal::ComputeInWidest(
        [](const Variable& x, const Variable& y) { return Sub(x, y); }, a, b);
  }
  return Record(kSub, Sub(a.value(), b.value()), {&a, &b},
                [x = a.shape(), y = b.shape()](BackwardCall& call) {
                  const Tensor grad = call.output();
                  if (call.needs(0)) call.inputs[0] = SumTo(grad, x);
                  if (call.needs(1)) call.inputs[1] = SumTo(Neg(grad), y);
                });
}

Variable Mul(const Variable& a, const Variable& b) {
  if (internal::IsAutocasting() && a.dtype() != b.dtype()) {
    return internal::ComputeInWidest(
        [](const Variable& x, const Variable& y) { return Mul(x, y); }, a, b);
  }
  return Record(kMul, Mul(a.value(), b.value()), {&a, &b},
                BroadcastBackward(
                    a, b,
                    [](const Tensor& grad, const Tensor&, const Tensor& y) {
                      return Mul(grad, y);
                    },
                    [](const Tensor& grad, const Tensor& x, const Tensor&) {
                      return Mul(grad, x);
                    }));
}

Variable Div(const Variable& a, const Variable& b) {
  if (internal::IsAutocasting() && a.dtype() != b.dtype()) {
    return internal::ComputeInWidest(
        [](const Variable& x, const Variable& y) { return Div(x, y); }, a, b);
  }
  return Record(kDiv, Div(a.value(), b.value()), {&a, &b},
                BroadcastBackward(
                    a, b,
                    [](const Tensor& grad, const Tensor&, const Tensor& y) {
                      return Div(grad, y);
                    },
                    [](const Tensor& grad, const Tensor& x, const Tensor& y) {
                      return Neg(Div(Mul(grad, x), Mul(y, y)));
                    }));
}

Variable Add(const Variable& a, double b) {
  return Record(kAddScalar, Add(a.value(), b), {&a}, [](BackwardCall& call) {
    call.inputs[0] = std::move(call.outputs[0]);
  });
}

Variable Mul(const Variable& a, double b) {
  return Record(kMulScalar, Mul(a.value(), b), {&a}, [b](BackwardCall& call) {
    call.inputs[0] = Mul(call.output(), b);
  });
}

Variable Cast(const Variable& x, DType dtype) {
  Tensor y = x.value().To(dtype);
  if (!IsFloating(dtype)) return Variable(std::move(y));
  return RecordCast(x, std::move(y));
}

namespace internal {

Variable Autocast(const Variable& x, DType dtype) {
  if (!x.defined() || x.dtype() == dtype || !IsCastable(x.dtype())) return x;
  return RecordCast(x, AutocastScope::Cast(x, dtype));
}

DType WidestOf(absl::Span<const Variable* const> inputs) {
  std::optional<DType> widest;
  for (const Variable* input : inputs) {
    if (!IsCastable(input->dtype())) continue;
    const bool is_other = widest.has_value() && *widest != input->dtype();
    widest = is_other ? DType::kF32 : input->dtype();
  }
  return widest.value_or(DType::kF32);
}

DType WidestOf(absl::Span<const Variable> inputs) {
  std::vector<const Variable*> all;
  for (const Variable& input : inputs) all.push_back(&input);
  return WidestOf(all);
}

std::vector<Variable> InWidest(absl::Span<const Variable> inputs) {
  const DType dtype = WidestOf(inputs);
  std::vector<Variable> cast;
  for (const Variable& input : inputs) cast.push_back(Autocast(input, dtype));
  return cast;
}

}  // namespace internal

Variable Neg(const Variable& x) {
  return Record(kNeg, Neg(x.value()), {&x}, [](BackwardCall& call) {
    call.inputs[0] = Neg(call.output());
  });
}

Variable Maximum(const Variable& a, const Variable& b) {
  if (internal::IsAutocasting() && a.dtype() != b.dtype()) {
    return internal::ComputeInWidest(
        [](const Variable& x, const Variable& y) { return Maximum(x, y); }, a,
        b);
  }
  return Record(kMaximum, Maximum(a.value(), b.value()), {&a, &b},
                BroadcastBackward(
                    a, b, ShareOfLarger,
                    [](const Tensor& grad, const Tensor& x, const Tensor& y) {
                      return ShareOfLarger(grad, y, x);
                    }));
}

Variable Minimum(const Variable& a, const Variable& b) {
  if (internal::IsAutocasting() && a.dtype() != b.dtype()) {
    return internal::ComputeInWidest(
        [](const Variable& x, const Variable& y) { return Minimum(x, y); }, a,
        b);
  }
  return Record(kMinimum, Minimum(a.value(), b.value()), {&a, &b},
                BroadcastBackward(
                    a, b,
                    [](const Tensor& grad, const Tensor& x, const Tensor& y) {
                      return ShareOfLarger(grad, Neg(x), Neg(y));
                    },
                    [](const Tensor& grad, const Tensor& x, const Tensor& y) {
                      return ShareOfLarger(grad, Neg(y), Neg(x));
                    }));
}

Variable Where(const Tensor& condition, const Variable& a, const Variable& b) {
  if (internal::IsAutocasting() && a.dtype() != b.dtype()) {
    return internal::ComputeInWidest(
        [&condition](const Variable& x, const Variable& y) {
          return Where(condition, x, y);
        },
        a, b);
  }
  return Record(kWhere, Where(condition, a.value(), b.value()), {&a, &b},
                [condition = SavedTensor(condition), x = a.shape(),
                 y = b.shape()](BackwardCall& call) {
                  const Tensor grad = call.output();
                  const Tensor zero =
                      Tensor::Zeros({}, grad.dtype(), grad.device());
                  const Tensor& chosen = condition.Get();
                  if (call.needs(0)) {
                    call.inputs[0] = SumTo(Where(chosen, grad, zero), x);
                  }
                  if (call.needs(1)) {
                    call.inputs[1] = SumTo(Where(chosen, zero, grad), y);
                  }
                });
}

Variable Exp(const Variable& x) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32([](const Variable& in) { return Exp(in); },
                                  x);
  }
  const Tensor y = Exp(x.value());
  return Record(kExp, y, {&x}, [y = SavedTensor(y)](BackwardCall& call) {
    call.inputs[0] = Mul(call.output(), y.Get());
  });
}

Variable Log(const Variable& x) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32([](const Variable& in) { return Log(in); },
                                  x);
  }
  return Record(kLog, Log(x.value()), {&x},
                [x = SavedTensor(x)](BackwardCall& call) {
                  call.inputs[0] = Div(call.output(), x.Get());
                });
}

Variable Sqrt(const Variable& x) {
  const Tensor y = Sqrt(x.value());
  return Record(kSqrt, y, {&x}, [y = SavedTensor(y)](BackwardCall& call) {
    call.inputs[0] = Div(Mul(call.output(), 0.5), y.Get());
  });
}

Variable Relu(const Variable& x) {
  const Tensor y = Relu(x.value());
  return Record(kRelu, y, {&x}, [y = SavedTensor(y)](BackwardCall& call) {
    call.inputs[0] = ReluBackward(call.output(), y.Get());
  });
}

Variable Sigmoid(const Variable& x) {
  const Tensor y = Sigmoid(x.value());
  return Record(kSigmoid, y, {&x}, [y = SavedTensor(y)](BackwardCall& call) {
    call.inputs[0] = SigmoidBackward(call.output(), y.Get());
  });
}

Variable Tanh(const Variable& x) {
  const Tensor y = Tanh(x.value());
  return Record(kTanh, y, {&x}, [y = SavedTensor(y)](BackwardCall& call) {
    call.inputs[0] = TanhBackward(call.output(), y.Get());
  });
}

Variable Abs(const Variable& x) {
  return RecordUnary(
      kAbs, Abs(x.value()), x,
      [](const Tensor& grad, const Tensor& in) { return Mul(grad, Sign(in)); });
}

Variable Square(const Variable& x) {
  return RecordUnary(kSquare, Square(x.value()), x,
                     [](const Tensor& grad, const Tensor& in) {
                       return Mul(grad, Add(in, in));
                     });
}

Variable Log1p(const Variable& x) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32([](const Variable& in) { return Log1p(in); },
                                  x);
  }
  return RecordUnary(kLog1p, Log1p(x.value()), x,
                     [](const Tensor& grad, const Tensor& in) {
                       return Div(grad, Add(in, 1));
                     });
}

Variable Softplus(const Variable& x) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [](const Variable& in) { return Softplus(in); }, x);
  }
  return RecordUnary(kSoftplus, Softplus(x.value()), x,
                     [](const Tensor& grad, const Tensor& in) {
                       return Mul(grad, Sigmoid(in));
                     });
}

Variable Sin(const Variable& x) {
  return RecordUnary(
      kSin, Sin(x.value()), x,
      [](const Tensor& grad, const Tensor& in) { return Mul(grad, Cos(in)); });
}

Variable Cos(const Variable& x) {
  return RecordUnary(kCos, Cos(x.value()), x,
                     [](const Tensor& grad, const Tensor& in) {
                       return Neg(Mul(grad, Sin(in)));
                     });
}

Variable Pow(const Variable& x, double exponent) {
  if (internal::IsAutocasting() && internal::HasHalf(x)) {
    return internal::ComputeInF32(
        [exponent](const Variable& in) { return Pow(in, exponent); }, x);
  }
  return RecordUnary(kPow, Pow(x.value(), exponent), x,
                     [exponent](const Tensor& grad, const Tensor& in) {
                       // 0 * x^-1 would be NaN at 0.
                       if (exponent == 0) return Tensor::ZerosLike(in);
                       return Mul(grad, Mul(Pow(in, exponent - 1), exponent));
                     });
}

Variable Clamp(const Variable& x, double low, double high) {
  return RecordUnary(kClamp, Clamp(x.value(), low, high), x,
                     [low, high](const Tensor& grad, const Tensor& in) {
                       const Tensor outside =
                           LogicalOr(Less(in, low), Greater(in, high));
                       return MaskedFill(grad, outside, 0);
                     });
}

Variable Gelu(const Variable& x, GeluKind kind) {
  return RecordUnary(kGelu, Gelu(x.value(), kind), x,
                     [kind](const Tensor& grad, const Tensor& in) {
                       return GeluBackward(grad, in, kind);
                     });
}

Variable Silu(const Variable& x) {
  return RecordUnary(kSilu, Silu(x.value()), x, SiluBackward);
}

Variable MaskedFill(const Variable& x, const Tensor& mask, double value) {
  return Record(
      kMaskedFill, MaskedFill(x.value(), mask, value), {&x},
      [mask = SavedTensor(mask), shape = x.shape()](BackwardCall& call) {
        call.inputs[0] = SumTo(MaskedFill(call.output(), mask.Get(), 0), shape);
      });
}

}  // namespace weft
