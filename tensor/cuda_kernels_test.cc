// What LaunchCudaKernel says without a device: what it lacks.

#include "weft/tensor/cuda_kernels.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Lacking(const Operation& operation,
                    const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(&tensor);
  const absl::Status status = LaunchCudaKernel(operation, pointers, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  return std::string(status.message());
}

TEST(CudaKernels, NamesTheOperationThatHasNone) {
  EXPECT_THAT(Lacking("Unheard", {Tensor::Zeros({2, 3})}),
              AllOf(HasSubstr("Unheard"), HasSubstr("CUDA")));
}

TEST(CudaKernels, NamesTheOperationWhoseTensorsHaveNone) {
  // No build has CUDA kernels for bytes.
  const Tensor bytes = Tensor::Zeros({2, 3}, DType::kU8);
  EXPECT_THAT(Lacking("Add", {bytes, bytes, bytes}), HasSubstr("Add"));
  EXPECT_THAT(Lacking("adamw", std::vector<Tensor>(9, Tensor::Zeros({2}))),
              HasSubstr("adamw"));
  EXPECT_THAT(Lacking("MatMul", std::vector<Tensor>(3, bytes)),
              HasSubstr("MatMul"));
}

}  // namespace
}  // namespace weft::internal
