// The launchers of the kernels of this folder, each explicitly instantiated in
// a .cu file. The operands and numbers of each are told where it is written:
// copy.h, elementwise.h, rows.h, update.h.

#ifndef WEFT_TENSOR_CUDA_LAUNCHERS_H_
#define WEFT_TENSOR_CUDA_LAUNCHERS_H_

#include "weft/tensor/cuda/call.h"

namespace weft::internal::cuda {

// copy.cu
const char* LaunchFill(const Call& call, void* stream);
const char* LaunchCopy(const Call& call, void* stream);
const char* LaunchWhere(const Call& call, void* stream);

// unary.cu, binary.cu: Fn is one of functions.h that the file lists.
template <typename Fn>
const char* LaunchUnary(const Call& call, void* stream);
template <typename Fn>
const char* LaunchBinary(const Call& call, void* stream);

// rows.cu
const char* LaunchSum(const Call& call, void* stream);
const char* LaunchMax(const Call& call, void* stream);
const char* LaunchMin(const Call& call, void* stream);
const char* LaunchArgMax(const Call& call, void* stream);
const char* LaunchArgMin(const Call& call, void* stream);
const char* LaunchSquaredNorm(const Call& call, void* stream);
const char* LaunchSoftmax(const Call& call, void* stream);
const char* LaunchLogSoftmax(const Call& call, void* stream);
const char* LaunchSoftmaxBackward(const Call& call, void* stream);
const char* LaunchLogSoftmaxBackward(const Call& call, void* stream);
const char* LaunchCrossEntropy(const Call& call, void* stream);
const char* LaunchCrossEntropyBackward(const Call& call, void* stream);

// update.cu
const char* LaunchSgd(const Call& call, void* stream);
const char* LaunchAdam(const Call& call, void* stream);
const char* LaunchAdamW(const Call& call, void* stream);

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_LAUNCHERS_H_
