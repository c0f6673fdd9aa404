#include "weft/collectives/backends/nccl/nccl_functions.h"

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::StatusIs;

TEST(LoadNccl, SaysWhatToInstall) {
  EXPECT_THAT(LoadNccl("libnccl_that_is_not_there.so").status(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "libnccl_that_is_not_there.so"));
  EXPECT_THAT(LoadNccl("libnccl_that_is_not_there.so").status(),
              StatusIs(absl::StatusCode::kUnimplemented, "install"));
}

TEST(LoadNccl, NamesTheFunctionsThatAnotherLibraryLacks) {
  EXPECT_THAT(LoadNccl("libc.so.6").status(),
              StatusIs(absl::StatusCode::kUnimplemented, "ncclAllReduce"));
}

// Where the library is installed, also without a GPU.
TEST(LoadNccl, FindsAllFunctionsOfTheLibrary) {
  const absl::StatusOr<NcclFunctions> found = LoadNccl();
  if (!found.ok()) {
    EXPECT_THAT(found.status(),
                StatusIs(absl::StatusCode::kUnimplemented, "libnccl2"));
    GTEST_SKIP() << found.status();
  }
  int version = 0;
  EXPECT_EQ(found->GetVersion(&version), nccl::Result::kSuccess);
  EXPECT_GE(version, 21800);
}

}  // namespace
}  // namespace weft::collectives
