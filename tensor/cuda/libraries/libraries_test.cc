// What is known of CUDA's libraries without a GPU: they have the functions that
// are called. Skipped where they are not found.

#include <string>

#include "gtest/gtest.h"
#include "weft/tensor/cuda/libraries/cublas.h"
#include "weft/tensor/cuda/libraries/cudnn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::internal::cuda {
namespace {

void ExpectAllFunctions(const absl::Status& status) {
  const std::string text(status.message());
  if (text.find("was not found") != std::string::npos ||
      text.find("has no cuDNN") != std::string::npos) {
    GTEST_SKIP() << text;
  }
  EXPECT_THAT(status, weft::testing::IsOk());
}

TEST(LoadCublas, FindsAllFunctionsOfTheLibrary) {
  ExpectAllFunctions(CheckCublas());
}

TEST(LoadCudnn, FindsAllFunctionsOfTheLibrary) {
  ExpectAllFunctions(CheckCudnn());
}

}  // namespace
}  // namespace weft::internal::cuda
