// Functions of one operand, and the gradients that need their result.

#include "weft/tensor/cast.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/elementwise_loop.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using internal::IsHalf;
using internal::Operation;
using internal::Wide;

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

// NaN stays, since it is not below 0.
struct ReluOp {
  template <typename T>
  T operator()(T x) const {
    return x < T{0} ? T{0} : x;
  }
};

constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

struct ExactGelu {
  template <typename T>
  T operator()(T x) const {
    return x * internal::NormalDistribution(x).below;
  }
};

struct TanhGelu {
  template <typename T>
  T operator()(T x) const {
    const T inner = T(kSqrtTwoOverPi) * (x + T(kGeluCubic) * x * x * x);
    return T(0.5) * x * (T(1) + internal::Tanh(inner));
  }
};

// d(x Phi(x))/dx = Phi(x) + x phi(x).
struct ExactGeluBackward {
  template <typename T>
  T operator()(T grad, T x) const {
    const internal::NormalAt<T> at = internal::NormalDistribution(x);
    return grad * (at.below + x * at.density);
  }
};

struct TanhGeluBackward {
  template <typename T>
  T operator()(T grad, T far) const {
    // Beyond this the slope is 0 or 1, and the square of x would overflow.
    constexpr T kFar = 1000;
    const T above = far < -kFar ? -kFar : far;
    const T x = above > kFar ? kFar : above;  // NaN stays.
    const T inner = T(kSqrtTwoOverPi) * (x + T(kGeluCubic) * x * x * x);
    const T slope = T(kSqrtTwoOverPi) * (T(1) + T(3) * T(kGeluCubic) * x * x);
    const T t = internal::Tanh(inner);
    return grad * T(0.5) * (T(1) + t + x * (T(1) - t * t) * slope);
  }
};

}  // namespace

Tensor Neg(const Tensor& x) {
  return MapNumber(x, "Neg", [](auto a) {
    using T = decltype(a);
    if constexpr (std::is_floating_point_v<T>) return -a;
    if constexpr (!std::is_floating_point_v<T>) {
      return internal::SubOp()(T{0}, a);
    }
  });
}

Tensor Abs(const Tensor& x) {
  return MapNumber(x, "Abs", [](auto a) {
    using T = decltype(a);
    if constexpr (std::is_floating_point_v<T>) return std::fabs(a);
    if constexpr (!std::is_floating_point_v<T>) {
      return a < T{0} ? internal::SubOp()(T{0}, a) : a;
    }
  });
}

Tensor Sign(const Tensor& x) {
  return MapNumber(x, "Sign", [](auto a) {
    using T = decltype(a);
    const T sign = static_cast<T>(T(a > T{0}) - T(a < T{0}));
    return a != a ? a : sign;
  });
}

Tensor Square(const Tensor& x) {
  return MapNumber(x, "Square", [](auto a) { return internal::MulOp()(a, a); });
}

Tensor Relu(const Tensor& x) { return MapNumber(x, "Relu", ReluOp()); }

Tensor Clamp(const Tensor& x, double low, double high) {
  if (!(low <= high)) {
    ThrowInvalidArgument("Clamp: low is ", low, ", high is ", high);
  }
  if (IsHalf(x)) return Clamp(Wide(x), low, high).To(x.dtype());
  return VisitNumber(x.dtype(), "Clamp", [&](auto type) {
    using T = typename decltype(type)::Type;
    const T l = internal::CheckedElement<T>(low, "Clamp");
    const T h = internal::CheckedElement<T>(high, "Clamp");
    return internal::MapUnary<T, T>({"Clamp", {low, high}}, x, [l, h](T a) {
      return a < l ? l : (a > h ? h : a);
    });
  });
}

Tensor Exp(const Tensor& x) {
  return MapFloating(x, "Exp", [](auto a) { return internal::Exp(a); });
}
Tensor Log(const Tensor& x) {
  return MapFloating(x, "Log", [](auto a) { return std::log(a); });
}
Tensor Log1p(const Tensor& x) {
  return MapFloating(x, "Log1p", [](auto a) { return std::log1p(a); });
}
Tensor Sqrt(const Tensor& x) {
  return MapFloating(x, "Sqrt", [](auto a) { return std::sqrt(a); });
}
Tensor Sigmoid(const Tensor& x) {
  return MapFloating(x, "Sigmoid", [](auto a) { return internal::Sigmoid(a); });
}
Tensor Tanh(const Tensor& x) {
  return MapFloating(x, "Tanh", [](auto a) { return internal::Tanh(a); });
}
Tensor Softplus(const Tensor& x) {
  return MapFloating(x, "Softplus", [](auto a) {
    using T = decltype(a);
    return (a < T(0) ? T(0) : a) + std::log1p(internal::Exp(-std::fabs(a)));
  });
}
Tensor Sin(const Tensor& x) {
  return MapFloating(x, "Sin", [](auto a) { return std::sin(a); });
}
Tensor Cos(const Tensor& x) {
  return MapFloating(x, "Cos", [](auto a) { return std::cos(a); });
}
Tensor Pow(const Tensor& x, double exponent) {
  return MapFloating(x, {"Pow", {exponent}}, [exponent](auto a) {
    using T = decltype(a);
    return static_cast<T>(std::pow(a, static_cast<T>(exponent)));
  });
}

Tensor Silu(const Tensor& x) {
  return MapFloating(x, "Silu",
                     [](auto a) { return a * internal::Sigmoid(a); });
}
Tensor Gelu(const Tensor& x, GeluKind kind) {
  if (kind == GeluKind::kTanh) return MapFloating(x, "GeluTanh", TanhGelu());
  return MapFloating(x, "Gelu", ExactGelu());
}
Tensor SiluBackward(const Tensor& grad, const Tensor& x) {
  return Backward(grad, x, "SiluBackward", [](auto g, auto a) {
    using T = decltype(a);
    const T s = internal::Sigmoid(a);
    return g * s * (T(1) + a * (T(1) - s));
  });
}
Tensor GeluBackward(const Tensor& grad, const Tensor& x, GeluKind kind) {
  if (kind == GeluKind::kTanh) {
    return Backward(grad, x, "GeluTanhBackward", TanhGeluBackward());
  }
  return Backward(grad, x, "GeluBackward", ExactGeluBackward());
}

Tensor ReluBackward(const Tensor& grad, const Tensor& y) {
  return Backward(grad, y, "ReluBackward",
                  // NaN passes the gradient on, as for PyTorch: a NaN in must
                  // be seen.
                  [](auto g, auto b) { return b <= 0 ? decltype(g){0} : g; });
}
Tensor SigmoidBackward(const Tensor& grad, const Tensor& y) {
  return Backward(grad, y, "SigmoidBackward",
                  [](auto g, auto b) { return g * b * (decltype(g){1} - b); });
}
Tensor TanhBackward(const Tensor& grad, const Tensor& y) {
  return Backward(grad, y, "TanhBackward",
                  [](auto g, auto b) { return g * (decltype(g){1} - b * b); });
}

void Relu_(const Tensor& y) {
  if (IsHalf(y)) return internal::UpdateInF32(y, "Relu_", Relu_);
  VisitNumber(y.dtype(), "Relu_", [&](auto type) {
    internal::UpdateUnary<typename decltype(type)::Type>("Relu_", y, "Relu_",
                                                         ReluOp());
  });
}

}  // namespace weft
