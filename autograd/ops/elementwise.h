// Elementwise operations on variables: arithmetic, functions, choice.
//
// As the operations on tensors (weft/tensor/ops/elementwise.h): shapes
// broadcast, and what they throw is the same. A number beside a variable has no
// gradient.

#ifndef WEFT_AUTOGRAD_OPS_ELEMENTWISE_H_
#define WEFT_AUTOGRAD_OPS_ELEMENTWISE_H_

#include "weft/autograd/variable.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft {

Variable Add(const Variable& a, const Variable& b);
Variable Sub(const Variable& a, const Variable& b);
Variable Mul(const Variable& a, const Variable& b);
Variable Div(const Variable& a, const Variable& b);
Variable Add(const Variable& a, double b);
Variable Mul(const Variable& a, double b);
Variable Neg(const Variable& x);

// The gradient goes to the larger (smaller); equals share it equally.
Variable Maximum(const Variable& a, const Variable& b);
Variable Minimum(const Variable& a, const Variable& b);

// condition ? a : b; `condition` is bool.
Variable Where(const Tensor& condition, const Variable& a, const Variable& b);

Variable Exp(const Variable& x);
Variable Log(const Variable& x);
Variable Sqrt(const Variable& x);
Variable Relu(const Variable& x);  // gradient 0 at 0
Variable Sigmoid(const Variable& x);
Variable Tanh(const Variable& x);
Variable Abs(const Variable& x);  // gradient 0 at 0
Variable Square(const Variable& x);
Variable Log1p(const Variable& x);
Variable Softplus(const Variable& x);
Variable Sin(const Variable& x);
Variable Cos(const Variable& x);
Variable Pow(const Variable& x, double exponent);
// The gradient passes where low <= x <= high.
Variable Clamp(const Variable& x, double low, double high);
Variable Gelu(const Variable& x, GeluKind kind = GeluKind::kExact);
Variable Silu(const Variable& x);

// `value` where `mask`, a bool tensor that broadcasts with x, is true.
Variable MaskedFill(const Variable& x, const Tensor& mask, double value);

// x as `dtype`; the gradient is cast back. The result may be f16 or bf16, and
// then so is its gradient: such gradients cannot be added up, so the result may
// be used only once. A result that is not floating has no history.
Variable Cast(const Variable& x, DType dtype);

inline Variable operator+(const Variable& a, const Variable& b) {
  return Add(a, b);
}
inline Variable operator-(const Variable& a, const Variable& b) {
  return Sub(a, b);
}
inline Variable operator*(const Variable& a, const Variable& b) {
  return Mul(a, b);
}
inline Variable operator/(const Variable& a, const Variable& b) {
  return Div(a, b);
}
inline Variable operator+(const Variable& a, double b) { return Add(a, b); }
inline Variable operator+(double a, const Variable& b) { return Add(b, a); }
inline Variable operator-(const Variable& a, double b) { return Add(a, -b); }
inline Variable operator-(double a, const Variable& b) {
  return Add(Neg(b), a);
}
inline Variable operator*(const Variable& a, double b) { return Mul(a, b); }
inline Variable operator*(double a, const Variable& b) { return Mul(b, a); }
inline Variable operator/(const Variable& a, double b) {
  return Mul(a, 1.0 / b);
}
inline Variable operator-(const Variable& x) { return Neg(x); }

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_ELEMENTWISE_H_
