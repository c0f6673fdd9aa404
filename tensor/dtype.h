// DType: what the elements of a tensor are.
//
// f32, f64, i64 and u8 are the dtypes of arithmetic; f16 and bf16 compute by
// way of f32 (weft/tensor/ops/wide.h). i32 and i8 are for storage and transfer:
// such tensors are made, viewed, copied, cast, chosen from (Gather,
// IndexSelect, Where), joined, sent and saved; To(DType::kF32) gives one to
// compute with.

#ifndef WEFT_TENSOR_DTYPE_H_
#define WEFT_TENSOR_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "weft/base/error.h"
#include "weft/tensor/half.h"

namespace weft {

enum class DType : uint8_t {
  kF32,
  kF64,
  kI64,
  kU8,
  kBool,
  kF16,
  kBF16,
  kI32,
  kI8
};

inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF64,  DType::kI64,
                                       DType::kU8,   DType::kBool, DType::kF16,
                                       DType::kBF16, DType::kI32,  DType::kI8};

// "f32", "f64", "i64", "u8", "bool", "f16", "bf16", "i32", "i8".
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
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kI8:
      return "i8";
  }
  return "unknown";
}

// Bytes of one element.
constexpr int64_t ItemSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kU8:
    case DType::kBool:
    case DType::kI8:
      return 1;
  }
  return 0;
}

// Whether elements are real numbers: f32, f64, f16, bf16.
constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

// Whether real arithmetic is done in it, not by way of f32: f32, f64.
constexpr bool IsDifferentiable(DType dtype) {
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
template <>
struct DTypeTraits<Float16> {
  static constexpr DType kValue = DType::kF16;
};
template <>
struct DTypeTraits<BFloat16> {
  static constexpr DType kValue = DType::kBF16;
};
template <>
struct DTypeTraits<int32_t> {
  static constexpr DType kValue = DType::kI32;
};
template <>
struct DTypeTraits<int8_t> {
  static constexpr DType kValue = DType::kI8;
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
    case DType::kF16:
      return visit(ElementType<Float16>());
    case DType::kBF16:
      return visit(ElementType<BFloat16>());
    case DType::kI32:
      return visit(ElementType<int32_t>());
    case DType::kI8:
      return visit(ElementType<int8_t>());
  }
  ThrowInvalidArgument("dtype ", static_cast<int>(dtype), " is unknown");
}

// As VisitDType for the numbers of arithmetic; throws INVALID_ARGUMENT naming
// `where` for others.
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
    case DType::kF16:
    case DType::kBF16:
    case DType::kI32:
    case DType::kI8:
      break;
  }
  ThrowInvalidArgument(where, ": dtype is ", Name(dtype),
                       "; wanted f32, f64, i64 or u8; cast with To()");
}

// As VisitDType for f32 and f64; throws INVALID_ARGUMENT for others.
template <typename Visitor>
decltype(auto) VisitFloating(DType dtype, absl::string_view where,
                             Visitor&& visit) {
  if (dtype == DType::kF32) return visit(ElementType<float>());
  if (dtype == DType::kF64) return visit(ElementType<double>());
  ThrowInvalidArgument(where, ": dtype is ", Name(dtype),
                       "; wanted f32 or f64; cast with To()");
}

}  // namespace weft

#endif  // WEFT_TENSOR_DTYPE_H_
