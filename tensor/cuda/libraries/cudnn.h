// Conv2d and its gradients by cuDNN, which is loaded when the first of them
// runs.

#ifndef WEFT_TENSOR_CUDA_LIBRARIES_CUDNN_H_
#define WEFT_TENSOR_CUDA_LIBRARIES_CUDNN_H_

#include "absl/status/status.h"
#include "weft/tensor/cuda/call.h"

namespace weft::internal::cuda {

// f32, multiplied as f32 and not TF32, and f64; contiguous. By algorithms whose
// sums have one order. Numbers: stride, padding and dilation, [h, w] each.
// `stream` is a cudaStream_t of the current device. kUnimplemented for what
// cuDNN lacks, if libcudnn.so.9 is not found, or in a build without its
// headers; kResourceExhausted without memory for its workspace; kInternal with
// its status if it fails.
//
// Operands: x [n, channels, h, w], weight [filters, channels, kh, kw], bias
// [filters] if there is one, result.
absl::Status Conv2dByCudnn(const Call& call, void* stream);
// Operands: grad, weight, the gradient of x.
absl::Status Conv2dBackwardInputByCudnn(const Call& call, void* stream);
// Operands: grad, x, the gradient of the weight, and of the bias, if there is.
absl::Status Conv2dBackwardWeightByCudnn(const Call& call, void* stream);
// Operands: grad, the gradient of the bias. By a kernel of ours.
absl::Status Conv2dBackwardBiasByCudnn(const Call& call, void* stream);

// Whether the library is found and has all functions that are called.
absl::Status CheckCudnn();

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_LIBRARIES_CUDNN_H_
