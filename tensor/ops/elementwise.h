// Elementwise operations: arithmetic, functions, comparisons, choice.
//
// Operands of one dtype; shapes broadcast (aligned at the last dimension, a
// size of 1 stretches). A number beside a tensor counts as an element of its
// dtype, of f16 and bf16 of f32, which must be able to hold it. Results are new
// and contiguous, except of the functions whose names end in `_`, which write
// into their first argument and bump its version; their other arguments
// broadcast to its shape.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes or dtypes that do not fit
// and for tensors of two devices.
// Thread-safety: as for reading and writing the tensors given.

#ifndef WEFT_TENSOR_OPS_ELEMENTWISE_H_
#define WEFT_TENSOR_OPS_ELEMENTWISE_H_

#include "weft/tensor/tensor.h"

namespace weft {

// Numbers (f32, f64, f16, bf16, i64, u8; integers wrap). Integer Div truncates,
// and throws for a divisor of 0: of a device, it waits for the divisors.
Tensor Add(const Tensor& a, const Tensor& b);
Tensor Sub(const Tensor& a, const Tensor& b);
Tensor Mul(const Tensor& a, const Tensor& b);
Tensor Div(const Tensor& a, const Tensor& b);
Tensor Add(const Tensor& a, double b);
Tensor Sub(const Tensor& a, double b);
Tensor Sub(double a, const Tensor& b);
Tensor Mul(const Tensor& a, double b);
Tensor Div(const Tensor& a, double b);
Tensor Div(double a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return Add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return Sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return Mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return Div(a, b); }
inline Tensor operator+(const Tensor& a, double b) { return Add(a, b); }
inline Tensor operator+(double a, const Tensor& b) { return Add(b, a); }
inline Tensor operator-(const Tensor& a, double b) { return Sub(a, b); }
inline Tensor operator-(double a, const Tensor& b) { return Sub(a, b); }
inline Tensor operator*(const Tensor& a, double b) { return Mul(a, b); }
inline Tensor operator*(double a, const Tensor& b) { return Mul(b, a); }
inline Tensor operator/(const Tensor& a, double b) { return Div(a, b); }
inline Tensor operator/(double a, const Tensor& b) { return Div(a, b); }

// Numbers. NaN if either is NaN.
Tensor Maximum(const Tensor& a, const Tensor& b);
Tensor Minimum(const Tensor& a, const Tensor& b);

Tensor Neg(const Tensor& x);
Tensor Abs(const Tensor& x);
Tensor Sign(const Tensor& x);  // -1, 0 or 1; NaN of NaN.
Tensor Square(const Tensor& x);
Tensor Relu(const Tensor& x);
Tensor Clamp(const Tensor& x, double low, double high);
inline Tensor operator-(const Tensor& x) { return Neg(x); }

// f32, f64, f16 and bf16.
Tensor Exp(const Tensor& x);
Tensor Log(const Tensor& x);
Tensor Log1p(const Tensor& x);
Tensor Sqrt(const Tensor& x);
Tensor Sigmoid(const Tensor& x);
Tensor Tanh(const Tensor& x);
Tensor Softplus(const Tensor& x);  // log(1 + exp(x)), without overflow.
Tensor Sin(const Tensor& x);
Tensor Cos(const Tensor& x);
Tensor Pow(const Tensor& x, double exponent);

Tensor Silu(const Tensor& x);  // x * sigmoid(x)

// kExact: x * Phi(x), Phi the normal distribution function; kTanh: its
// approximation by tanh, as GPT-2 has it. In f32 the error of both is at most 3
// units in the last place of x, that of the gradient at most 3 of grad (kTanh
// 6): small results of large negative x are not exact to their own last place.
// Source: Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016.
enum class GeluKind { kExact, kTanh };
Tensor Gelu(const Tensor& x, GeluKind kind = GeluKind::kExact);

// dL/dx from `grad` = dL/dy and the operand x.
Tensor SiluBackward(const Tensor& grad, const Tensor& x);
Tensor GeluBackward(const Tensor& grad, const Tensor& x, GeluKind kind);

// dL/dx from `grad`, dL/dy of the same shape, in one pass. As Exp. Of
// relu, sigmoid and tanh from the result y.
Tensor ReluBackward(const Tensor& grad, const Tensor& y);
Tensor SigmoidBackward(const Tensor& grad, const Tensor& y);
Tensor TanhBackward(const Tensor& grad, const Tensor& y);

// bool results. Numbers; Equal and NotEqual of bool too. NaN equals nothing.
Tensor Equal(const Tensor& a, const Tensor& b);
Tensor NotEqual(const Tensor& a, const Tensor& b);
Tensor Less(const Tensor& a, const Tensor& b);
Tensor LessEqual(const Tensor& a, const Tensor& b);
Tensor Greater(const Tensor& a, const Tensor& b);
Tensor GreaterEqual(const Tensor& a, const Tensor& b);
Tensor Equal(const Tensor& a, double b);
Tensor Less(const Tensor& a, double b);
Tensor Greater(const Tensor& a, double b);
Tensor GreaterEqual(const Tensor& a, double b);
Tensor LogicalAnd(const Tensor& a, const Tensor& b);  // bool.
Tensor LogicalOr(const Tensor& a, const Tensor& b);   // bool.
Tensor LogicalNot(const Tensor& x);                   // bool.

// condition ? a : b; `condition` is bool; the three broadcast together.
Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b);

// `value` where `mask`, bool, is true; the two broadcast together. Any dtype,
// which must be able to hold `value`.
Tensor MaskedFill(const Tensor& x, const Tensor& mask, double value);

void Add_(const Tensor& y, const Tensor& x);
void Sub_(const Tensor& y, const Tensor& x);
void Mul_(const Tensor& y, const Tensor& x);
void Div_(const Tensor& y, const Tensor& x);
void Add_(const Tensor& y, double x);
void Mul_(const Tensor& y, double x);
void Axpy_(const Tensor& y, double alpha, const Tensor& x);  // y += alpha * x
void Relu_(const Tensor& y);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_ELEMENTWISE_H_
