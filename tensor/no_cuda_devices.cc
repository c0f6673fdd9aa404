#include "weft/tensor/cuda_devices.h"

namespace weft {

absl::StatusOr<std::vector<CudaDevice>> CudaDevices() {
  return absl::UnimplementedError(
      "CUDA is not in this build: no toolkit was found; set CUDA_HOME and "
      "build "
      "again");
}

}  // namespace weft
