// weft status, weft dump --job and weft health over real workers, in one
// process.

#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/dist_autograd/scope.h"
#include "weft/launch/commands/commands.h"
#include "weft/launch/commands/flight_report.h"
#include "weft/proto/ps.pb.h"
#include "weft/ps/server.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/class.h"
#include "weft/rpc/function.h"
#include "weft/rref/rref.h"
#include "weft/telemetry/flight_recorder.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/train/training_metrics.h"
#include "weft/worker/test_workers.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using Command = absl::StatusOr<int> (*)(int, char**);

constexpr absl::Duration kLong = absl::Seconds(60);

class Drawer {
 public:
  explicit Drawer(int64_t value) : value_(value) {}
  int64_t Get() const { return value_; }

 private:
  const int64_t value_;
};
WEFT_RPC_CLASS(Drawer, int64_t);
WEFT_RPC_METHOD(Drawer, Get);

// Holds the backward of Hooked.
struct Gate {
  absl::Notification entered;
  absl::Notification open;
};

Variable Hooked(rpc::CallContext& call, const Variable& x) {
  Variable y = Mul(x, x);
  y.AddHook([gate = call.agent().Local<Gate>()](Gradient g) {
    gate->entered.Notify();
    gate->open.WaitForNotification();
    return g;
  });
  return y;
}
WEFT_RPC(Hooked);

// What a command prints; its code is expected to be 0.
std::string OutputOf(Command command, std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  ::testing::internal::CaptureStdout();
  const absl::StatusOr<int> code =
      command(static_cast<int>(argv.size()), argv.data());
  std::string output = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(code, IsOkAndHolds(0));
  return output;
}

class StatusCommandTest : public ::testing::Test {
 protected:
  StatusCommandTest() {
    worker::TestWorkers::Options options;
    options.servers = 1;
    options.trainers = 1;
    workers_ = worker::TestWorkers::Start(options).value();
  }
  worker::Worker& Get(const std::string& name) { return workers_->Get(name); }
  std::vector<std::string> Status(const std::vector<std::string>& more,
                                  const std::string& command = "status") {
    const worker::Options& own = Get("ps0").options();
    std::vector<std::string> arguments = {
        command, absl::StrCat("--coordinator=", own.coordinator),
        absl::StrCat("--job=", own.job)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::unique_ptr<worker::TestWorkers> workers_;
};

TEST_F(StatusCommandTest, NamesTheMembers) {
  EXPECT_THAT(OutputOf(StatusCommand, Status({})),
              AllOf(HasSubstr("  ps0 "), HasSubstr("  trainer0 "),
                    Not(HasSubstr("references"))));
  EXPECT_THAT(OutputOf(StatusCommand, Status({"--json"})),
              AllOf(HasSubstr("\"name\":\"trainer0\""),
                    HasSubstr("\"complete\":true")));
}

TEST_F(StatusCommandTest, RefsNameOwnerHolderAndAge) {
  const auto drawer =
      rref::Make<Drawer>(Get("trainer0").agent().To("ps0"), int64_t{7});
  ASSERT_THAT(drawer.status(), IsOk());
  const std::string text = OutputOf(StatusCommand, Status({"--refs"}));
  EXPECT_THAT(text, AllOf(HasSubstr("references of ps0\n"),
                          HasSubstr("references of trainer0\n"),
                          HasSubstr("shared objects of this worker: 1"),
                          HasSubstr("is held by trainer0 for "),
                          HasSubstr("of ps0 is held here for ")));
  EXPECT_THAT(
      OutputOf(StatusCommand, Status({"--refs", "--json"})),
      AllOf(HasSubstr("\"references\":{"), HasSubstr("\"no_answer\":[]"),
            HasSubstr("is held by trainer0 for ")));
}

TEST_F(StatusCommandTest, PassesNameTheAwaitedWorkersAndTheWait) {
  const auto gate = std::make_shared<Gate>();
  Get("ps0").agent().SetLocal(gate);
  rpc::Agent& agent = Get("trainer0").agent();
  const Variable x(Tensor::FromVector<float>({3}), true);
  const dist_autograd::Scope scope(Get("trainer0").contexts());
  const auto y = scope.Call(agent.To("ps0"), Hooked, x);
  ASSERT_THAT(y.status(), IsOk());
  const auto pass = scope.BackwardAsync({*y});
  ASSERT_TRUE(gate->entered.WaitForNotificationWithTimeout(kLong));
  const std::string text = OutputOf(StatusCommand, Status({"--passes"}));
  // The root waits for the gradient of what it sent; ps0 is busy.
  EXPECT_THAT(text,
              AllOf(HasSubstr("passes of trainer0\n"),
                    HasSubstr(" with ps0, open for "),
                    HasSubstr("waits for the gradients of message 1 (the "
                              "arguments of "),
                    HasSubstr("Hooked to ps0)"), HasSubstr("passes of ps0\n"),
                    HasSubstr("is running a node of its graph")));
  gate->open.Notify();
  EXPECT_THAT(pass.Wait(kLong).status(), IsOk());
  EXPECT_THAT(OutputOf(StatusCommand, Status({"--passes"})),
              AllOf(HasSubstr("open passes: 0"), Not(HasSubstr("waits for"))));
}

TEST_F(StatusCommandTest, PageOfAnUnknownWorkerNamesThoseThatThereAre) {
  EXPECT_THAT(OutputOf(StatusCommand, Status({"--page=ps0"})),
              HasSubstr("ps0"));
  std::vector<std::string> arguments = Status({"--page=ps7"});
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  EXPECT_THAT(StatusCommand(static_cast<int>(argv.size()), argv.data()),
              StatusIs(absl::StatusCode::kNotFound, "ps0, trainer0"));
}

TEST_F(StatusCommandTest, ShowsTheStepAndPhaseOfATrainer) {
  EXPECT_THAT(OutputOf(StatusCommand, Status({})), Not(HasSubstr("training")));
  train::TrainingMetrics metrics(Get("trainer0").telemetry());
  metrics.BeginStep(41);
  metrics.EndStep(/*loss=*/0.25, /*samples=*/32);
  const auto phase = metrics.Begin(train::StepPhase::kForward);
  EXPECT_THAT(
      OutputOf(StatusCommand, Status({})),
      ContainsRegex("\ntraining\n  trainer0: step 42, forward for [0-9.]+ "
                    "s, waits 0 %, loss 0.25, [0-9]+ examples/s\n"));
  const auto json =
      nlohmann::json::parse(OutputOf(StatusCommand, Status({"--json"})));
  const auto& training = json["training"];
  EXPECT_EQ(training["workers"].size(), 1u) << training;
  EXPECT_EQ(training["workers"]["trainer0"]["step"], 42);
  EXPECT_EQ(training["workers"]["trainer0"]["phase"], "forward");
  EXPECT_EQ(training["workers"]["trainer0"]["steps_behind"], 0);
  EXPECT_TRUE(training["no_answer"].empty());
  EXPECT_THAT(OutputOf(StatusCommand, Status({"--no-training"})),
              Not(HasSubstr("training")));
  EXPECT_FALSE(nlohmann::json::parse(
                   OutputOf(StatusCommand, Status({"--no-training", "--json"})))
                   .contains("training"));
}

TEST_F(StatusCommandTest, ShowsTheTablesOfTheServers) {
  EXPECT_THAT(OutputOf(StatusCommand, Status({"--tables"})),
              HasSubstr("no tables\n  ps0: no answer: "));
  ps::Server server(ps::ServerOptions{0, 1});
  ps::v1::TableSpec spec;
  spec.set_name("words");
  spec.set_kind(ps::v1::TableSpec::SPARSE);
  spec.set_dim(2);
  spec.set_mode(ps::v1::TableSpec::ASYNC);
  spec.set_partitions(16);
  spec.mutable_wire()->set_pull(ps::v1::WireValues::BF16);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  ASSERT_THAT(server.CreateTable(spec), IsOk());
  Get("ps0").agent().SetLocal(&server);
  EXPECT_THAT(
      OutputOf(StatusCommand, Status({"--tables"})),
      HasSubstr("tables\n  words: sparse, async, 16 partitions, 0 rows"));
  const auto json = nlohmann::json::parse(
      OutputOf(StatusCommand, Status({"--tables", "--json"})));
  const auto& words = json["tables"]["tables"]["words"];
  EXPECT_EQ(words["pull_dtype"], "bf16") << json;
  EXPECT_EQ(words["servers"]["ps0"]["rows"], 0) << json;
  Get("ps0").agent().SetLocal(static_cast<ps::Server*>(nullptr));
}

TEST_F(StatusCommandTest, DumpShowsWhatAllWorkersOfARunningJobHaveRecorded) {
  telemetry::FlightRecorder& recorder = Get("trainer0").telemetry().recorder();
  recorder.RecordFor("collective.start", "trainer/world", "AllReduce", 4, 7);
  recorder.Record("test.event", "the newest but for the question");
  const std::string text =
      OutputOf(DumpCommand, Status({"--events=4"}, "dump"));
  EXPECT_THAT(text,
              AllOf(HasSubstr("group trainer/world, 1 worker"),
                    HasSubstr("  trainer0: in AllReduce #4, called "),
                    ContainsRegex("\nps0, [0-9]+ of [0-9]+ entries, 0 lost, "
                                  "newest first:\n"),
                    ContainsRegex("\ntrainer0, [0-9]+ of [0-9]+ entries"),
                    HasSubstr(" test.event "), Not(HasSubstr("no answer"))));
  EXPECT_THAT(OutputOf(DumpCommand, Status({"--events=0"}, "dump")),
              Not(HasSubstr("entries")));
}

TEST_F(StatusCommandTest, DumpWritesFilesThatDumpReads) {
  Get("trainer0")
      .telemetry()
      .recorder()
      .RecordFor("collective.start", "trainer/world", "AllReduce", 4, 7);
  const testing::TempDir dir;
  const std::string out = dir.Path("out");
  OutputOf(DumpCommand, Status({"--out=" + out}, "dump"));
  EXPECT_THAT(OutputOf(DumpCommand, {"dump", out}),
              HasSubstr("  trainer0: in AllReduce #4, called "));
  std::set<std::string> workers;
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    workers.insert(WorkerOfFile(entry.path().string()));
  }
  EXPECT_THAT(workers, ::testing::ElementsAre("ps0", "trainer0"));
}

TEST_F(StatusCommandTest, HealthOfAWorkerIsServing) {
  EXPECT_THAT(OutputOf(HealthCommand, {"health", "--name=trainer0",
                                       Get("trainer0").self().address}),
              HasSubstr(": SERVING"));
}

}  // namespace
}  // namespace weft::launch
