// Matrix products. f32, f64, f16 and bf16.
//
// Operands may be transposed views: they are read as they lie, without a copy.
// f32 runs on oneDNN where it is larger than a call is dear, and bf16 where the
// CPU multiplies it; other bf16 and f16 by way of f32.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, dtypes or devices that do
// not fit.

#ifndef WEFT_TENSOR_OPS_MATMUL_H_
#define WEFT_TENSOR_OPS_MATMUL_H_

#include "weft/tensor/tensor.h"

namespace weft {

// [..., m, k] x [..., k, n] -> [..., m, n]; leading dimensions broadcast.
Tensor MatMul(const Tensor& a, const Tensor& b);

// out = a x b, and out += a x b, for matrices [m, k], [k, n], `out` [m, n]
// contiguous: how a gradient is made in its place. Bump out's version.
void MatMulInto(const Tensor& out, const Tensor& a, const Tensor& b);
void MatMulAdd_(const Tensor& out, const Tensor& a, const Tensor& b);

// x [..., in], weight [out, in], bias [out] or undefined -> [..., out]:
// x * weight^T + bias.
Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_MATMUL_H_
