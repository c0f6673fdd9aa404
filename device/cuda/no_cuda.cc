#include "absl/status/status.h"
#include "weft/device/cuda/runtime.h"

namespace weft::device {

absl::StatusOr<std::unique_ptr<Runtime>> CreateCudaRuntime(CudaOptions) {
  return absl::UnimplementedError(
      "CUDA is not in this build, for no toolkit was found where it was made: "
      "install NVIDIA's CUDA toolkit 13 (nvcc, cudart), set CUDA_HOME if it is "
      "not in /usr/local/cuda, and build again; or take the device cpu");
}

}  // namespace weft::device
