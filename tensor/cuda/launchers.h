// The launchers of the kernels of this folder, each explicitly instantiated in
// a .cu file. The operands and numbers of each are told where it is written:
// the headers of its file.

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

// The other files: Op is one that the file lists.
template <typename Op>
const char* LaunchOp(const Call& call, void* stream);

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_LAUNCHERS_H_
