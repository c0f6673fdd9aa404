// Elements in kernels: 16-bit floating numbers, and one element's value as
// another type.

#ifndef WEFT_TENSOR_CUDA_ELEMENT_H_
#define WEFT_TENSOR_CUDA_ELEMENT_H_

#include <cstdint>
#include <limits>
#include <type_traits>

#include "weft/tensor/cuda/call.h"
#include "weft/tensor/cuda/host_device.h"

namespace weft::internal::cuda {

// As Float16 and BFloat16 of tensor/half.h, whose conversions only the CPU can
// call; the tests compare all bits.
struct Half {
  uint16_t bits;
};
struct BrainHalf {
  uint16_t bits;
};

// Source: Giesen, "Float to half done quick", 2012 (rounding to even version).
WEFT_HOST_DEVICE inline Half HalfOf(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t result;
  if (magnitude > 0x7F800000u) {
    result = 0x7E00u;
  } else if (magnitude >= 0x477FF000u) {  // From 65520 on: infinity.
    result = 0x7C00u;
  } else if (magnitude < (113u << 23)) {
    // Adding 0.5 lets the float adder round at the last place of a subnormal.
    const float aligned = __builtin_bit_cast(float, magnitude) + 0.5f;
    result = __builtin_bit_cast(uint32_t, aligned) - 0x3F000000u;
  } else {
    // 112 is the difference of the exponents' biases.
    const uint32_t is_odd = (magnitude >> 13) & 1u;
    result = (magnitude - (112u << 23) + 0xFFFu + is_odd) >> 13;
  }
  return {static_cast<uint16_t>(sign | result)};
}

WEFT_HOST_DEVICE inline float FloatOf(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  const uint32_t magnitude = half.bits & 0x7FFFu;
  uint32_t result;
  if (magnitude >= 0x7C00u) {  // Infinity and NaN.
    result = (magnitude << 13) + (224u << 23);
  } else if (magnitude < 0x0400u) {
    // A subnormal is its fraction in units of 2^-24.
    result = __builtin_bit_cast(
        uint32_t, static_cast<float>(magnitude) * 5.9604644775390625e-8f);
  } else {
    result = (magnitude << 13) + (112u << 23);
  }
  return __builtin_bit_cast(float, sign | result);
}

WEFT_HOST_DEVICE inline BrainHalf BrainHalfOf(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  return {static_cast<uint16_t>(is_nan ? quiet : rounded)};
}

WEFT_HOST_DEVICE inline float FloatOf(BrainHalf half) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(half.bits) << 16);
}

template <typename T>
inline constexpr bool kIsHalf =
    std::is_same_v<T, Half> || std::is_same_v<T, BrainHalf>;

// As CastElement of tensor/cast.h.
template <typename To, typename From>
WEFT_HOST_DEVICE inline To Cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return Cast<To>(FloatOf(value));
  } else if constexpr (std::is_same_v<To, Half>) {
    return HalfOf(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BrainHalf>) {
    return BrainHalfOf(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> &&
                       std::is_integral_v<To>) {
    constexpr To kLowest = std::numeric_limits<To>::min();
    constexpr To kHighest = std::numeric_limits<To>::max();
    constexpr From kLow = static_cast<From>(kLowest);
    constexpr From kHigh = static_cast<From>(kHighest);
    if (!(value > kLow)) return value <= kLow ? kLowest : To(0);
    return value >= kHigh ? kHighest : static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// Carries an element type to a generic lambda.
template <typename T>
struct TypeOf {
  using Type = T;
};

// visit(TypeOf<T>()) for the T of `element`.
template <typename Visit>
auto VisitElement(Element element, const Visit& visit) {
  switch (element) {
    case Element::kF32:
      return visit(TypeOf<float>());
    case Element::kF64:
      return visit(TypeOf<double>());
    case Element::kI64:
      return visit(TypeOf<int64_t>());
    case Element::kU8:
      return visit(TypeOf<uint8_t>());
    case Element::kBool:
      return visit(TypeOf<bool>());
    case Element::kF16:
      return visit(TypeOf<Half>());
    case Element::kBF16:
      return visit(TypeOf<BrainHalf>());
    case Element::kI32:
      return visit(TypeOf<int32_t>());
    case Element::kI8:
      break;
  }
  return visit(TypeOf<int8_t>());
}

// Element `at` of `in`, as another type.
template <typename To>
WEFT_HOST_DEVICE To LoadAs(Element from, const void* in, int64_t at) {
  switch (from) {
    case Element::kF32:
      return Cast<To>(static_cast<const float*>(in)[at]);
    case Element::kF64:
      return Cast<To>(static_cast<const double*>(in)[at]);
    case Element::kI64:
      return Cast<To>(static_cast<const int64_t*>(in)[at]);
    case Element::kU8:
      return Cast<To>(static_cast<const uint8_t*>(in)[at]);
    case Element::kBool:
      return Cast<To>(static_cast<const bool*>(in)[at]);
    case Element::kF16:
      return Cast<To>(static_cast<const Half*>(in)[at]);
    case Element::kBF16:
      return Cast<To>(static_cast<const BrainHalf*>(in)[at]);
    case Element::kI32:
      return Cast<To>(static_cast<const int32_t*>(in)[at]);
    case Element::kI8:
      break;
  }
  return Cast<To>(static_cast<const int8_t*>(in)[at]);
}

template <typename T>
inline constexpr Element kElementOf = Element::kF32;
template <>
inline constexpr Element kElementOf<double> = Element::kF64;
template <>
inline constexpr Element kElementOf<int64_t> = Element::kI64;
template <>
inline constexpr Element kElementOf<bool> = Element::kBool;

inline bool AreAll(const Call& call, Element element) {
  for (int i = 0; i < call.count; ++i) {
    if (call.operands[i].element != element) return false;
  }
  return true;
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_ELEMENT_H_
