// Operands of an operation that may be undefined.

#ifndef WEFT_TENSOR_OPS_OPTIONAL_OPERAND_H_
#define WEFT_TENSOR_OPS_OPTIONAL_OPERAND_H_

#include "weft/tensor/tensor.h"

namespace weft::internal {

// What stands among the arguments of OnDevice for a tensor that is not given:
// another, which the operation is told not to touch.
inline const Tensor& Or(const Tensor& tensor, const Tensor& other) {
  return tensor.defined() ? tensor : other;
}

// The elements of such an argument; null if it was not given.
template <typename T>
T* DataIf(bool is_given, const Tensor& x) {
  return is_given ? x.data<T>() : nullptr;
}

inline Tensor ContiguousOrNone(const Tensor& x) {
  return x.defined() ? x.Contiguous() : x;
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_OPTIONAL_OPERAND_H_
