#include "weft/launch/address_space.h"

#include <sys/resource.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::launch {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(AddressSpace, LimitThatIsTooSmallIsNamedWithWhatToDo) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit small = before;
  small.rlim_cur = rlim_t{900} << 20;  // more than this test has
  ASSERT_EQ(setrlimit(RLIMIT_AS, &small), 0);
  const absl::Status worker = CheckAddressSpace(kWorkerAddressSpace);
  const absl::Status tool = CheckAddressSpace(kToolAddressSpace);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_THAT(worker, StatusIs(absl::StatusCode::kResourceExhausted,
                               "wanted an address space of at least 1048576 "
                               "KiB for threads, found a limit of 921600 KiB"));
  EXPECT_THAT(worker,
              StatusIs(absl::StatusCode::kResourceExhausted, "ulimit -v"));
  EXPECT_THAT(tool, IsOk());
}

}  // namespace
}  // namespace weft::launch
