// CallOf: an operation and its tensors as the kernels of cuda/ take them.

#ifndef WEFT_TENSOR_CUDA_OPERANDS_H_
#define WEFT_TENSOR_CUDA_OPERANDS_H_

#include <algorithm>

#include "absl/types/span.h"
#include "weft/tensor/cuda/call.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/tensor.h"

namespace weft::internal {

static_assert(cuda::kMaxTensorDims == kMaxDims);
static_assert(cuda::kMaxNumbers == Operation::kMaxNumbers);
static_assert(static_cast<int>(cuda::Element::kF32) ==
                  static_cast<int>(DType::kF32) &&
              static_cast<int>(cuda::Element::kI8) ==
                  static_cast<int>(DType::kI8));

inline cuda::Operand OperandOf(const Tensor& x) {
  cuda::Operand operand = {};
  operand.address = x.address();
  operand.element = static_cast<cuda::Element>(x.dtype());
  operand.dims = static_cast<int>(x.dim());
  operand.numel = x.numel();
  operand.is_contiguous = x.is_contiguous();
  std::copy(x.shape().begin(), x.shape().end(), operand.sizes);
  std::copy(x.strides().begin(), x.strides().end(), operand.strides);
  return operand;
}

// REQUIRES: at most cuda::kMaxOperands tensors.
inline cuda::Call CallOf(const Operation& operation,
                         absl::Span<const Tensor* const> tensors) {
  cuda::Call call = {};
  for (const Tensor* tensor : tensors) {
    call.operands[call.count++] = OperandOf(*tensor);
  }
  std::copy(operation.numbers.begin(), operation.numbers.end(), call.numbers);
  return call;
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_CUDA_OPERANDS_H_
