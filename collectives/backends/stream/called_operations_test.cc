#include "weft/collectives/backends/stream/called_operations.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

Announcement Called(uint64_t sequence, const std::string& text) {
  return {sequence, std::hash<std::string>()(text), false, text};
}

Announcement RefusedCall(uint64_t sequence, const std::string& why) {
  return {sequence, 0, true, why};
}

TEST(CalledOperations, RanksThatCallTheSameAgree) {
  CalledOperations called(1, 3);
  EXPECT_THAT(called.Add(0, Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.AddOwn(Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.Add(2, Called(20, "barrier")), IsOk());
  EXPECT_EQ(called.DescribeRanksBefore(20), "");
}

TEST(CalledOperations, MismatchNamesTheLowerRankFirst) {
  CalledOperations called(1, 3);
  EXPECT_THAT(called.AddOwn(Called(20, "broadcast")), IsOk());
  const absl::Status after = called.Add(2, Called(20, "barrier"));
  EXPECT_THAT(after, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(
      std::string(after.message()),
      AllOf(HasSubstr("rank 1 called broadcast"), HasSubstr("rank 2 called")));
  EXPECT_THAT(called.Add(0, Called(21, "barrier")), IsOk());
  const absl::Status before = called.AddOwn(Called(21, "gather"));
  EXPECT_THAT(std::string(before.message()),
              AllOf(HasSubstr("rank 0 called barrier"),
                    HasSubstr("rank 1 called gather")));
}

TEST(CalledOperations, RefusalIsNoMismatchAndNamesItsRank) {
  CalledOperations called(0, 2);
  EXPECT_THAT(called.AddOwn(Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.CheckRefusals(20), IsOk());
  EXPECT_THAT(called.Add(1, RefusedCall(20, "no memory")), IsOk());
  const absl::Status refused = called.CheckRefusals(20);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("rank 1"), HasSubstr("no memory")));
  EXPECT_THAT(called.CheckRefusals(21), IsOk());
}

TEST(CalledOperations, RanksThatAreBehindAreDescribed) {
  CalledOperations called(0, 4);
  EXPECT_THAT(called.Add(1, Called(20, "barrier")), IsOk());
  EXPECT_THAT(called.Add(3, Called(21, "gather")), IsOk());
  EXPECT_EQ(called.DescribeRanksBefore(21),
            "rank 1 has not called it and last called barrier; rank 2 has not "
            "called it and has called nothing yet");
}

TEST(CalledOperations, OldAnnouncementsAreForgotten) {
  CalledOperations called(0, 2);
  EXPECT_EQ(called.newest_own(), nullptr);
  for (uint64_t i = 0; i <= CalledOperations::kKept; ++i) {
    EXPECT_THAT(called.AddOwn(Called(i, "barrier")), IsOk());
  }
  EXPECT_EQ(called.FindOwn(0), nullptr);
  ASSERT_NE(called.FindOwn(1), nullptr);
  EXPECT_EQ(called.newest_own()->sequence, CalledOperations::kKept);
}

}  // namespace
}  // namespace weft::collectives
