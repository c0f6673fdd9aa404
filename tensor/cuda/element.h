// Elements in kernels: 16-bit floating numbers, and one element's value as
// another type.

#ifndef WEFT_TENSOR_CUDA_ELEMENT_H_
#define WEFT_TENSOR_CUDA_ELEMENT_H_

#include <cstdint>
#include <limits>
#include <type_traits>

#include "weft/tensor/cuda/call.h"
#include "weft/tensor/cuda/host_device.h"
#include "weft/tensor/half.h"

namespace weft::internal::cuda {

// The bits of Float16 and BFloat16 of tensor/half.h, which only the CPU can
// make.
struct Half {
  uint16_t bits;
};
struct BrainHalf {
  uint16_t bits;
};

WEFT_HOST_DEVICE inline Half HalfOf(float value) {
  return {Float16Bits(value)};
}
WEFT_HOST_DEVICE inline float FloatOf(Half half) {
  return FloatOfFloat16(half.bits);
}
WEFT_HOST_DEVICE inline BrainHalf BrainHalfOf(float value) {
  return {BFloat16Bits(value)};
}
WEFT_HOST_DEVICE inline float FloatOf(BrainHalf half) {
  return FloatOfBFloat16(half.bits);
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
template <>
inline constexpr Element kElementOf<uint8_t> = Element::kU8;

inline bool AreAll(const Call& call, Element element) {
  for (int i = 0; i < call.count; ++i) {
    if (call.operands[i].element != element) return false;
  }
  return true;
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_ELEMENT_H_
