// Einsum: products and sums named by letters.
//
//   Einsum("bij,bjk->bik", a, b)   batched matrix products
//   Einsum("i,j->ij", a, b)        outer product
//   Einsum("bthd,bshd->bhts", q, k)
//   Einsum("ij->ji", a)            transpose; "ij->i" sums over j
//
// Each letter names one dimension; a letter that the result has not is summed
// over. After "->" each letter stands once. Neither a letter twice in one
// operand (a diagonal) nor "..." is supported. f32, f64, f16
// and bf16.
//
// Two operands become one batched MatMul. Throws weft::Error, INVALID_ARGUMENT,
// for an equation that is not of this form or does not fit the operands, and
// for operands of two devices.

#ifndef WEFT_TENSOR_OPS_EINSUM_H_
#define WEFT_TENSOR_OPS_EINSUM_H_

#include "absl/strings/string_view.h"
#include "weft/tensor/tensor.h"

namespace weft {

Tensor Einsum(absl::string_view equation, const Tensor& a);
Tensor Einsum(absl::string_view equation, const Tensor& a, const Tensor& b);

// dL/da of shape `shape`, and dL/db, from grad = dL/dresult.
Tensor EinsumBackward(absl::string_view equation, const Tensor& grad,
                      const Shape& shape);
Tensor EinsumBackwardA(absl::string_view equation, const Tensor& grad,
                       const Tensor& b, const Shape& shape);
Tensor EinsumBackwardB(absl::string_view equation, const Tensor& grad,
                       const Tensor& a, const Shape& shape);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_EINSUM_H_
