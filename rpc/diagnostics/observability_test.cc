// What an agent reports: pending calls, waits-for edges, metrics, spans.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/parker.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/diagnostics/traffic.h"
#include "weft/rpc/diagnostics/waits_for.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

// ---------------------------------------------------- what the ranks can do

struct Parked {
  Parker began;
  Mutex mu;
  std::vector<Promise<int64_t>> promises ABSL_GUARDED_BY(mu);
};

// Answers when the test says so.
Future<int64_t> Park(CallContext& context) {
  auto* parked = context.Local<Parked>();
  auto [promise, future] = MakePromise<int64_t>();
  MutexLock lock(parked->mu);
  parked->promises.push_back(std::move(promise));
  parked->began.Unpark();
  return future;
}
WEFT_RPC(Park);

absl::StatusOr<int64_t> ParkBelow(CallContext& context,
                                  const std::string& other) {
  return Call(context.To(other), Park);
}
WEFT_RPC(ParkBelow);

int64_t Length(const std::string& text) {
  return static_cast<int64_t>(text.size());
}
WEFT_RPC(Length);

absl::Status Fail() { return absl::NotFoundError("nothing here"); }
WEFT_RPC(Fail);

absl::StatusOr<int64_t> LengthBelow(CallContext& context,
                                    const std::string& other) {
  return Call(context.To(other), Length, "four");
}
WEFT_RPC(LengthBelow);

std::string TraceHere(CallContext& context) {
  if (!context.trace().is_valid()) return "none";
  return telemetry::TraceIdText(context.trace());
}
WEFT_RPC(TraceHere);

// -------------------------------------------------------------- WaitsFor

PendingCall Made(std::string peer, uint64_t id, std::string function,
                 std::string for_peer = "", uint64_t for_id = 0) {
  PendingCall call;
  call.peer = std::move(peer);
  call.id = id;
  call.function = std::move(function);
  call.phase = Phase::kHandler;
  call.age = absl::Seconds(10 - static_cast<int>(id));
  call.for_peer = std::move(for_peer);
  call.for_id = for_id;
  return call;
}

PendingCall Served(std::string peer, uint64_t id, std::string function,
                   Phase phase) {
  PendingCall call = Made(std::move(peer), id, std::move(function));
  call.is_served = true;
  call.phase = phase;
  return call;
}

TEST(WaitsFor, TheLongestChainGoesThroughSeveralWorkers) {
  WaitsFor waits;
  waits.Add("w2", {Served("w1", 5, "Pull", Phase::kQueue)});
  waits.Add("w0", {Made("w1", 1, "Step"), Made("w2", 2, "Other")});
  waits.Add("w1", {Served("w0", 1, "Step", Phase::kHandler),
                   Made("w2", 5, "Pull", "w0", 1)});
  EXPECT_THAT(waits.Cycle(), IsEmpty());
  const auto chain = waits.LongestChain();
  ASSERT_THAT(chain, SizeIs(2));
  EXPECT_EQ(chain[1].caller, "w1");
  EXPECT_EQ(chain[1].callee, "w2");
  EXPECT_EQ(chain[1].phase, Phase::kQueue);  // as w2 says
  EXPECT_EQ(waits.ToString(),
            "longest chain: w0 > w1:Step (handler, 9s) > w2:Pull (queue, 5s)");
}

TEST(WaitsFor, ACycleIsFound) {
  WaitsFor waits;
  waits.Add("w0",
            {Made("w1", 1, "Step"), Served("w2", 3, "Lock", Phase::kQueue),
             Made("w2", 7, "Own")});
  waits.Add("w1", {Served("w0", 1, "Step", Phase::kHandler),
                   Made("w2", 2, "Pull", "w0", 1)});
  waits.Add("w2", {Served("w1", 2, "Pull", Phase::kHandler),
                   Made("w0", 3, "Lock", "w1", 2)});
  EXPECT_THAT(waits.Cycle(), SizeIs(3));
  EXPECT_THAT(waits.ToString(), AllOf(HasSubstr("cycle: w0 > w1:Step"),
                                      HasSubstr("w0:Lock (queue, 7s)")));
}

TEST(WaitsFor, TheTreeShowsEachCallBelowTheOneThatItIsFor) {
  WaitsFor waits;
  EXPECT_EQ(waits.Tree(), "");
  waits.Add("w2", {Served("w1", 5, "Pull", Phase::kQueue)});
  waits.Add("w0", {Made("w1", 1, "Step"), Made("w2", 2, "Other")});
  waits.Add("w1", {Made("w2", 5, "Pull", "w0", 1), Made("w2", 6, "Own"),
                   Made("w0", 7, "Lost", "w9", 3)});
  EXPECT_EQ(waits.Tree(),
            "w0 waits for w1:Step  handler, 9s\n"
            "  w1 waits for w2:Pull  queue, 5s\n"
            "w0 waits for w2:Other  handler, 8s\n"
            "w1 waits for w2:Own  handler, 4s\n"
            "w1 waits for w0:Lost  handler, 3s\n");
  EXPECT_EQ(waits.Calls().size(), 5u);
}

TEST(WaitsFor, AWorkerThatCallsItselfIsNoCycle) {
  WaitsFor waits;
  waits.Add("w0", {Made("w0", 1, "A"), Made("w0", 2, "B", "w0", 1)});
  EXPECT_THAT(waits.Cycle(), IsEmpty());
  EXPECT_THAT(waits.LongestChain(), SizeIs(2));
}

TEST(WaitsFor, ReportsThatDoNotFitTogetherAreBorne) {
  WaitsFor waits;
  EXPECT_EQ(waits.ToString(), "nothing is pending");
  // Each is said to wait for the other; and one for a call nobody knows.
  waits.Add("w1", {Made("w2", 1, "A", "w2", 1), Made("w3", 4, "C", "w9", 9)});
  waits.Add("w2", {Made("w1", 1, "B", "w1", 1)});
  EXPECT_THAT(waits.LongestChain(), SizeIs(1));
  EXPECT_THAT(waits.Cycle(), IsEmpty());
}

TEST(WaitsFor, AChainIsShownAsFarAsCallsMayNest) {
  WaitsFor waits;
  std::vector<PendingCall> calls = {Made("w0", 1, "F")};
  for (uint64_t id = 2; id <= 1000; ++id) {
    calls.push_back(Made("w0", id, "F", "w0", id - 1));
  }
  waits.Add("w0", calls);
  EXPECT_THAT(waits.LongestChain(), SizeIs(256));
  EXPECT_THAT(waits.Calls(), SizeIs(1000));
}

TEST(WaitsFor, ACallOfNoFunctionIsNotRead) {
  Encoder encoder;
  encoder.Write(Made("w1", 1, ""));
  const auto bytes = std::move(encoder).Finish();
  ASSERT_THAT(bytes, IsOk());
  const Received received{*bytes, false};
  Decoder decoder(received);
  PendingCall call;
  EXPECT_THAT(decoder.Read(call),
              StatusIs(absl::StatusCode::kInvalidArgument, "no function"));
}

// -------------------------------------------------------- FlightRecorder

TEST(Flight, AFailedCallIsNamedAtBothEnds) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  RanksOptions options;
  options.telemetry = &telemetry;
  Ranks ranks(2, options);
  EXPECT_THAT(Call(ranks[0].To("w1"), Fail),
              StatusIs(absl::StatusCode::kNotFound));
  const std::string dump = telemetry.recorder().DumpText();
  EXPECT_THAT(dump, ContainsRegex("rpc.connected a=0 b=0 w1\n"));
  EXPECT_THAT(dump, ContainsRegex("rpc.call a=1 b=0 w1 [^\n]*Fail\n"));
  EXPECT_THAT(dump, ContainsRegex("rpc.serve a=1 b=0 w0 [^\n]*Fail\n"));
  EXPECT_THAT(dump, ContainsRegex("rpc.reply a=1 b=5 w0 [^\n]*Fail\n"));
  EXPECT_THAT(dump, ContainsRegex("rpc.end a=1 b=5 w1 [^\n]*Fail\n"));
}

TEST(Flight, ALostPeerIsNamed) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  RanksOptions options;
  options.telemetry = &telemetry;
  Ranks ranks(2, options);
  EXPECT_THAT(Call(ranks[0].To("w1"), Length, "x"), IsOkAndHolds(1));
  ranks[0].PeerGone(ranks[1].key(), "its machine is off");
  EXPECT_THAT(telemetry.recorder().DumpText(),
              HasSubstr("rpc.gone a=0 b=0 w1"));
}

TEST(WaitsFor, PendingCallsOfAllWorkersArePutTogether) {
  RanksOptions options;
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  options.telemetry = &telemetry;
  Parked parked;
  Ranks ranks(3, options);
  ranks[2].SetLocal(&parked);
  Future<int64_t> call = CallAsync(ranks[0].To("w1"), ParkBelow, "w2");
  EXPECT_TRUE(IsWoken(parked.began));
  std::vector<std::string> silent;
  const WaitsFor waits = AskWaitsFor(ranks[0], {"w0", "w1", "w2", "w7"},
                                     absl::Seconds(30), &silent);
  EXPECT_THAT(silent, ElementsAre("w7"));
  const auto chain = waits.LongestChain();
  ASSERT_THAT(chain, SizeIs(2));
  EXPECT_THAT(chain[0].function, HasSubstr("ParkBelow"));
  EXPECT_EQ(chain[1].callee, "w2");
  EXPECT_EQ(chain[1].phase, Phase::kHandler);
  EXPECT_GE(chain[0].age, absl::ZeroDuration());
  // w1 shows by itself that one waits for the other.
  EXPECT_THAT(telemetry.status().RenderText(absl::InfiniteDuration()),
              AllOf(HasSubstr("longest chain: w0 > w1:"),
                    HasSubstr("for 1 of w0"), HasSubstr("serving 1 of w1")));
  EXPECT_EQ(ranks[0].Metrics().client_active_calls, 1);
  EXPECT_EQ(ranks[1].Metrics().server_active_calls, 1);
  EXPECT_EQ(ranks[1].Metrics().server_active_async_calls, 0);
  call.Cancel();
}

TEST(WaitsFor, CallsOfItselfAreAmongThePending) {
  Parked parked;
  Ranks ranks(1);
  ranks[0].SetLocal(&parked);
  Future<int64_t> call = CallAsync(ranks[0].To("w0"), ParkBelow, "w0");
  EXPECT_TRUE(IsWoken(parked.began));
  const std::vector<PendingCall> pending = ranks[0].Pending();
  ASSERT_THAT(pending, SizeIs(4));  // two, each made and served
  for (const PendingCall& one : pending) {
    EXPECT_EQ(one.peer, "w0");
    const bool is_below = one.function.find("ParkBelow") == std::string::npos;
    EXPECT_EQ(one.for_id, is_below && !one.is_served ? 1u : 0u);
  }
  WaitsFor waits;
  waits.Add("w0", pending);
  EXPECT_THAT(waits.LongestChain(), SizeIs(2));
  call.Cancel();
  EXPECT_THAT(ranks[0].AwaitIdle(absl::Seconds(30)), IsOk());
  EXPECT_THAT(ranks[0].Pending(), IsEmpty());
}

// --------------------------------------------------------------- metrics

TEST(AgentMetrics, CountCallsBytesAndErrorsByPeer) {
  RanksOptions options;
  options.threads = 3;
  Ranks ranks(2, options);
  ASSERT_EQ(*Call(ranks[0].To("w1"), Length, std::string(1000, 'x')), 1000);
  EXPECT_FALSE(Call(ranks[0].To("w1"), Fail).ok());
  const Traffic::Counts out = ranks[0].Metrics().peers.at("w1");
  EXPECT_EQ(out.calls, 2);
  EXPECT_EQ(out.errors, 1);
  EXPECT_GE(out.sent_bytes, 1000);
  EXPECT_LT(out.received_bytes, 100);
  const Traffic::Counts in = ranks[1].Metrics().peers.at("w0");
  EXPECT_EQ(in.served, 2);
  EXPECT_EQ(in.served_errors, 1);
  EXPECT_GE(in.received_bytes, 1000);
  EXPECT_EQ(ranks[0].Metrics().pool_threads, 3);
  EXPECT_LE(ranks[0].Metrics().idle_threads, 3);
}

TEST(AgentMetrics, CallsThatWereNotSentHaveSentNoBytes) {
  RanksOptions options;
  options.limits.calls = 1;
  Parked parked;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&parked);
  const Target w1 = ranks[0].To("w1");
  Future<int64_t> holds = CallAsync(w1, Park);
  EXPECT_TRUE(IsWoken(parked.began));
  const std::string large(1000, 'x');
  EXPECT_THAT(Call(w1.FailingWithoutCredit(), Length, large),
              StatusIs(absl::StatusCode::kResourceExhausted, "no credit"));
  Future<int64_t> given_up = CallAsync(w1, Length, large);
  given_up.Cancel();
  const Traffic::Counts out = ranks[0].Metrics().peers.at("w1");
  EXPECT_EQ(out.calls, 3);
  EXPECT_LT(out.sent_bytes, 1000);
  holds.Cancel();
}

// Returns 1000 bytes once its caller has given it up.
std::string AnswerTooLate(CallContext& context) {
  Parker cancelled;
  const auto registration = context.cancel().OnCancel(
      [&](const absl::Status&) { cancelled.Unpark(); });
  context.Local<Parked>()->began.Unpark();
  EXPECT_TRUE(IsWoken(cancelled));
  return std::string(1000, 'x');
}
WEFT_RPC(AnswerTooLate);

TEST(AgentMetrics, ReplyToACallThatWasGivenUpHasSentNoBytes) {
  Parked parked;
  Ranks ranks(2);
  ranks[1].SetLocal(&parked);
  for (const char* caller : {"w0", "w1"}) {  // by a session, and without one
    Agent& agent = ranks[caller[1] - '0'];
    Future<std::string> call = CallAsync(agent.To("w1"), AnswerTooLate);
    EXPECT_TRUE(IsWoken(parked.began));
    call.Cancel();
    EXPECT_THAT(ranks[1].AwaitIdle(kPatience), IsOk());
    const Traffic::Counts served = ranks[1].Metrics().peers.at(caller);
    EXPECT_EQ(served.served, 1) << caller;
    EXPECT_LT(served.sent_bytes, 1000) << caller;
  }
  EXPECT_EQ(*Call(ranks[0].To("w1"), Length, std::string(1, 'x')), 1);
}

// The value of weft_rpc_<name> with the given labels on a page of Prometheus.
int64_t OnPage(const std::string& page, absl::string_view name,
               absl::string_view labels = "") {
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    int64_t value = 0;
    if (absl::StartsWith(line, absl::StrCat("weft_rpc_", name)) &&
        absl::StrContains(line, labels) &&
        absl::SimpleAtoi(line.substr(line.rfind(' ') + 1), &value)) {
      return value;
    }
  }
  ADD_FAILURE() << "no " << name << " of " << labels << " in\n" << page;
  return -1;
}

// One rank each with a page of its own, and what it says of the other.
class MetricsPage : public ::testing::Test {
 protected:
  static RanksOptions Apart(telemetry::Telemetry* a, telemetry::Telemetry* b) {
    RanksOptions options;
    options.telemetries = {a, b};
    return options;
  }
  std::string PageOf(int rank) {
    return (rank == 0 ? a_ : b_).metrics().Text();
  }
  int64_t Count(int rank, absl::string_view name, absl::string_view way) {
    return OnPage(
        PageOf(rank), name,
        absl::StrCat("direction=\"", way, "\",peer=\"w", 1 - rank, "\""));
  }

  telemetry::Telemetry a_{telemetry::Telemetry::Options()};
  telemetry::Telemetry b_{telemetry::Telemetry::Options()};
  Parked parked_;  // for what still runs while the ranks end, too
  Ranks ranks_{2, Apart(&a_, &b_)};
};

TEST_F(MetricsPage, CountsCallsErrorsAndBytesByPeerAndDirection) {
  ASSERT_EQ(*Call(ranks_[0].To("w1"), Length, std::string(1000, 'x')), 1000);
  EXPECT_FALSE(Call(ranks_[0].To("w1"), Fail).ok());
  for (int reading = 0; reading < 2; ++reading) {  // none counts again
    EXPECT_EQ(Count(0, "calls_total", "out"), 2);
    EXPECT_EQ(Count(0, "calls_total", "in"), 0);
    EXPECT_EQ(Count(0, "errors_total", "out"), 1);
    EXPECT_EQ(Count(0, "errors_total", "in"), 0);
    EXPECT_EQ(Count(1, "calls_total", "out"), 0);
    EXPECT_EQ(Count(1, "calls_total", "in"), 2);
    EXPECT_EQ(Count(1, "errors_total", "out"), 0);
    EXPECT_EQ(Count(1, "errors_total", "in"), 1);
  }
  const int64_t there = Count(0, "bytes_total", "out");
  const int64_t back = Count(0, "bytes_total", "in");
  EXPECT_GE(there, 1000);
  EXPECT_LT(there, 1100);
  EXPECT_GT(back, 0);
  EXPECT_LT(back, 100);
  EXPECT_EQ(Count(1, "bytes_total", "in"), there);
  EXPECT_EQ(Count(1, "bytes_total", "out"), back);
}

// w1 waits in a function for one of its own, which answers later.
TEST_F(MetricsPage, ShowsTheCallsThatAreMadeAndServedNow) {
  ranks_[1].SetLocal(&parked_);
  Future<int64_t> call = CallAsync(ranks_[0].To("w1"), ParkBelow, "w1");
  EXPECT_TRUE(IsWoken(parked_.began));
  EXPECT_TRUE(Becomes(
      [&] { return ranks_[1].Metrics().server_active_async_calls > 0; }));
  const std::string at_caller = PageOf(0);
  EXPECT_EQ(OnPage(at_caller, "client_active_calls"), 1);
  EXPECT_EQ(OnPage(at_caller, "server_active_calls"), 0);
  EXPECT_EQ(OnPage(at_caller, "server_active_async_calls"), 0);
  const std::string at_callee = PageOf(1);
  EXPECT_EQ(OnPage(at_callee, "client_active_calls"), 1);
  EXPECT_EQ(OnPage(at_callee, "server_active_calls"), 2);
  EXPECT_EQ(OnPage(at_callee, "server_active_async_calls"), 1);
  EXPECT_EQ(OnPage(at_callee, "pool_threads"), 4);
  call.Cancel();
}

TEST(AgentMetrics, AnAsynchronousCallIsSeen) {
  Parked parked;
  Ranks ranks(2);
  ranks[1].SetLocal(&parked);
  Future<int64_t> call = CallAsync(ranks[0].To("w1"), Park);
  EXPECT_TRUE(IsWoken(parked.began));
  // The function has been entered; it returns its Future in a moment.
  EXPECT_TRUE(Becomes(
      [&] { return ranks[1].Metrics().server_active_async_calls > 0; }));
  EXPECT_EQ(ranks[1].Metrics().server_active_calls, 1);
  {
    MutexLock lock(parked.mu);
    parked.promises[0].Set(1);
  }
  EXPECT_THAT(call.Wait(absl::Seconds(30)), IsOk());
  EXPECT_EQ(ranks[1].Metrics().server_active_async_calls, 0);
}

TEST(AgentMetrics, CallsOfItselfCountAsAny) {
  Parked parked;
  Ranks ranks(1);
  ranks[0].SetLocal(&parked);
  const Target self = ranks[0].To("w0");
  ASSERT_EQ(*Call(self, Length, std::string(1000, 'x')), 1000);
  EXPECT_FALSE(Call(self, Fail).ok());
  const Traffic::Counts with = ranks[0].Metrics().peers.at("w0");
  EXPECT_EQ(with.calls, 2);
  EXPECT_EQ(with.errors, 1);
  EXPECT_EQ(with.served, 2);
  EXPECT_EQ(with.served_errors, 1);
  EXPECT_GE(with.sent_bytes, 1000);
  EXPECT_GE(with.received_bytes, 1000);
  Future<int64_t> call = CallAsync(self, Park);
  EXPECT_TRUE(IsWoken(parked.began));
  EXPECT_TRUE(Becomes(
      [&] { return ranks[0].Metrics().server_active_async_calls > 0; }));
  EXPECT_EQ(ranks[0].Metrics().client_active_calls, 1);
  EXPECT_EQ(ranks[0].Metrics().server_active_calls, 1);
  call.Cancel();
  EXPECT_THAT(call.Wait(absl::Seconds(30)),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(ranks[0].Metrics().client_active_calls, 0);
  EXPECT_THAT(ranks[0].AwaitIdle(absl::Seconds(30)), IsOk());
  EXPECT_EQ(ranks[0].Metrics().server_active_calls, 0);
  EXPECT_EQ(ranks[0].Metrics().peers.at("w0").errors, 2);
}

TEST(AgentMetrics, PeersBeyondTheCapShareOneName) {
  TrafficTable table;
  for (size_t i = 0; i < 3 * TrafficTable::kMaxPeers; ++i) {
    table.Of(absl::StrCat("w", i)).CountCall();
  }
  const auto counts = table.Counts();
  EXPECT_EQ(counts.size(), TrafficTable::kMaxPeers + 1);
  EXPECT_EQ(counts.at("w0").calls, 1);
  EXPECT_EQ(counts.at(TrafficTable::kOthers).calls,
            2 * static_cast<int64_t>(TrafficTable::kMaxPeers));
}

TEST(AgentMetrics, HistogramsHaveTheTimesAndSizesOfCalls) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  RanksOptions options;
  options.telemetry = &telemetry;
  Ranks ranks(2, options);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(*Call(ranks[0].To("w1"), Length, std::string(1000, 'x')), 1000);
  }
  EXPECT_THAT(ranks[1].AwaitIdle(absl::Seconds(30)), IsOk());
  const std::string page = telemetry.metrics().Text();
  const auto has = [&page](const std::string& name, const std::string& label,
                           const std::string& end) {
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      if (absl::StartsWith(line, absl::StrCat(name, "{")) &&
          absl::StrContains(line, label) && absl::EndsWith(line, end)) {
        return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(has("weft_rpc_client_seconds_count", "", " 3")) << page;
  EXPECT_TRUE(has("weft_rpc_server_seconds_count", "Length\"", " 3")) << page;
  // 1,000 bytes and what encodes them: above 256, not above 1,024.
  for (const char* way : {"direction=\"in\"", "direction=\"out\""}) {
    EXPECT_TRUE(has("weft_rpc_request_bytes_count", way, " 3")) << page;
    EXPECT_TRUE(has("weft_rpc_reply_bytes_count", way, " 3")) << page;
  }
  EXPECT_TRUE(has("weft_rpc_request_bytes_bucket", "le=\"256\"", " 0")) << page;
  EXPECT_TRUE(has("weft_rpc_request_bytes_bucket", "le=\"1024\"", " 3"))
      << page;
}

TEST(AgentMetrics, AnEndedAgentIsOffThePage) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  RanksOptions options;
  options.telemetry = &telemetry;
  { Ranks ranks(2, options); }
  EXPECT_THAT(telemetry.metrics().Text(),
              Not(HasSubstr("weft_rpc_pool_threads")));
}

TEST(AgentDebugInfo, HasOneFieldForEachThing) {
  Parked parked;
  Ranks ranks(3);
  for (int i = 0; i < 3; ++i) ranks[i].SetLocal(&parked);
  for (int i = 1; i < 3; ++i) {
    (void)CallAsync(ranks[0].To(absl::StrCat("w", i)), Park);
    EXPECT_TRUE(IsWoken(parked.began));
    (void)CallAsync(ranks[i].To("w0"), Park);
    EXPECT_TRUE(IsWoken(parked.began));
  }
  const telemetry::Fields fields = ranks[0].DebugInfo();
  std::vector<std::string> names;
  for (const telemetry::Field& field : fields) names.push_back(field.key);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  EXPECT_THAT(
      names, ::testing::IsSupersetOf(
                 {"worker", "key", "waits", "call 1 to w1", "call 1 to w2",
                  "serving 1 of w1", "serving 1 of w2", "with w1", "with w2"}));
}

TEST(AgentDebugInfo, AnEndedAgentLeavesNothingToTheNext) {  // PROBE-P17
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  RanksOptions options;
  options.telemetry = &telemetry;
  Parked parked;
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    options.keys = {{0, epoch}, {1, epoch}};
    Ranks ranks(2, options);
    ranks[1].SetLocal(&parked);
    ASSERT_EQ(*Call(ranks[0].To("w1"), Length, "four"), 4);
    EXPECT_THAT(ranks[0].Pending(), IsEmpty());
    EXPECT_THAT(ranks[1].Pending(), IsEmpty());
    EXPECT_EQ(ranks[1].Metrics().peers.at("w0").served, 1);
    // Left open, and no concern of the next.
    const Future<int64_t> open = CallAsync(ranks[0].To("w1"), Park);
    EXPECT_TRUE(IsWoken(parked.began));
  }
  EXPECT_THAT(telemetry.status().RenderText(absl::InfiniteDuration()),
              Not(HasSubstr("rpc\n")));
}

// ----------------------------------------------------------------- spans

// The spans that `telemetry` has kept, by name without namespaces.
std::map<std::string, nlohmann::json> SpansOf(telemetry::Telemetry& telemetry) {
  std::ostringstream out;
  telemetry.spans().WriteChromeTrace(out);
  std::map<std::string, nlohmann::json> spans;
  const nlohmann::json written = nlohmann::json::parse(out.str());
  for (const auto& event : written["traceEvents"]) {
    if (!event.contains("args") || !event["args"].contains("span")) continue;
    std::string name = event["name"];
    for (const char* part :
         {"weft::rpc::", "{anonymous}::", "(anonymous namespace)::"}) {
      if (const size_t at = name.find(part); at != std::string::npos) {
        name.erase(at, std::string(part).size());
      }
    }
    spans[name] = event["args"];
  }
  return spans;
}

// LengthBelow of `first`, called by w0, calls Length of `second`: all is one
// trace, and each span is of the one before.
void ExpectOneTrace(const std::string& first, const std::string& second) {
  telemetry::Telemetry::Options tracing;
  tracing.tracing = true;
  telemetry::Telemetry telemetry(tracing);
  RanksOptions options;
  options.telemetry = &telemetry;
  std::string trace;
  {
    Ranks ranks(3, options);
    telemetry::Span step = telemetry.spans().Start("step");
    trace = telemetry::TraceIdText(step.context());
    ASSERT_THAT(
        Call(ranks[0].To(first).WithTrace(step.context()), LengthBelow, second),
        IsOk());
  }
  auto spans = SpansOf(telemetry);
  const std::string there = absl::StrCat("#LengthBelow(w0 -> ", first, ")");
  const std::string below =
      absl::StrCat("#Length(", first, " -> ", second, ")");
  const std::string names[] = {"step", "rpc_call" + there, "rpc_serve" + there,
                               "rpc_call" + below, "rpc_serve" + below};
  for (size_t i = 0; i < std::size(names); ++i) {
    EXPECT_EQ(spans[names[i]].value("trace", ""), trace) << names[i];
    if (i == 0) continue;
    EXPECT_EQ(spans[names[i]].value("parent", ""),
              spans[names[i - 1]].value("span", "none"))
        << names[i];
  }
  EXPECT_EQ(spans[names[1]].value("code", ""), "OK");
}

TEST(CallSpans, CallerAndCalleeAreOfOneTraceAcrossNestedCalls) {
  ExpectOneTrace("w1", "w2");
}

TEST(CallSpans, RemoteCreationHasASpanKindOfItsOwn) {
  telemetry::Telemetry::Options tracing;
  tracing.tracing = true;
  telemetry::Telemetry telemetry(tracing);
  RanksOptions options;
  options.telemetry = &telemetry;
  {
    Ranks ranks(2, options);
    ASSERT_THAT(Remote(ranks[0].To("w1"), Length, "four"), IsOk());
    EXPECT_FALSE(Call(ranks[0].To("w1"), Fail).ok());
  }
  auto spans = SpansOf(telemetry);
  EXPECT_EQ(spans.count("rpc_remote#Length(w0 -> w1)"), 1u);
  EXPECT_EQ(spans.count("rpc_serve#Length(w0 -> w1)"), 1u);
  EXPECT_EQ(spans["rpc_call#Fail(w0 -> w1)"].value("code", ""), "NOT_FOUND");
}

TEST(CallSpans, TheServingIsWrittenDownBeforeItsCallerHears) {
  telemetry::Telemetry::Options tracing;
  tracing.tracing = true;
  telemetry::Telemetry telemetry(tracing);
  RanksOptions options;
  options.telemetry = &telemetry;
  Parked parked;
  Parker heard;
  size_t served = 0;
  Ranks ranks(1, options);
  ranks[0].SetLocal(&parked);
  const Future<int64_t> call = CallAsync(ranks[0].To("w0"), Park);
  EXPECT_TRUE(Becomes(
      [&] { return ranks[0].Metrics().server_active_async_calls > 0; }));
  call.OnReady([&](const absl::StatusOr<int64_t>&) {
    served = SpansOf(telemetry).count("rpc_serve#Park(w0 -> w0)");
    heard.Unpark();
  });
  {
    MutexLock lock(parked.mu);
    parked.promises[0].Set(1);
  }
  EXPECT_TRUE(IsWoken(heard));
  EXPECT_EQ(served, 1u);
}

// Whether or not it is written down.
TEST(CallSpans, AFunctionKnowsTheTraceOfItsCall) {  // F44
  Ranks ranks(2);
  telemetry::TraceContext trace;
  trace.trace_high = 7;
  trace.span = 1;
  for (const char* worker : {"w1", "w0"}) {
    const Target target = ranks[0].To(worker);
    EXPECT_THAT(Call(target.WithTrace(trace), TraceHere),
                IsOkAndHolds(telemetry::TraceIdText(trace)));
    EXPECT_THAT(Call(target, TraceHere), IsOkAndHolds("none"));
  }
}

TEST(CallSpans, OfCallsToOneselfAreTheSame) { ExpectOneTrace("w0", "w0"); }

}  // namespace
}  // namespace weft::rpc
