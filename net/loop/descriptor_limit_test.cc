#include "weft/net/loop/descriptor_limit.h"

#include <sys/resource.h>

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/loop/loop.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::net {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// Sets the soft limit until it ends.
class SoftLimit {
 public:
  explicit SoftLimit(rlim_t value) {
    getrlimit(RLIMIT_NOFILE, &former_);
    rlimit limit = former_;
    limit.rlim_cur = value;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~SoftLimit() { setrlimit(RLIMIT_NOFILE, &former_); }

 private:
  rlimit former_ = {};
};

TEST(DescriptorLimit, LoopWithTooFewIsRefusedBeforeGrpcEndsTheProcess) {
  const SoftLimit limit(16);
  EXPECT_THAT(Loop::Create().status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "of a limit of 16; raise it by `ulimit -n`"));
}

TEST(DescriptorLimit, TellsHowManyAreFree) {
  const SoftLimit limit(64);
  const int64_t free = FreeDescriptors();
  EXPECT_GT(free, 0);
  EXPECT_LT(free, 64);
  EXPECT_THAT(CheckDescriptors(static_cast<int>(free)), IsOk());
  EXPECT_THAT(CheckDescriptors(static_cast<int>(free) + 1),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(DescriptorLimit, IsRaisedToTheHardOne) {
  const SoftLimit limit(64);
  RaiseDescriptorLimit();
  rlimit now = {};
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_GT(now.rlim_cur, 64u);
  EXPECT_THAT(CheckDescriptors(64), IsOk());
}

}  // namespace
}  // namespace weft::net
