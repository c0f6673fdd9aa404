#include "weft/tensor/cuda_devices.h"

#include "absl/strings/str_cat.h"
#include "cuda_runtime.h"

namespace weft {

absl::StatusOr<std::vector<CudaDevice>> CudaDevices() {
  const auto unavailable = [](cudaError_t error) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device: ", cudaGetErrorString(error)));
  };
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return unavailable(error);
  if (count == 0) return unavailable(cudaErrorNoDevice);
  std::vector<CudaDevice> devices;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) return unavailable(error);
    devices.push_back({index, properties.name,
                       static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return devices;
}

}  // namespace weft
