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
  // No build has CUDA kernels for i32.
  const Tensor ints = Tensor::Zeros({2, 3}, DType::kI32);
  EXPECT_THAT(Lacking("Add", {ints, ints, ints}), HasSubstr("Add"));
  EXPECT_THAT(Lacking("adamw", std::vector<Tensor>(9, Tensor::Zeros({2}))),
              HasSubstr("adamw"));
  for (const char* name : {"MatMul", "LayerNorm", "Conv2d", "AttentionInto"}) {
    const size_t count = std::string(name) == "MatMul" ? 3 : 6;
    EXPECT_THAT(Lacking(name, std::vector<Tensor>(count, ints)),
                HasSubstr(name));
  }
}

}  // namespace
}  // namespace weft::internal
