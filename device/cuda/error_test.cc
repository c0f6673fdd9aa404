// What errors of CUDA become; needs no GPU.

#include "weft/device/cuda/error.h"

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::device {
namespace {

using weft::testing::StatusIs;

TEST(CudaStatus, KeepsTheOperationAndTheNameOfTheError) {
  EXPECT_THAT(CudaStatus(cudaErrorMemoryAllocation, "cuda:0: Allocate"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "cuda:0: Allocate: cudaErrorMemoryAllocation (2)"));
}

TEST(CudaStatus, SaysHowToBuildForAnotherGpu) {
  EXPECT_THAT(CudaStatus(cudaErrorNoKernelImageForDevice, "cuda:0: Add"),
              StatusIs(absl::StatusCode::kUnimplemented, "--config=all_gpus"));
}

}  // namespace
}  // namespace weft::device
