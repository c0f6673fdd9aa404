#include "weft/telemetry/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

// A connection to a port of 127.0.0.1, whose reads give up after 10 s.
class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
        0);
    const timeval patience = {10, 0};
    EXPECT_EQ(
        setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)),
        0);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(fd_); }

  // Whether the system took the bytes.
  bool Send(const std::string& bytes) {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  // What comes until the other end closes.
  std::string Read() {
    std::string answer;
    char buffer[4096];
    for (ssize_t n; (n = read(fd_, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, n);
    }
    return answer;
  }

 private:
  const int fd_;
};

// What `GET path` answers on 127.0.0.1.
std::string Get(int port, const std::string& path) {
  Connection connection(port);
  EXPECT_TRUE(connection.Send(
      absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: localhost\r\n\r\n")));
  return connection.Read();
}

TEST(Metrics, ServesPrometheusOnAFreePort) {
  Metrics metrics(OfTrainer(0));
  metrics.CounterFor("weft_test_events_total").Increment();
  WEFT_ASSERT_OK_AND_ASSIGN(const int port, metrics.Serve("127.0.0.1", 0));
  ASSERT_GT(port, 0);
  const std::string answer = Get(port, "/metrics");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("weft_test_events_total{"));
  EXPECT_THAT(Get(port, "/etc/passwd"), HasSubstr("404"));
  EXPECT_THAT(metrics.Serve("127.0.0.1", 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, "already"));
}

TEST(Metrics, HalfSentRequestsDelayNoOther) {
  Metrics metrics(OfTrainer(0));
  WEFT_ASSERT_OK_AND_ASSIGN(const int port, metrics.Serve("127.0.0.1", 0));
  std::vector<std::unique_ptr<Connection>> halves;
  for (int i = 0; i < 16; ++i) {
    halves.push_back(std::make_unique<Connection>(port));
    EXPECT_TRUE(halves.back()->Send(i % 2 == 0 ? "GET /met"
                                               : "GET /metrics HTTP/1.1\r\n"
                                                 "Content-Length: 1000\r\n"));
  }
  EXPECT_THAT(Get(port, "/metrics"), HasSubstr("200 OK"));
}

TEST(Metrics, RequestThatGrowsByteByByteIsCut) {
  Metrics metrics(OfTrainer(0));
  WEFT_ASSERT_OK_AND_ASSIGN(const int port, metrics.Serve("127.0.0.1", 0));
  Connection slow(port);
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  ASSERT_TRUE(slow.Send("GET /metrics HTTP/1.1\r\nX: "));
  // It is cut: the system refuses what is sent into a connection that was
  // reset.
  while (slow.Send("x") && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_LT(absl::Now(), deadline) << "it was not cut";
}

TEST(Metrics, APortInUseIsAClearError) {
  Metrics first(OfTrainer(0));
  Metrics second(OfTrainer(1));
  WEFT_ASSERT_OK_AND_ASSIGN(const int port, first.Serve("127.0.0.1", 0));
  EXPECT_THAT(second.Serve("127.0.0.1", port),
              StatusIs(absl::StatusCode::kUnavailable,
                       absl::StrCat("127.0.0.1:", port)));
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
