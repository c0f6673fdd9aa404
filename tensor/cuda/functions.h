// The functions of elements that kernels compute, each named as its operation.
// They give what the operation gives on the CPU. Kernels are compiled without
// fused multiply-add: so f32 without a function of the C library has the bits
// of a CPU that does not fuse either, and else differs by its roundings.
//
//   static T Of(T x, Numbers<T> n);        unary
//   static T Of(T a, T b, Numbers<T> n);   binary
//   static constexpr bool kHasIntegers;    also for i64 and u8
//   static constexpr bool kHasReals;       for f32 and f64; else for bool alone
//   static constexpr bool kHasAll;         for all but f16 and bf16
//
// Their results, T or bool, are what is written.

#ifndef WEFT_TENSOR_CUDA_FUNCTIONS_H_
#define WEFT_TENSOR_CUDA_FUNCTIONS_H_

#include <cmath>
#include <type_traits>

#include "weft/tensor/cuda/host_device.h"
#include "weft/tensor/ops/scalar_math.h"

namespace weft::internal::cuda {

// The first two numbers of the operation, as elements.
template <typename T>
struct Numbers {
  T a;
  T b;
};

struct OfNumbers {
  static constexpr bool kHasReals = true;
  static constexpr bool kHasIntegers = true;
  static constexpr bool kHasAll = false;
};
struct OfReals {
  static constexpr bool kHasReals = true;
  static constexpr bool kHasIntegers = false;
  static constexpr bool kHasAll = false;
};
struct OfBools {
  static constexpr bool kHasReals = false;
  static constexpr bool kHasIntegers = false;
  static constexpr bool kHasAll = false;
};
struct OfAll {
  static constexpr bool kHasReals = true;
  static constexpr bool kHasIntegers = true;
  static constexpr bool kHasAll = true;
};

template <typename T>
WEFT_HOST_DEVICE T Negative(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return -x;
  } else {
    return SubOp()(T{0}, x);
  }
}

struct Neg : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return Negative(x);
  }
};

struct Abs : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fabs(x);
    } else if constexpr (std::is_unsigned_v<T>) {
      return x;
    } else {
      return x < T{0} ? Negative(x) : x;
    }
  }
};

struct Sign : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    if constexpr (std::is_unsigned_v<T>) {
      return x > T{0} ? T{1} : T{0};
    } else {
      const T sign = static_cast<T>(T(x > T{0}) - T(x < T{0}));
      return x != x ? x : sign;
    }
  }
};

struct Square : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return MulOp()(x, x);
  }
};

struct Relu : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    if constexpr (std::is_unsigned_v<T>) {
      return x;
    } else {
      return x < T{0} ? T{0} : x;
    }
  }
};

// Between the two numbers.
struct Clamp : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> n) {
    return x < n.a ? n.a : (x > n.b ? n.b : x);
  }
};

// Op of the element and the number.
template <typename Op>
struct WithNumber : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static auto Of(T x, Numbers<T> n) {
    return Op()(x, n.a);
  }
};

// Op of the number and the element.
template <typename Op>
struct OfNumberAnd : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static auto Of(T x, Numbers<T> n) {
    return Op()(n.a, x);
  }
};

// Op of two elements.
template <typename Op>
struct OfTwo : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static auto Of(T a, T b, Numbers<T> /*n*/) {
    return Op()(a, b);
  }
};

// Op of two elements of any dtype.
template <typename Op>
struct OfAnyTwo : OfAll {
  template <typename T>
  WEFT_HOST_DEVICE static bool Of(T a, T b, Numbers<T> /*n*/) {
    return Op()(a, b);
  }
};

struct LogicalAnd : OfBools {
  WEFT_HOST_DEVICE static bool Of(bool a, bool b, Numbers<bool> /*n*/) {
    return a && b;
  }
};
struct LogicalOr : OfBools {
  WEFT_HOST_DEVICE static bool Of(bool a, bool b, Numbers<bool> /*n*/) {
    return a || b;
  }
};
struct LogicalNot : OfBools {
  WEFT_HOST_DEVICE static bool Of(bool x, Numbers<bool> /*n*/) { return !x; }
};

struct EqualOp {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a == b;
  }
};
struct NotEqualOp {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a != b;
  }
};
struct LessOp {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a < b;
  }
};
struct LessEqualOp {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a <= b;
  }
};
struct GreaterOp {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a > b;
  }
};
struct GreaterEqualOp {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a >= b;
  }
};

// a + number * b.
struct Axpy : OfNumbers {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T a, T b, Numbers<T> n) {
    return AddOp()(a, MulOp()(n.a, b));
  }
};

struct Exponential : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return Exp(x);
  }
};

struct Log : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return std::log(x);
  }
};

struct Log1p : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return std::log1p(x);
  }
};

struct Sqrt : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return std::sqrt(x);
  }
};

struct Logistic : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return Sigmoid(x);
  }
};

struct HyperbolicTangent : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return Tanh(x);
  }
};

struct Softplus : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return (x < T(0) ? T(0) : x) + std::log1p(Exp(-std::fabs(x)));
  }
};

struct Sin : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return std::sin(x);
  }
};

struct Cos : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return std::cos(x);
  }
};

// To the number.
struct Pow : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> n) {
    return std::pow(x, n.a);
  }
};

struct Silu : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return x * Sigmoid(x);
  }
};

struct Gelu : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return x * NormalDistribution(x).below;
  }
};

// sqrt(2 / pi) and the factor of x^3.
inline constexpr double kGeluScale = 0.79788456080286535588;
inline constexpr double kGeluCubic = 0.044715;

template <typename T>
WEFT_HOST_DEVICE T GeluInner(T x) {
  return T(kGeluScale) * (x + T(kGeluCubic) * x * x * x);
}

struct GeluTanh : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T x, Numbers<T> /*n*/) {
    return T(0.5) * x * (T(1) + Tanh(GeluInner(x)));
  }
};

// The backward ones: of grad and y, or x.
struct ReluBackward : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T grad, T y, Numbers<T> /*n*/) {
    return y <= T(0) ? T(0) : grad;  // NaN passes the gradient on.
  }
};

struct SigmoidBackward : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T grad, T y, Numbers<T> /*n*/) {
    return grad * y * (T(1) - y);
  }
};

struct TanhBackward : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T grad, T y, Numbers<T> /*n*/) {
    return grad * (T(1) - y * y);
  }
};

struct SiluBackward : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T grad, T x, Numbers<T> /*n*/) {
    const T s = Sigmoid(x);
    return grad * s * (T(1) + x * (T(1) - s));
  }
};

struct GeluBackward : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T grad, T x, Numbers<T> /*n*/) {
    const NormalAt<T> at = NormalDistribution(x);
    return grad * (at.below + x * at.density);
  }
};

struct GeluTanhBackward : OfReals {
  template <typename T>
  WEFT_HOST_DEVICE static T Of(T grad, T far, Numbers<T> /*n*/) {
    // Beyond this the slope is 0 or 1, and the square of x would overflow.
    constexpr T kFar = 1000;
    const T above = far < -kFar ? -kFar : far;
    const T x = above > kFar ? kFar : above;  // NaN stays.
    const T slope = T(kGeluScale) * (T(1) + T(3) * T(kGeluCubic) * x * x);
    const T t = Tanh(GeluInner(x));
    return grad * T(0.5) * (T(1) + t + x * (T(1) - t * t) * slope);
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_FUNCTIONS_H_
