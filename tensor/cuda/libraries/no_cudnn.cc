#include "weft/tensor/cuda/libraries/cudnn.h"

namespace weft::internal::cuda {

absl::Status CheckCudnn() {
  return absl::UnimplementedError(
      "this build has no cuDNN; build it where cudnn.h is beside the CUDA "
      "toolkit's headers");
}

absl::Status Conv2dByCudnn(const Call& /*call*/, void* /*stream*/) {
  return CheckCudnn();
}
absl::Status Conv2dBackwardInputByCudnn(const Call& /*call*/,
                                        void* /*stream*/) {
  return CheckCudnn();
}
absl::Status Conv2dBackwardWeightByCudnn(const Call& /*call*/,
                                         void* /*stream*/) {
  return CheckCudnn();
}
absl::Status Conv2dBackwardBiasByCudnn(const Call& /*call*/, void* /*stream*/) {
  return CheckCudnn();
}

}  // namespace weft::internal::cuda
