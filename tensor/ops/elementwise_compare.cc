// Comparisons, logic on bool, and Where.

#include <algorithm>
#include <functional>

#include "weft/tensor/cast.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/elementwise_loop.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using internal::IsHalf;
using internal::Wide;

template <typename Op>
Tensor Compare(const Tensor& a, const Tensor& b, const char* where, Op op) {
  internal::CheckSameDType(a, b, where);
  if (IsHalf(a)) return Compare(Wide(a), Wide(b), where, op);
  return VisitDType(a.dtype(), [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapBinary<bool, T, T>(where, a, b, op);
  });
}

template <typename Op>
Tensor CompareNumbers(const Tensor& a, const Tensor& b, const char* where,
                      Op op) {
  internal::CheckSameDType(a, b, where);
  if (IsHalf(a)) return CompareNumbers(Wide(a), Wide(b), where, op);
  return VisitNumber(a.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapBinary<bool, T, T>(where, a, b, op);
  });
}

template <typename Op>
Tensor CompareWithNumber(const Tensor& x, double number, const char* where,
                         const char* name, Op op) {
  if (IsHalf(x)) return CompareWithNumber(Wide(x), number, where, name, op);
  return VisitNumber(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapWithValue<bool, T>(
        {name, {number}}, x, internal::CheckedElement<T>(number, where), op);
  });
}

template <typename Op>
Tensor Logic(const Tensor& a, const Tensor& b, const char* where, Op op) {
  if (a.dtype() != DType::kBool || b.dtype() != DType::kBool) {
    ThrowInvalidArgument(where, ": lhs is ", a.Describe(), ", rhs is ",
                         b.Describe(), "; wanted bool");
  }
  return internal::MapBinary<bool, bool, bool>(where, a, b, op);
}

template <typename T>
WEFT_VECTORIZE void ChooseRun(const bool* condition, const T* a, const T* b,
                              T* out, const std::array<int64_t, 4>& strides,
                              int64_t n) {
  if (strides == std::array<int64_t, 4>{1, 1, 1, 1}) {
    for (int64_t i = 0; i < n; ++i) out[i] = condition[i] ? a[i] : b[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i * strides[3]] =
        condition[i * strides[0]] ? a[i * strides[1]] : b[i * strides[2]];
  }
}

Shape ShapeOfWhere(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Shape both;
  Shape shape;
  if (condition.dtype() != DType::kBool || a.dtype() != b.dtype() ||
      !TryBroadcast(a.shape(), b.shape(), &both) ||
      !TryBroadcast(condition.shape(), both, &shape)) {
    ThrowInvalidArgument("Where: condition is ", condition.Describe(), ", a ",
                         a.Describe(), ", b ", b.Describe(),
                         "; wanted a bool condition, a and b of one dtype, and "
                         "shapes that broadcast together");
  }
  return shape;
}

}  // namespace

Tensor Equal(const Tensor& a, const Tensor& b) {
  return Compare(a, b, "Equal", std::equal_to<>());
}
Tensor NotEqual(const Tensor& a, const Tensor& b) {
  return Compare(a, b, "NotEqual", std::not_equal_to<>());
}
Tensor Less(const Tensor& a, const Tensor& b) {
  return CompareNumbers(a, b, "Less", std::less<>());
}
Tensor LessEqual(const Tensor& a, const Tensor& b) {
  return CompareNumbers(a, b, "LessEqual", std::less_equal<>());
}
Tensor Greater(const Tensor& a, const Tensor& b) {
  return CompareNumbers(a, b, "Greater", std::greater<>());
}
Tensor GreaterEqual(const Tensor& a, const Tensor& b) {
  return CompareNumbers(a, b, "GreaterEqual", std::greater_equal<>());
}

Tensor Equal(const Tensor& a, double b) {
  return CompareWithNumber(a, b, "Equal", "EqualNumber", std::equal_to<>());
}
Tensor Less(const Tensor& a, double b) {
  return CompareWithNumber(a, b, "Less", "LessNumber", std::less<>());
}
Tensor Greater(const Tensor& a, double b) {
  return CompareWithNumber(a, b, "Greater", "GreaterNumber", std::greater<>());
}
Tensor GreaterEqual(const Tensor& a, double b) {
  return CompareWithNumber(a, b, "GreaterEqual", "GreaterEqualNumber",
                           std::greater_equal<>());
}

Tensor LogicalAnd(const Tensor& a, const Tensor& b) {
  return Logic(a, b, "LogicalAnd", std::logical_and<>());
}
Tensor LogicalOr(const Tensor& a, const Tensor& b) {
  return Logic(a, b, "LogicalOr", std::logical_or<>());
}
Tensor LogicalNot(const Tensor& x) {
  if (x.dtype() != DType::kBool) {
    ThrowInvalidArgument("LogicalNot: x is ", x.Describe(), "; wanted bool");
  }
  return internal::MapUnary<bool, bool>("LogicalNot", x, std::logical_not<>());
}

Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const Shape shape = ShapeOfWhere(condition, a, b);
  internal::CheckSameDevice(condition, a, "Where");
  internal::CheckSameDevice(a, b, "Where");
  const Tensor result = Tensor::Empty(shape, a.dtype(), a.device());
  VisitDType(a.dtype(), [&](auto type) {
    using T = typename decltype(type)::Type;
    internal::OnDevice(
        "Where",
        [](const Tensor& condition, const Tensor& a, const Tensor& b,
           const Tensor& y) {
          using internal::LayoutOf;
          const internal::StridedLoop<4> loop(
              y.shape(),
              {LayoutOf(condition), LayoutOf(a), LayoutOf(b), LayoutOf(y)});
          const bool* const choice = condition.data<bool>();
          const T* const lhs = a.data<T>();
          const T* const rhs = b.data<T>();
          T* const out = y.data<T>();
          loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
            ChooseRun(choice + at[0], lhs + at[1], rhs + at[2], out + at[3],
                      strides, n);
          });
        },
        condition, a, b, result);
  });
  return result;
}

Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value) {
  Shape shape;
  if (mask.dtype() != DType::kBool ||
      !TryBroadcast(x.shape(), mask.shape(), &shape)) {
    ThrowInvalidArgument("MaskedFill: x is ", x.Describe(), ", mask ",
                         mask.Describe(),
                         "; wanted a bool mask that broadcasts with x");
  }
  internal::CheckSameDevice(x, mask, "MaskedFill");
  return Where(mask, Tensor::Full({}, value, x.dtype(), x.device()), x);
}

}  // namespace weft
