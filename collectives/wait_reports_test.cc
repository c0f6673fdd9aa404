#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// However late it is looked at.
TEST(WaitReports, AreDueWheneverTheWaitHasLastedTwiceAsLong) {
  DiagnosisOptions options;
  options.report_after = absl::Seconds(2);
  WaitReports reports;
  const Instant begin = Instant::FromNanoseconds(1'000'000'000);
  reports.Begin(options, begin);
  std::vector<int> due;
  for (int second = 0; second <= 20; ++second) {
    if (second == 2 || second == 3) continue;
    if (reports.IsDue(begin + absl::Seconds(second))) due.push_back(second);
    EXPECT_EQ(reports.has_reported(), second >= 4) << second;
  }
  EXPECT_THAT(due, ElementsAre(4, 8, 16));
  EXPECT_EQ(reports.due(), begin + absl::Seconds(32));
  EXPECT_EQ(reports.since(), begin);
}

TEST(WaitReports, OfNoTimeAreDueOnceAtATime) {
  DiagnosisOptions options;
  options.report_after = absl::ZeroDuration();
  WaitReports reports;
  const Instant begin = Instant::FromNanoseconds(1);
  reports.Begin(options, begin);
  EXPECT_TRUE(reports.IsDue(begin + absl::Hours(1)));
  EXPECT_FALSE(reports.IsDue(begin + absl::Hours(1)));
}

// launch/stuck/wait_line.cc reads both.
TEST(WaitText, NamesTheOperationTheRankAndTheGroup) {
  Operation operation;
  operation.verb = Verb::kBarrier;
  operation.sequence = 3;
  EXPECT_THAT(
      WaitText(operation, 1, "world", absl::Seconds(2), "rank 0 has ended"),
      AllOf(StartsWith("Barrier #3"),
            EndsWith(": rank 1 of group world still waits after 2s: rank 0 has "
                     "ended")));
  EXPECT_THAT(EndOfWaitText(operation, 1, "world", absl::Milliseconds(2500),
                            absl::OkStatus()),
              EndsWith(": rank 1 of group world no longer waits, after 2.5s"));
  EXPECT_THAT(EndOfWaitText(operation, 1, "world", absl::Seconds(2),
                            absl::UnavailableError("gone")),
              HasSubstr("after 2s (UNAVAILABLE)"));
  EXPECT_EQ(RankText(2, "trainer2"), "rank 2 (trainer2)");
  EXPECT_EQ(RankText(2, ""), "rank 2");
}

}  // namespace
}  // namespace weft::collectives
