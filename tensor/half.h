// Float16, BFloat16: 16-bit floating numbers.
//
// They hold bits and convert to and from float; arithmetic happens in float.
// Conversion to 16 bits rounds to the nearest, ties to even. A number too large
// becomes infinity, NaN stays NaN (made quiet), and numbers below the smallest
// normal one become subnormal. From double: by way of float, as PyTorch does.
//
// Float16 is IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits, up to
// 65504. BFloat16 is the upper half of a float: 1, 8 and 7 bits.

#ifndef WEFT_TENSOR_HALF_H_
#define WEFT_TENSOR_HALF_H_

#include <cstdint>

#include "weft/tensor/cuda/host_device.h"

namespace weft {

namespace internal {

// Without branches, so that loops over it vectorise.
// Source: Giesen, "Float to half done quick", 2012 (rounding to even version).
WEFT_HOST_DEVICE inline uint16_t Float16Bits(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  // Adding 0.5 lets the float adder round at the last place of a subnormal.
  const float aligned = __builtin_bit_cast(float, magnitude) + 0.5f;
  const uint32_t subnormal =
      __builtin_bit_cast(uint32_t, aligned) - 0x3F000000u;
  // 112 is the difference of the exponents' biases.
  const uint32_t is_odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude - (112u << 23) + 0xFFFu + is_odd) >> 13;
  uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
  // From 65520 on, the nearest is infinity.
  result = magnitude >= 0x477FF000u ? 0x7C00u : result;
  result = magnitude > 0x7F800000u ? 0x7E00u : result;
  return static_cast<uint16_t>(sign | result);
}

WEFT_HOST_DEVICE inline float FloatOfFloat16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);
  const uint32_t special = shifted + (224u << 23);  // Infinity and NaN.
  // A subnormal is its fraction in units of 2^-24.
  const uint32_t subnormal = __builtin_bit_cast(
      uint32_t, static_cast<float>(static_cast<int32_t>(magnitude)) *
                    5.9604644775390625e-8f);
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  const uint32_t result = magnitude >= 0x7C00u ? special : finite;
  return __builtin_bit_cast(float, sign | result);
}

WEFT_HOST_DEVICE inline uint16_t BFloat16Bits(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet
                                                                  : rounded);
}

WEFT_HOST_DEVICE inline float FloatOfBFloat16(uint16_t half) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(half) << 16);
}

}  // namespace internal

class Float16 {
 public:
  Float16() = default;  // Not initialised.
  explicit Float16(float value) : bits_(internal::Float16Bits(value)) {}
  static Float16 FromBits(uint16_t bits) {
    Float16 result;
    result.bits_ = bits;
    return result;
  }

  explicit operator float() const { return internal::FloatOfFloat16(bits_); }
  explicit operator double() const { return static_cast<float>(*this); }
  uint16_t bits() const { return bits_; }

  // As numbers: NaN equals nothing, -0 equals 0.
  friend bool operator==(Float16 a, Float16 b) {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend bool operator!=(Float16 a, Float16 b) { return !(a == b); }

 private:
  uint16_t bits_;
};

class BFloat16 {
 public:
  BFloat16() = default;  // Not initialised.
  explicit BFloat16(float value) : bits_(internal::BFloat16Bits(value)) {}
  static BFloat16 FromBits(uint16_t bits) {
    BFloat16 result;
    result.bits_ = bits;
    return result;
  }

  explicit operator float() const { return internal::FloatOfBFloat16(bits_); }
  explicit operator double() const { return static_cast<float>(*this); }
  uint16_t bits() const { return bits_; }

  // As numbers: NaN equals nothing, -0 equals 0.
  friend bool operator==(BFloat16 a, BFloat16 b) {
    return static_cast<float>(a) == static_cast<float>(b);
  }
  friend bool operator!=(BFloat16 a, BFloat16 b) { return !(a == b); }

 private:
  uint16_t bits_;
};

static_assert(sizeof(Float16) == 2 && sizeof(BFloat16) == 2);

}  // namespace weft

#endif  // WEFT_TENSOR_HALF_H_
