// Elementwise operations on variables: arithmetic, functions, choice.
//
// As the operations on tensors (weft/tensor/ops/elementwise.h): shapes
// broadcast, and what they throw is the same. A number beside a variable has no
// gradient.

#ifndef WEFT_AUTOGRAD_OPS_ELEMENTWISE_H_
#define WEFT_AUTOGRAD_OPS_ELEMENTWISE_H_

#include "weft/autograd/variable.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft {

Variable Add(const Variable& a, const Variable& b);
Variable Sub(const Variable& a, const Variable& b);
Variable Mul(const Variable& a, const Variable& b);
Variable Div(const Variable& a, const Variable& b);
Variable Add(const Variable& a, double b);
Variable Mul(const Variable& a, double b);
Variable Neg(const Variable& x);

// The gradient goes to the larger; equals share it equally.
Variable Maximum(const Variable& a, const Variable& b);

// condition ? a : b; `condition` is bool.
Variable Where(const Tensor& condition, const Variable& a, const Variable& b);

Variable Exp(const Variable& x);
Variable Log(const Variable& x);
Variable Sqrt(const Variable& x);
Variable Relu(const Variable& x);  // gradient 0 at 0
Variable Sigmoid(const Variable& x);
Variable Tanh(const Variable& x);

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
