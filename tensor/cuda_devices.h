// CudaDevices: which CUDA devices this machine has, as far as this build can
// tell. No operation runs on them yet.

#ifndef WEFT_TENSOR_CUDA_DEVICES_H_
#define WEFT_TENSOR_CUDA_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace weft {

struct CudaDevice {
  int index = 0;
  std::string name;
  int64_t memory_bytes = 0;
};

// kUnimplemented if the build found no CUDA toolkit; kUnavailable if there is
// no driver or device, in the driver's words.
absl::StatusOr<std::vector<CudaDevice>> CudaDevices();

}  // namespace weft

#endif  // WEFT_TENSOR_CUDA_DEVICES_H_
