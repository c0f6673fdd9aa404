#include "weft/collectives/backends/nccl/nccl_backend.h"

#include "gtest/gtest.h"
#include "weft/collectives/process_group.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::StatusIs;

TEST(NcclBackend, BuildWithoutItSaysWhatIsNeeded) {
  EXPECT_THAT(ConnectNccl({}).status(),
              StatusIs(absl::StatusCode::kUnimplemented, "tensors on GPUs"));
  EXPECT_THAT(IsAvailable("nccl"),
              StatusIs(absl::StatusCode::kUnimplemented, "tensors on GPUs"));
}

TEST(IsAvailable, UnknownBackendIsUnimplemented) {
  EXPECT_THAT(IsAvailable("ucc"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "backend ucc is not in this binary"));
  WEFT_EXPECT_OK(IsAvailable("host"));
}

}  // namespace
}  // namespace weft::collectives
