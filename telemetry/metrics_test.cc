#include "weft/telemetry/metrics.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::StatusIs;

Metrics::Options OfTrainer(int rank) {
  Metrics::Options options;
  options.job = "mnist";
  options.role = "trainer";
  options.rank = rank;
  return options;
}

TEST(Metrics, OneQuestionIsOneSeries) {
  Metrics metrics(OfTrainer(2));
  Counter& push = metrics.CounterFor("weft_rpc_calls_total",
                                     {{"method", "push"}}, "Calls made.");
  EXPECT_EQ(&push,
            &metrics.CounterFor("weft_rpc_calls_total", {{"method", "push"}}));
  EXPECT_NE(&push,
            &metrics.CounterFor("weft_rpc_calls_total", {{"method", "pull"}}));
  push.Increment();
  push.Increment(2);
  push.Increment(-5);
  EXPECT_EQ(push.Value(), 3);
  EXPECT_THAT(metrics.Text(), HasSubstr("# HELP weft_rpc_calls_total Calls"));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("weft_rpc_calls_total{job=\"mnist\",rank=\"2\",role="
                        "\"trainer\",method=\"push\"} 3"));
}

TEST(Metrics, GaugesAndHistogramsMeasure) {
  Metrics metrics(OfTrainer(0));
  Gauge& size = metrics.GaugeFor("weft_ps_table_bytes");
  size.Set(10);
  size.Add(-4);
  EXPECT_EQ(size.Value(), 6);
  Histogram& latency = metrics.HistogramFor("weft_rpc_call_seconds");
  latency.Observe(0.003);
  latency.Observe(1000);
  EXPECT_EQ(latency.Count(), 2u);
  EXPECT_THAT(metrics.Text(), HasSubstr("le=\"0.005\"} 1"));
  EXPECT_THAT(metrics.Text(), HasSubstr("le=\"+Inf\"} 2"));
}

TEST(Metrics, ThreadsLoseNoIncrement) {
  Metrics metrics(OfTrainer(0));
  weft::testing::RunRanks(4, [&](int) {
    Counter& counter = metrics.CounterFor("weft_test_events_total");
    for (int i = 0; i < 10000; ++i) counter.Increment();
    return absl::OkStatus();
  });
  EXPECT_EQ(metrics.CounterFor("weft_test_events_total").Value(), 40000);
}

TEST(Metrics, SeriesAboveTheCapAreDroppedAndCounted) {
  Metrics::Options options = OfTrainer(0);
  options.max_series = 2;
  Metrics metrics(options);
  for (int i = 0; i < 10; ++i) {
    metrics.CounterFor("weft_rpc_calls_total", {{"peer", absl::StrCat("p", i)}})
        .Increment();
  }
  EXPECT_THAT(metrics.Text(), HasSubstr("peer=\"p1\"} 1"));
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("peer=\"p2\"")));
  EXPECT_THAT(metrics.Text(),
              HasSubstr("weft_telemetry_dropped_series_total{job=\"mnist\","
                        "rank=\"0\",role=\"trainer\"} 8"));
}

TEST(Metrics, HostileLabelValuesStayOneLineAndShort) {
  Metrics metrics(OfTrainer(0));
  metrics.CounterFor("weft_rpc_calls_total",
                     {{"peer", "x\"} 1\nweft_forged_calls_total 9\n\xff" +
                                   std::string(10000, 'y')}});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("\nweft_forged")));
  EXPECT_LT(metrics.Text().size(), 2000u);
}

TEST(MetricsDeathTest, RefusesNamesThatAreNotOurs) {
  Metrics metrics(OfTrainer(0));
  EXPECT_DEATH(metrics.CounterFor("calls_total"), "wanted weft_<area>");
  EXPECT_DEATH(metrics.CounterFor("weft_rpc_sent_calls"), "_total");
  EXPECT_DEATH(metrics.GaugeFor("weft_rpc_pending_calls_total"), "_total");
  EXPECT_DEATH(metrics.GaugeFor("weft_rpc_Pending_calls"), "wanted weft_");
  EXPECT_DEATH(metrics.GaugeFor("weft_rpc__calls"), "wanted weft_");
  EXPECT_DEATH(metrics.GaugeFor("weft_rpc_pending_calls", {{"id", "7"}}),
               "label \"id\"");
  metrics.GaugeFor("weft_rpc_call_seconds");
  EXPECT_DEATH(metrics.HistogramFor("weft_rpc_call_seconds"), "two types");
}

TEST(Metrics, ExternalCountersAreReadAtTheScrape) {
  Metrics metrics({});
  int elsewhere = 1;
  auto refresher = metrics.BeforeReading(
      [&] { metrics.GaugeFor("weft_test_things_count").Set(elsewhere); });
  EXPECT_THAT(metrics.Text(), HasSubstr("weft_test_things_count"));
  elsewhere = 5;
  (void)metrics.Text();
  EXPECT_EQ(metrics.GaugeFor("weft_test_things_count").Value(), 5);
  refresher = nullptr;
  elsewhere = 7;
  (void)metrics.Text();
  EXPECT_EQ(metrics.GaugeFor("weft_test_things_count").Value(), 5);
}

}  // namespace
}  // namespace weft::telemetry
