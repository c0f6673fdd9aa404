// Functions of one or two numbers, written so that loops over them vectorise.
// Kernels of CUDA use them, too.

#ifndef WEFT_TENSOR_OPS_SCALAR_MATH_H_
#define WEFT_TENSOR_OPS_SCALAR_MATH_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "weft/tensor/cuda/host_device.h"

namespace weft::internal {

// Integers wrap: signed overflow is computed without sign.
template <typename T>
using Wrapping =
    typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                std::enable_if<true, T>>::type;

struct AddOp {
  template <typename T>
  WEFT_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) +
                          static_cast<Wrapping<T>>(b));
  }
};

struct SubOp {
  template <typename T>
  WEFT_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) -
                          static_cast<Wrapping<T>>(b));
  }
};

struct MulOp {
  template <typename T>
  WEFT_HOST_DEVICE T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) *
                          static_cast<Wrapping<T>>(b));
  }
};

// REQUIRES: b != 0 for integers.
struct DivOp {
  template <typename T>
  WEFT_HOST_DEVICE T operator()(T a, T b) const {
    if constexpr (std::is_same_v<T, int64_t>) {
      if (b == -1) return SubOp()(T{0}, a);  // The lowest / -1 would trap.
    }
    return static_cast<T>(a / b);
  }
};

struct MaximumOp {
  template <typename T>
  WEFT_HOST_DEVICE T operator()(T a, T b) const {
    return ((a > b) | (a != a)) ? a : b;
  }
};

struct MinimumOp {
  template <typename T>
  WEFT_HOST_DEVICE T operator()(T a, T b) const {
    return ((a < b) | (a != a)) ? a : b;
  }
};

// e^x; within 2 units in the last place, but results below 2e-38 are 0. The
// polynomial and the split of ln 2 are Cephes' expf. Source: Moshier, Cephes
// Math Library 2.2, single/expf.c.
WEFT_HOST_DEVICE inline float Exp(float x) {
  constexpr float kHigh = 89.0f;  // Its power is infinite.
  constexpr float kLow = -86.9f;
  // 1.5 * 2^23 + 126: a small number that is added to it is rounded to whole
  // ones, and its last bits are that whole number plus 126.
  constexpr float kWhole = 12583038.0f;
  const float above = x < kLow ? kLow : x;
  const float bounded = above > kHigh ? kHigh : above;  // NaN stays.
  const float shifted = bounded * 1.44269504088896341f + kWhole;
  const float n = shifted - kWhole;
  const float r = (bounded - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^(n - 1), since 2^128 is none.
  const float half =
      __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23);
  const float y = (p + p) * half;
  return x < kLow ? 0.0f : y;
}
WEFT_HOST_DEVICE inline double Exp(double x) { return std::exp(x); }

// 1 / (1 + e^-x); f32 within 3 units in the last place, and 0 below -88.8.
template <typename T>
WEFT_HOST_DEVICE T Sigmoid(T x) {
  return T(1) / (T(1) + Exp(-x));
}

WEFT_HOST_DEVICE inline double Tanh(double x) { return std::tanh(x); }
// Within 2 units in the last place. Source: Cephes, single/tanhf.c.
WEFT_HOST_DEVICE inline float Tanh(float x) {
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

// The standard normal distribution at x: how likely less is, and the density.
template <typename T>
struct NormalAt {
  T below;
  T density;
};

WEFT_HOST_DEVICE inline NormalAt<double> NormalDistribution(double x) {
  return {0.5 * std::erfc(-x * 0.70710678118654752440),
          0.39894228040143267794 * std::exp(-0.5 * x * x)};
}
// `below` is within 3 units in the last place of 0.5, and in the tail, where it
// is small, within 12 of its own down to x = -5. For x <= 0 it is
// e^(-x^2 / 2) R(-x), R(u) = e^(u^2 / 2) erfc(u / sqrt(2)) / 2 by a quotient of
// polynomials, and else 1 less that of -x. Source of the coefficients, all
// positive: least squares on [0, 13.3] with weights raised where the relative
// error is largest (Lawson's algorithm); relative error of R 2^-24.8.
WEFT_HOST_DEVICE inline NormalAt<float> NormalDistribution(float x) {
  constexpr float kFar = 14.0f;  // e^(-x^2 / 2) is 0.
  const float magnitude = std::fabs(x);
  const float u = magnitude > kFar ? kFar : magnitude;
  float p = 4.020187072e-03f;
  p = p * u + 3.998422995e-02f;
  p = p * u + 1.813070476e-01f;
  p = p * u + 4.356868863e-01f;
  p = p * u + 0.5f;
  float q = 1.007697079e-02f;
  q = q * u + 1.002329811e-01f;
  q = q * u + 4.643810689e-01f;
  q = q * u + 1.194485664e+00f;
  q = q * u + 1.669258714e+00f;
  q = q * u + 1.0f;
  const float power = Exp(-0.5f * x * x);
  const float tail = power * (p / q);
  return {x < 0.0f ? tail : 1.0f - tail, 0.39894228040143267794f * power};
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_SCALAR_MATH_H_
