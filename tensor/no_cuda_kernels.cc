#include "absl/strings/str_cat.h"
#include "weft/tensor/cuda_kernels.h"

namespace weft::internal {

absl::Status LaunchCudaKernel(const Operation& operation,
                              absl::Span<const Tensor* const> /*tensors*/,
                              void* /*stream*/) {
  return absl::UnimplementedError(
      absl::StrCat(operation.name,
                   ": this build has no CUDA kernels; build it where the CUDA "
                   "toolkit is (CUDA_HOME)"));
}

}  // namespace weft::internal
