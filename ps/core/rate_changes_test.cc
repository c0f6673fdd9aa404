#include "weft/ps/core/rate_changes.h"

#include <limits>

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(RateChanges, EachCountsFromItsRoundToTheNext) {
  RateChanges changes;
  EXPECT_EQ(changes.At(0), 1);
  ASSERT_THAT(changes.Set(5, 0.1, 0), IsOk());
  ASSERT_THAT(changes.Set(3, 0.5, 0), IsOk());
  EXPECT_EQ(changes.At(2), 1);
  EXPECT_EQ(changes.At(3), 0.5);
  EXPECT_EQ(changes.At(4), 0.5);
  EXPECT_EQ(changes.At(5), 0.1);
  EXPECT_EQ(changes.At(1000), 0.1);
  changes.Trim(4);
  EXPECT_EQ(changes.At(4), 0.5);
  EXPECT_EQ(changes.Format(), "3:0.5 5:0.10000000000000001");
  changes.Trim(6);
  EXPECT_EQ(changes.Format(), "5:0.10000000000000001");
}

TEST(RateChanges, SameChangeMayComeAgainAndAnotherMayNot) {
  RateChanges changes;
  ASSERT_THAT(changes.Set(3, 0.5, 3), IsOk());
  EXPECT_THAT(changes.Set(3, 0.5, 3), IsOk());
  EXPECT_THAT(changes.Set(3, 0.5, 4), IsOk());  // a late repetition
  EXPECT_THAT(changes.Set(3, 0.25, 3),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "round 3 is 0.5 already, wanted 0.25"));
  EXPECT_THAT(changes.Set(2, 0.5, 3),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "of round 2 came when round 3 was open"));
  for (const double bad : {-1.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(changes.Set(9, bad, 3),
                StatusIs(absl::StatusCode::kInvalidArgument, "[0, inf)"));
    EXPECT_THAT(changes.SetAlways(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, "[0, inf)"));
  }
  EXPECT_EQ(changes.At(9), 0.5);
}

TEST(RateChanges, AreBounded) {
  RateChanges changes;
  for (size_t i = 0; i < RateChanges::kMost; ++i) {
    ASSERT_THAT(changes.Set(static_cast<int64_t>(i), 0.5, 0), IsOk());
  }
  EXPECT_THAT(changes.Set(1 << 20, 0.5, 0),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(changes.Set(7, 0.5, 0), IsOk());
}

TEST(RateChanges, TextIsExactAndOtherTextIsRefused) {
  RateChanges changes;
  ASSERT_THAT(changes.Set(0, 1.0 / 3, 0), IsOk());
  ASSERT_THAT(changes.Set(int64_t{1} << 60, 1e-300, 0), IsOk());
  auto read = RateChanges::Parse(changes.Format());
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->At(0), 1.0 / 3);
  EXPECT_EQ(read->At(int64_t{1} << 60), 1e-300);
  EXPECT_THAT(RateChanges::Parse(""), IsOk());
  for (const char* bad :
       {"x", "1", "1:", ":1", "1:nan", "1:-1", "-1:1", "1:inf", "1:1 1:1",
        "1:1 1:2", "99999999999999999999:1"}) {
    EXPECT_THAT(RateChanges::Parse(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, "ROUND:SCALE"))
        << bad;
  }
  ASSERT_THAT(read->Merge(changes), IsOk());
  RateChanges other;
  ASSERT_THAT(other.Set(0, 0.5, 0), IsOk());
  EXPECT_THAT(read->Merge(other),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace weft::ps
