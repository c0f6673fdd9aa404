#include "absl/status/status.h"
#include "weft/device/cuda/runtime.h"

namespace weft::device {

absl::StatusOr<std::unique_ptr<Runtime>> CreateCudaRuntime(CudaOptions) {
  return absl::UnimplementedError(
      "CUDA is not in this build: no toolkit was found; set CUDA_HOME and "
      "build again");
}

}  // namespace weft::device
