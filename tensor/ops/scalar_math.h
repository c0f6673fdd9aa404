// Functions of one or two numbers, written so that loops over them vectorise.

#ifndef WEFT_TENSOR_OPS_SCALAR_MATH_H_
#define WEFT_TENSOR_OPS_SCALAR_MATH_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

namespace weft::internal {

// Integers wrap: signed overflow is computed without sign.
template <typename T>
using Wrapping =
    typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                std::enable_if<true, T>>::type;

struct AddOp {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) +
                          static_cast<Wrapping<T>>(b));
  }
};

struct SubOp {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) -
                          static_cast<Wrapping<T>>(b));
  }
};

struct MulOp {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) *
                          static_cast<Wrapping<T>>(b));
  }
};

// REQUIRES: b != 0 for integers.
struct DivOp {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, int64_t>) {
      if (b == -1) return SubOp()(T{0}, a);  // The lowest / -1 would trap.
    }
    return static_cast<T>(a / b);
  }
};

struct MaximumOp {
  template <typename T>
  T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

struct MinimumOp {
  template <typename T>
  T operator()(T a, T b) const {
    return a < b || a != a ? a : b;
  }
};

// e^x. The polynomial and the split of ln 2 are Cephes' expf; within 2 units in
// the last place; results below the smallest normal number are 0.
// Source: Moshier, Cephes Math Library 2.2, single/expf.c.
inline float Exp(float x) {
  constexpr float kHigh = 88.72283f;
  constexpr float kLow = -87.33654f;
  const float clamped = x > kHigh ? kHigh : (x < kLow ? kLow : x);
  const float n = std::floor(clamped * 1.44269504088896341f + 0.5f);
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, since 2^128 is none; NaN counts as 0 here and comes
  // back below.
  const int32_t power = x == x ? static_cast<int32_t>(n) : 0;
  const int32_t half = power >> 1;
  const float low = __builtin_bit_cast(float, (half + 127) << 23);
  const float high = __builtin_bit_cast(float, (power - half + 127) << 23);
  const float y = p * low * high;
  const float bounded = x > kHigh ? HUGE_VALF : (x < kLow ? 0.0f : y);
  return x == x ? bounded : x;
}
inline double Exp(double x) { return std::exp(x); }

template <typename T>
T Sigmoid(T x) {
  return T(1) / (T(1) + Exp(-x));
}

inline double Tanh(double x) { return std::tanh(x); }
// Source: Cephes, single/tanhf.c.
inline float Tanh(float x) {
  const float magnitude = std::fabs(x);
  const float e = Exp(2.0f * magnitude);
  const float large = 1.0f - 2.0f / (e + 1.0f);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  return magnitude < 0.625f ? small : std::copysign(large, x);
}

inline double Erf(double x) { return std::erf(x); }
// The error function, within 2 units in the last place; both branches are
// computed, so that loops vectorise. |x| below 0.95: x + x P(x^2), an odd
// polynomial. Above: 1 - e^-Q(|x|), where Q approximates -ln erfc on [0.94,
// 3.95]; erf of more is 1 in single precision. Source of the coefficients:
// least squares on Chebyshev points with weights raised where the error is
// largest (Lawson's algorithm), relative error of P 2^-30, of Q 2^-29.
inline float Erf(float x) {
  constexpr float kSmall = 0.95f;
  constexpr float kLarge = 3.95f;
  const float magnitude = std::fabs(x);
  const float z = x * x;
  float p = 8.12266808e-5f;
  p = p * z - 8.08189972e-4f;
  p = p * z + 5.19546121e-3f;
  p = p * z - 2.68570613e-2f;
  p = p * z + 1.12836517e-1f;
  p = p * z - 3.76126319e-1f;
  p = p * z + 1.28379166e-1f;
  const float small = x + x * p;
  const float bounded = magnitude < kLarge ? magnitude : kLarge;
  float q = -1.93548331e-4f;
  q = q * bounded + 3.01967631e-3f;
  q = q * bounded - 2.21326128e-2f;
  q = q * bounded + 1.03734903e-1f;
  q = q * bounded + 6.37407660e-1f;
  q = q * bounded + 1.12754095e0f;
  q = q * bounded + 2.28488294e-4f;
  const float large = std::copysign(1.0f - Exp(-q), x);
  const float y = magnitude < kSmall ? small : large;
  return x == x ? y : x;
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_SCALAR_MATH_H_
