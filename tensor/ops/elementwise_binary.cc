// Arithmetic of two operands, and of a tensor and a number.

#include "weft/tensor/cast.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/elementwise_loop.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/ops/wide.h"

namespace weft {
namespace {

using internal::CheckedElement;
using internal::CheckSameDType;
using internal::IsHalf;
using internal::Wide;

template <typename Op>
Tensor Arithmetic(const Tensor& a, const Tensor& b, const char* where, Op op) {
  CheckSameDType(a, b, where);
  if (IsHalf(a)) return Arithmetic(Wide(a), Wide(b), where, op).To(a.dtype());
  return VisitNumber(a.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapBinary<T, T, T>(where, a, b, op);
  });
}

// `name` is that of the operation with a number, `where` that of the function.
template <typename Op>
Tensor WithNumber(const Tensor& x, double number, const char* where,
                  const char* name, Op op) {
  if (IsHalf(x)) {
    return WithNumber(Wide(x), number, where, name, op).To(x.dtype());
  }
  return VisitNumber(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    return internal::MapWithValue<T, T>({name, {number}}, x,
                                        CheckedElement<T>(number, where), op);
  });
}

template <typename Op>
void Update(const Tensor& y, const Tensor& x, const char* where, Op op) {
  CheckSameDType(y, x, where);
  if (IsHalf(y)) {
    return internal::UpdateInF32(y, where, [&](const Tensor& wide) {
      Update(wide, Wide(x), where, op);
    });
  }
  VisitNumber(y.dtype(), where, [&](auto type) {
    internal::UpdateBinary<typename decltype(type)::Type>(where, y, x, op);
  });
}

template <typename Op>
void UpdateWithNumber(const Tensor& y, double number, const char* where,
                      const char* name, Op op) {
  if (IsHalf(y)) {
    return internal::UpdateInF32(y, where, [&](const Tensor& wide) {
      UpdateWithNumber(wide, number, where, name, op);
    });
  }
  VisitNumber(y.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    const T value = CheckedElement<T>(number, where);
    internal::UpdateUnary<T>(
        {name, {number}}, y, where,
        [value, op](T element) { return op(element, value); });
  });
}

void CheckDivisor(const Tensor& b, const char* where) {
  if (IsFloating(b.dtype())) return;
  VisitNumber(b.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    for (const T value : b.ToVector<T>()) {
      if (value == T{0}) ThrowInvalidArgument(where, ": integer division by 0");
    }
  });
}

// b op a.
template <typename Op>
struct Swapped {
  Op op;
  template <typename T>
  T operator()(T a, T b) const {
    return op(b, a);
  }
};

}  // namespace

Tensor Add(const Tensor& a, const Tensor& b) {
  return Arithmetic(a, b, "Add", internal::AddOp());
}
Tensor Sub(const Tensor& a, const Tensor& b) {
  return Arithmetic(a, b, "Sub", internal::SubOp());
}
Tensor Mul(const Tensor& a, const Tensor& b) {
  return Arithmetic(a, b, "Mul", internal::MulOp());
}
Tensor Div(const Tensor& a, const Tensor& b) {
  CheckDivisor(b, "Div");
  return Arithmetic(a, b, "Div", internal::DivOp());
}
Tensor Maximum(const Tensor& a, const Tensor& b) {
  return Arithmetic(a, b, "Maximum", internal::MaximumOp());
}
Tensor Minimum(const Tensor& a, const Tensor& b) {
  return Arithmetic(a, b, "Minimum", internal::MinimumOp());
}

Tensor Add(const Tensor& a, double b) {
  return WithNumber(a, b, "Add", "AddNumber", internal::AddOp());
}
Tensor Sub(const Tensor& a, double b) {
  return WithNumber(a, b, "Sub", "SubNumber", internal::SubOp());
}
Tensor Sub(double a, const Tensor& b) {
  return WithNumber(b, a, "Sub", "NumberSub", Swapped<internal::SubOp>());
}
Tensor Mul(const Tensor& a, double b) {
  return WithNumber(a, b, "Mul", "MulNumber", internal::MulOp());
}
Tensor Div(const Tensor& a, double b) {
  if (b == 0 && !IsFloating(a.dtype())) {
    ThrowInvalidArgument("Div: integer division by 0");
  }
  return WithNumber(a, b, "Div", "DivNumber", internal::DivOp());
}
Tensor Div(double a, const Tensor& b) {
  CheckDivisor(b, "Div");
  return WithNumber(b, a, "Div", "NumberDiv", Swapped<internal::DivOp>());
}

void Add_(const Tensor& y, const Tensor& x) {
  Update(y, x, "Add_", internal::AddOp());
}
void Sub_(const Tensor& y, const Tensor& x) {
  Update(y, x, "Sub_", internal::SubOp());
}
void Mul_(const Tensor& y, const Tensor& x) {
  Update(y, x, "Mul_", internal::MulOp());
}
void Div_(const Tensor& y, const Tensor& x) {
  CheckDivisor(x, "Div_");
  Update(y, x, "Div_", internal::DivOp());
}
void Add_(const Tensor& y, double x) {
  UpdateWithNumber(y, x, "Add_", "AddNumber_", internal::AddOp());
}
void Mul_(const Tensor& y, double x) {
  UpdateWithNumber(y, x, "Mul_", "MulNumber_", internal::MulOp());
}

void Axpy_(const Tensor& y, double alpha, const Tensor& x) {
  CheckSameDType(y, x, "Axpy_");
  if (IsHalf(y)) {
    return internal::UpdateInF32(
        y, "Axpy_", [&](const Tensor& wide) { Axpy_(wide, alpha, Wide(x)); });
  }
  VisitNumber(y.dtype(), "Axpy_", [&](auto type) {
    using T = typename decltype(type)::Type;
    const T factor = CheckedElement<T>(alpha, "Axpy_");
    internal::UpdateBinary<T>({"Axpy_", {alpha}}, y, x, [factor](T a, T b) {
      return internal::AddOp()(a, internal::MulOp()(factor, b));
    });
  });
}

}  // namespace weft
