// CastElement, CheckedElement: one element's value as another type.

#ifndef WEFT_TENSOR_CAST_H_
#define WEFT_TENSOR_CAST_H_

#include <cmath>
#include <limits>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "weft/base/error.h"
#include "weft/tensor/dtype.h"

namespace weft::internal {

template <typename T>
inline constexpr bool kIsHalf =
    std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// Floating to integer truncates, saturates at the ends and makes NaN 0 (the
// bare conversion is undefined there); wider to narrower integer wraps; to bool
// is "not 0".
template <typename To, typename From>
inline To CastElement(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return CastElement<To>(static_cast<float>(value));
  } else if constexpr (kIsHalf<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (std::is_floating_point_v<From> &&
                       std::is_integral_v<To>) {
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
    if (!(value > kLow)) {
      return value <= kLow ? std::numeric_limits<To>::min() : To(0);
    }
    return value >= kHigh ? std::numeric_limits<To>::max()
                          : static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// `value` as T; throws INVALID_ARGUMENT if T cannot hold it. Floating types
// hold every value, rounded.
template <typename T>
T CheckedElement(double value, absl::string_view where) {
  const T element = CastElement<T>(value);
  if constexpr (!IsFloating(DTypeOf<T>)) {
    // The first number above all of T: the largest i64 becomes it as a double.
    const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);
    if (static_cast<double>(element) != value || value >= end) {
      ThrowInvalidArgument(where, ": ", value, " is not a value of dtype ",
                           Name(DTypeOf<T>));
    }
  }
  return element;
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_CAST_H_
