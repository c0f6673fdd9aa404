// Tests of what a whole worker shows of itself: spans in files, its status
// page.

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/net/channel.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/directory.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/transport/local_transport.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/telemetry/flight_recording.h"
#include "weft/worker/telemetry/status.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"

namespace weft::worker {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

class Observed : public ::testing::Test {
 protected:
  Observed() {
    chmod(dir_.path().c_str(), 0700);
    setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
  }

  Options OptionsOf(const std::string& role) {
    Options options;
    options.job = "job";
    options.role = role;
    options.servers = 1;
    options.trainers = role == "trainer" ? 1 : 0;
    options.coordinator = absl::StrCat("unix:", dir_.Path("c.sock"));
    options.join_timeout = kLong;
    options.log_level = telemetry::Level::kWarning;
    options.trace = dir_.Path("{name}.json");
    return options;
  }

  // ps0 alone, with a channel to it.
  void StartAlone() {
    auto worker = Worker::Start(OptionsOf("ps"));
    ASSERT_THAT(worker, IsOk());
    worker_ = *std::move(worker);
    auto channel = net::Channel::Create(worker_->loop(),
                                        worker_->endpoint().address(), {"ps0"});
    ASSERT_THAT(channel, IsOk());
    channel_ = *std::move(channel);
  }

  // Half by a untyped call that says so; the span of its serving.
  nlohmann::json ServedWith(const net::Metadata& metadata) {
    StartAlone();
    if (channel_ == nullptr) return nullptr;
    rpc::v1::CallRequest request;
    request.set_function("weft::worker::Half");
    request.add_arguments()->set_integer(42);
    EXPECT_THAT(channel_
                    ->UnaryCall("/weft.rpc.v1.Worker/Call",
                                {Bytes::Own(request.SerializeAsString())},
                                kLong, metadata)
                    .Wait(kLong),
                IsOk());
    channel_ = nullptr;
    EXPECT_THAT(worker_->Shutdown(kLong).status(), IsOk());
    return SpanOf("ps0", "rpc_serve#");
  }

  // The span of `name` in the file of `worker`; null if it is not there.
  nlohmann::json SpanOf(const std::string& worker, const std::string& name) {
    std::ifstream in(dir_.Path(worker + ".json"));
    const auto trace = nlohmann::json::parse(in, nullptr, false);
    if (trace.is_discarded()) return nullptr;
    for (const auto& event : trace["traceEvents"]) {
      const std::string found = event["name"];
      if (event.contains("args") && event["args"].contains("span") &&
          found.find(name) != found.npos) {
        return event["args"];
      }
    }
    return nullptr;
  }

  testing::TempDir dir_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<net::Channel> channel_;
};

// From trainer0 here to ps0 in a process of its own, and within that call back:
// one trace in two files, each span a child of the one before.
TEST_F(Observed, ACallThroughTwoProcessesIsOneTraceInTheirFiles) {
  const Options options = OptionsOf("trainer");
  auto host = testing::Process::Start(
      {{testing::RunfilePath("worker/test_worker"), "--job=job", "--role=ps",
        "--servers=1", "--trainers=1", absl::StrCat("--dump-dir=", dir_.path()),
        "--coordinator=" + options.coordinator, "--trace=" + options.trace},
       {}});
  ASSERT_THAT(host, IsOk());
  auto trainer = Worker::Start(options);
  ASSERT_THAT(trainer, IsOk()) << (*host)->output();
  EXPECT_THAT(rpc::Call((*trainer)->agent().To("ps0", kLong), HalfAt,
                        "trainer0", int64_t{42}),
              IsOkAndHolds(21));
  // Its span ends after the call that it answered.
  EXPECT_TRUE(Becomes([&] {
    (*host)->Signal(SIGUSR2);
    return !SpanOf("ps0", "HalfAt(trainer0 -> ps0)").is_null();
  }));
  EXPECT_THAT((*trainer)->Shutdown(kLong).status(), IsOk());

  const nlohmann::json spans[] = {
      SpanOf("trainer0", "rpc_call#weft::worker::HalfAt(trainer0 -> ps0)"),
      SpanOf("ps0", "rpc_serve#weft::worker::HalfAt(trainer0 -> ps0)"),
      SpanOf("ps0", "rpc_call#weft::worker::Half(ps0 -> trainer0)"),
      SpanOf("trainer0", "rpc_serve#weft::worker::Half(ps0 -> trainer0)")};
  for (size_t i = 0; i < std::size(spans); ++i) {
    ASSERT_TRUE(spans[i].is_object()) << i;
    EXPECT_EQ(spans[i]["trace"], spans[0]["trace"]) << i;
    if (i == 0) continue;
    EXPECT_EQ(spans[i].value("parent", ""), spans[i - 1]["span"]) << i;
  }
  EXPECT_FALSE(spans[0].contains("parent"));
}

TEST_F(Observed, ThePlainCallersSpanIsTheParentOfItsServing) {
  const nlohmann::json served =
      ServedWith({{"traceparent",
                   "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}});
  ASSERT_TRUE(served.is_object());
  EXPECT_EQ(served["trace"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(served.value("parent", ""), "b7ad6b7169203331");
}

TEST_F(Observed, APlainCallWithABadTraceparentIsTheRootOfItsOwnTrace) {
  const nlohmann::json served =
      ServedWith({{"traceparent",
                   "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"}});
  ASSERT_TRUE(served.is_object());
  EXPECT_NE(served["trace"], "0af7651916cd43dd8448eb211c80319c");
  EXPECT_FALSE(served.contains("parent"));
}

TEST_F(Observed, UnwritableTraceIsReportedBeforeTheWork) {
  Options options = OptionsOf("ps");
  options.trace = dir_.Path("no/{name}.json");
  const auto worker = Worker::Start(options);
  EXPECT_THAT(worker, StatusIs(absl::StatusCode::kUnavailable,
                               "no/ps0.json: No such file or directory"));
  EXPECT_EQ(ExitCodeFor(worker.status()), ExitCode::kConfig);
}

TEST_F(Observed, TheStatusPageHasTheSectionsOfAllPartsAlsoWhileHandlersHang) {
  Options options = OptionsOf("ps");
  options.handler_threads = 1;
  options.ranks_on_host = 3;
  options.trace.clear();
  Gate gate;  // the handler at it ends with the worker
  auto worker = Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  (*worker)->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync((*worker)->agent().To("ps0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  const auto text =
      AskStatusPage((*worker)->agent().To("ps0", kLong), false).Wait(kLong);
  const auto json =
      AskStatusPage((*worker)->agent().To("ps0", kLong), true).Wait(kLong);
  const auto recording =
      AskFlightRecording((*worker)->agent().To("ps0", kLong)).Wait(kLong);
  gate.may_leave.Unpark();
  EXPECT_THAT(held.Wait(kLong), IsOk());
  ASSERT_THAT(recording, IsOk());
  EXPECT_THAT(*recording, AllOf(::testing::StartsWith("flight recorder: "),
                                ::testing::HasSubstr(" member.joined ")));
  ASSERT_THAT(text, IsOk());
  for (const char* part :
       {"\nmembership\n  worker=ps0\n", "\nnet\n  endpoints=ps0\n",
        "\n  ranks_on_host=3\n", "\nrpc\n", "PassGate"}) {
    EXPECT_THAT(*text, ::testing::HasSubstr(part));
  }
  ASSERT_THAT(json, IsOk());
  std::vector<std::string> names;
  const auto page = nlohmann::json::parse(*json);
  for (const auto& section : page["sections"]) {
    EXPECT_TRUE(section.contains("fields")) << section;
    names.push_back(section["name"]);
  }
  EXPECT_THAT(names,
              ::testing::ElementsAre("flight recorder", "membership", "net",
                                     "passes", "references", "rpc"));
}

TEST_F(Observed, TheHandlerThreadsAreCounted) {
  Options options = OptionsOf("ps");
  options.handler_threads = 3;
  options.trace.clear();
  auto worker = Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  Gate gate;
  (*worker)->agent().SetLocal(&gate);
  const auto shows = [&](int threads, int idle) {
    return Becomes([&] {
      const rpc::AgentMetrics metrics = (*worker)->agent().Metrics();
      return metrics.pool_threads == threads && metrics.idle_threads == idle;
    });
  };
  EXPECT_TRUE(shows(3, 3));
  const Future<int64_t> held =
      rpc::CallAsync((*worker)->agent().To("ps0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  EXPECT_TRUE(shows(3, 2));
  // Waits for a moment at which no other task is in the pool.
  EXPECT_TRUE(Becomes([&] {
    return ::testing::Matches(
        AllOf(ContainsRegex("\nweft_rpc_pool_threads[^\n]* 3\n"),
              ContainsRegex("\nweft_rpc_idle_threads[^\n]* 2\n")))(
        (*worker)->telemetry().metrics().Text());
  }));
  EXPECT_TRUE(Becomes([&] {
    return ::testing::Matches(ContainsRegex(
        "\nrpc\n(  [^\n]*\n)*  pool_threads=3\n"
        "  idle_threads=2\n"))((*worker)->telemetry().status().RenderText());
  }));
  gate.may_leave.Unpark();
  EXPECT_THAT(held.Wait(kLong), IsOk());
}

TEST_F(Observed, AnAgentWithoutAWorkerHasNeitherStatusPageNorRecording) {
  transport::LocalNetwork network;
  rpc::FixedDirectory directory;
  const auto transport = network.MakeTransport("w0").value();
  rpc::AgentOptions options;
  options.job = "job";
  options.name = "w0";
  options.key = rpc::WorkerKey{0, 1};
  options.transport = transport.get();
  options.directory = &directory;
  directory.Put(rpc::Worker{options.name, options.key, "w0"});
  const auto agent = rpc::Agent::Create(options);
  ASSERT_THAT(agent, IsOk());
  for (const bool as_json : {false, true}) {
    EXPECT_THAT(AskStatusPage((*agent)->To("w0", kLong), as_json).Wait(kLong),
                StatusIs(absl::StatusCode::kUnimplemented, "no status page"));
  }
  EXPECT_THAT(
      AskFlightRecording((*agent)->To("w0", kLong)).Wait(kLong),
      StatusIs(absl::StatusCode::kUnimplemented, "no flight recording"));
}

}  // namespace
}  // namespace weft::worker
