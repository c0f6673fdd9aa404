// Kernels of tensors on CUDA, found by the name of the operation.
//
// BUILD takes cuda_kernels.cc and cuda/*.cu where there is a toolkit, else
// no_cuda_kernels.cc.

#ifndef WEFT_TENSOR_CUDA_KERNELS_H_
#define WEFT_TENSOR_CUDA_KERNELS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/tensor/on_device.h"
#include "weft/tensor/tensor.h"

namespace weft::internal {

// Launches the kernel of `operation` on `stream`, a cudaStream_t.
// kUnimplemented if there is none, or none for these dtypes or strides, with
// its name and what it was asked for. kResourceExhausted without memory for
// what a kernel keeps while it runs.
absl::Status LaunchCudaKernel(const Operation& operation,
                              absl::Span<const Tensor* const> tensors,
                              void* stream);

}  // namespace weft::internal

#endif  // WEFT_TENSOR_CUDA_KERNELS_H_
