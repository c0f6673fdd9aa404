// DType: what the elements of a tensor are.

#ifndef WEFT_TENSOR_DTYPE_H_
#define WEFT_TENSOR_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "weft/base/error.h"

namespace weft {

enum class DType : uint8_t { kF32, kF64, kI64, kU8, kBool };

// "f32", "f64", "i64", "u8", "bool".
constexpr absl::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
    case DType::kBool:
      return "bool";
  }
  return "unknown";
}

// Bytes of one element.
constexpr int64_t ItemSize(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64;
}

template <typename T>
struct DTypeTraits;  // Not defined: T is no element type.
template <>
struct DTypeTraits<float> {
  static constexpr DType kValue = DType::kF32;
};
template <>
struct DTypeTraits<double> {
  static constexpr DType kValue = DType::kF64;
};
template <>
struct DTypeTraits<int64_t> {
  static constexpr DType kValue = DType::kI64;
};
template <>
struct DTypeTraits<uint8_t> {
  static constexpr DType kValue = DType::kU8;
};
template <>
struct DTypeTraits<bool> {
  static constexpr DType kValue = DType::kBool;
};

template <typename T>
inline constexpr DType DTypeOf = DTypeTraits<T>::kValue;

// Carries an element type to a generic lambda: `using T = typename
// decltype(type)::Type`.
template <typename T>
struct ElementType {
  using Type = T;
};

// Calls visit(ElementType<T>()) for the T of `dtype`.
template <typename Visitor>
decltype(auto) VisitDType(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(ElementType<float>());
    case DType::kF64:
      return visit(ElementType<double>());
    case DType::kI64:
      return visit(ElementType<int64_t>());
    case DType::kU8:
      return visit(ElementType<uint8_t>());
    case DType::kBool:
      return visit(ElementType<bool>());
  }
  ThrowInvalidArgument("dtype ", static_cast<int>(dtype), " is unknown");
}

// As VisitDType for numbers; throws INVALID_ARGUMENT naming `where` for bool.
template <typename Visitor>
decltype(auto) VisitNumber(DType dtype, absl::string_view where,
                           Visitor&& visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(ElementType<float>());
    case DType::kF64:
      return visit(ElementType<double>());
    case DType::kI64:
      return visit(ElementType<int64_t>());
    case DType::kU8:
      return visit(ElementType<uint8_t>());
    case DType::kBool:
      break;
  }
  ThrowInvalidArgument(where, ": dtype is ", Name(dtype),
                       "; wanted f32, f64, i64 or u8");
}

// As VisitDType for f32 and f64; throws INVALID_ARGUMENT for others.
template <typename Visitor>
decltype(auto) VisitFloating(DType dtype, absl::string_view where,
                             Visitor&& visit) {
  if (dtype == DType::kF32) return visit(ElementType<float>());
  if (dtype == DType::kF64) return visit(ElementType<double>());
  ThrowInvalidArgument(where, ": dtype is ", Name(dtype),
                       "; wanted f32 or f64");
}

}  // namespace weft

#endif  // WEFT_TENSOR_DTYPE_H_
