// CudaStatus: what a cudaError_t is as a Status.

#ifndef WEFT_DEVICE_CUDA_ERROR_H_
#define WEFT_DEVICE_CUDA_ERROR_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weft::device {

// The code that device/runtime.h gives for `error`.
absl::StatusCode CudaStatusCode(cudaError_t error);

// Whether the device's context is broken by it: each later call fails.
bool IsFinal(cudaError_t error);

// "cuda:0: Allocate(64 bytes): cudaErrorMemoryAllocation (2): out of memory",
// where the first two are `operation`. REQUIRES: error != cudaSuccess.
absl::Status CudaStatus(cudaError_t error, absl::string_view operation);

}  // namespace weft::device

#endif  // WEFT_DEVICE_CUDA_ERROR_H_
