// Functions of one operand, and the gradients that need their result.

#include <type_traits>

#include "weft/tensor/cast.h"
#include "weft/tensor/cuda/functions.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/elementwise_loop.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using internal::IsHalf;
using internal::Operation;
using internal::Wide;
namespace functions = internal::cuda;

// One of cuda/functions.h, which kernels compute too, without numbers.
template <typename Fn>
struct Function {
  template <typename... Elements>
  auto operator()(Elements... x) const {
    return Fn::Of(x..., functions::Numbers<std::common_type_t<Elements...>>());
  }
};

template <typename Op>
Tensor MapNumber(const Tensor& x, const Operation& operation, Op op) {
  if (IsHalf(x)) return MapNumber(Wide(x), operation, op).To(x.dtype());
  return VisitNumber(x.dtype(), operation.name, [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapUnary<T, T>(operation, x, op);
  });
}

template <typename Op>
Tensor MapFloating(const Tensor& x, const Operation& operation, Op op) {
  if (IsHalf(x)) return MapFloating(Wide(x), operation, op).To(x.dtype());
  return VisitFloating(x.dtype(), operation.name, [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapUnary<T, T>(operation, x, op);
  });
}

template <typename Op>
Tensor Backward(const Tensor& grad, const Tensor& y, const char* where, Op op) {
  internal::CheckSameDType(grad, y, where);
  if (IsHalf(y)) return Backward(Wide(grad), Wide(y), where, op).To(y.dtype());
  return VisitFloating(y.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapBinary<T, T, T>(where, grad, y, op);
  });
}

}  // namespace

Tensor Neg(const Tensor& x) {
  return MapNumber(x, "Neg", Function<functions::Neg>());
}
Tensor Abs(const Tensor& x) {
  return MapNumber(x, "Abs", Function<functions::Abs>());
}
Tensor Sign(const Tensor& x) {
  return MapNumber(x, "Sign", Function<functions::Sign>());
}
Tensor Square(const Tensor& x) {
  return MapNumber(x, "Square", Function<functions::Square>());
}
// NaN stays, since it is not below 0.
Tensor Relu(const Tensor& x) {
  return MapNumber(x, "Relu", Function<functions::Relu>());
}

Tensor Clamp(const Tensor& x, double low, double high) {
  if (!(low <= high)) {
    ThrowInvalidArgument("Clamp: low is ", low, ", high is ", high);
  }
  if (IsHalf(x)) return Clamp(Wide(x), low, high).To(x.dtype());
  return VisitNumber(x.dtype(), "Clamp", [&](auto type) {
    using T = typename decltype(type)::Type;
    const functions::Numbers<T> limits = {
        internal::CheckedElement<T>(low, "Clamp"),
        internal::CheckedElement<T>(high, "Clamp")};
    return internal::MapUnary<T, T>({"Clamp", {low, high}}, x, [limits](T a) {
      return functions::Clamp::Of(a, limits);
    });
  });
}

Tensor Exp(const Tensor& x) {
  return MapFloating(x, "Exp", Function<functions::Exponential>());
}
Tensor Log(const Tensor& x) {
  return MapFloating(x, "Log", Function<functions::Log>());
}
Tensor Log1p(const Tensor& x) {
  return MapFloating(x, "Log1p", Function<functions::Log1p>());
}
Tensor Sqrt(const Tensor& x) {
  return MapFloating(x, "Sqrt", Function<functions::Sqrt>());
}
Tensor Sigmoid(const Tensor& x) {
  return MapFloating(x, "Sigmoid", Function<functions::Logistic>());
}
Tensor Tanh(const Tensor& x) {
  return MapFloating(x, "Tanh", Function<functions::HyperbolicTangent>());
}
Tensor Softplus(const Tensor& x) {
  return MapFloating(x, "Softplus", Function<functions::Softplus>());
}
Tensor Sin(const Tensor& x) {
  return MapFloating(x, "Sin", Function<functions::Sin>());
}
Tensor Cos(const Tensor& x) {
  return MapFloating(x, "Cos", Function<functions::Cos>());
}
Tensor Pow(const Tensor& x, double exponent) {
  return MapFloating(x, {"Pow", {exponent}}, [exponent](auto a) {
    using T = decltype(a);
    return static_cast<T>(std::pow(a, static_cast<T>(exponent)));
  });
}

Tensor Silu(const Tensor& x) {
  return MapFloating(x, "Silu", Function<functions::Silu>());
}
Tensor Gelu(const Tensor& x, GeluKind kind) {
  if (kind == GeluKind::kTanh) {
    return MapFloating(x, "GeluTanh", Function<functions::GeluTanh>());
  }
  return MapFloating(x, "Gelu", Function<functions::Gelu>());
}
Tensor SiluBackward(const Tensor& grad, const Tensor& x) {
  return Backward(grad, x, "SiluBackward", Function<functions::SiluBackward>());
}
Tensor GeluBackward(const Tensor& grad, const Tensor& x, GeluKind kind) {
  if (kind == GeluKind::kTanh) {
    return Backward(grad, x, "GeluTanhBackward",
                    Function<functions::GeluTanhBackward>());
  }
  return Backward(grad, x, "GeluBackward", Function<functions::GeluBackward>());
}

Tensor ReluBackward(const Tensor& grad, const Tensor& y) {
  return Backward(grad, y, "ReluBackward", Function<functions::ReluBackward>());
}
Tensor SigmoidBackward(const Tensor& grad, const Tensor& y) {
  return Backward(grad, y, "SigmoidBackward",
                  Function<functions::SigmoidBackward>());
}
Tensor TanhBackward(const Tensor& grad, const Tensor& y) {
  return Backward(grad, y, "TanhBackward", Function<functions::TanhBackward>());
}

void Relu_(const Tensor& y) {
  if (IsHalf(y)) return internal::UpdateInF32(y, "Relu_", Relu_);
  VisitNumber(y.dtype(), "Relu_", [&](auto type) {
    internal::UpdateUnary<typename decltype(type)::Type>(
        "Relu_", y, "Relu_", Function<functions::Relu>());
  });
}

}  // namespace weft
