#include "weft/ps/shard/table_metrics.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

class TableMetricsTest : public ::testing::Test {
 protected:
  // What the page says of series `name`, whose labels hold `label`; "" if it
  // says nothing.
  std::string ValueOf(const std::string& name, const std::string& label = "") {
    table_.Export(metrics_, "model");
    const std::string page = metrics_.Text();
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      if (absl::StartsWith(line, absl::StrCat(name, "{")) &&
          absl::StrContains(line, label)) {
        return std::string(line.substr(line.rfind(' ') + 1));
      }
    }
    return "";
  }

  telemetry::Metrics metrics_{{}};
  TableMetrics table_;
};

TEST_F(TableMetricsTest, StalenessIsWhatWasPushedSinceTheClientsPull) {
  table_.PulledAt(1, 10);
  table_.PulledAt(2, 10);
  table_.PushedAt(1, 10);  // 0
  table_.PushedAt(2, 11);  // 1
  table_.PulledAt(1, 12);
  table_.PushedAt(1, 15);  // 3
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_count"), "3");
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_sum"), "4");
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_bucket", "le=\"0\""), "1");
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_bucket", "le=\"2\""), "2");
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_bucket", "le=\"4\""), "3");
}

TEST_F(TableMetricsTest, PushOfAClientThatHasNotPulledIsNotCounted) {
  table_.PushedAt(7, 100);
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_count"), "");
}

TEST_F(TableMetricsTest, ClientsBeyondTheMostAreForgotten) {
  for (uint64_t client = 0; client <= TableMetrics::kMostClients; ++client) {
    table_.PulledAt(client, 1);
  }
  table_.PushedAt(0, 5);
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_count"), "");
  table_.PushedAt(TableMetrics::kMostClients, 5);
  EXPECT_EQ(ValueOf("weft_ps_staleness_versions_count"), "1");
}

TEST_F(TableMetricsTest, LockWaitsAndRepeatedPushesAreCountedOnce) {
  table_.AwaitedLock(absl::Microseconds(1500));
  table_.AwaitedLock(absl::ZeroDuration());
  EXPECT_EQ(ValueOf("weft_ps_lock_wait_seconds_count"), "2");
  EXPECT_EQ(ValueOf("weft_ps_lock_wait_seconds_sum"), "0.0015");
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), "0");
  table_.Repeated(3);
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), "3");
  EXPECT_EQ(ValueOf("weft_ps_repeated_pushes_total"), "3");
}

TEST_F(TableMetricsTest, EachPlaceIsMeasuredInItsTurn) {
  std::set<size_t> measured;
  for (int i = 0; i < 3; ++i) measured.insert(table_.NextMeasured(3));
  EXPECT_EQ(measured, (std::set<size_t>{0, 1, 2}));
  EXPECT_EQ(table_.NextMeasured(0), 0u);
}

TEST_F(TableMetricsTest, SizesAreCountedByDirection) {
  table_.Pushed(100);
  table_.Pulled(5000);
  table_.Pulled(7000);
  EXPECT_EQ(ValueOf("weft_ps_push_bytes_sum"), "100");
  EXPECT_EQ(ValueOf("weft_ps_pull_bytes_sum", "table=\"model\""), "12000");
  EXPECT_EQ(ValueOf("weft_ps_pull_bytes_count"), "2");
}

}  // namespace
}  // namespace weft::ps
