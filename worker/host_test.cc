// The host of the coordinator that is killed, and workers that are out of their
// job.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/parker.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/tests/support/etcd.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker.h"
#include "weft/worker/worker_fixture.h"

namespace weft::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

// ps0 in a process of its own, which hosts the coordinator.
class HostTest : public WorkerTest {
 protected:
  std::unique_ptr<testing::Process> StartHost(std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {"--role=ps", "--trainers=2", "--log-level=warning"});
    return StartProcess(std::move(flags));
  }

  std::unique_ptr<testing::Process> StartProcess(
      std::vector<std::string> flags) {
    flags.insert(flags.begin(),
                 {testing::RunfilePath("worker/test_worker"), "--job=job",
                  "--servers=1", absl::StrCat("--dump-dir=", dir_.path())});
    auto process = testing::Process::Start({std::move(flags), {}});
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }

  // trainer0 and trainer1, who meet by `init`.
  Workers StartTrainers(const std::string& init) {
    std::vector<Options> trainers = {OptionsOf("trainer", 0),
                                     OptionsOf("trainer", 1)};
    for (Options& options : trainers) {
      if (init.empty()) break;
      options.coordinator.clear();
      options.init = init;
    }
    return StartAll(trainers);
  }

  // Kills it under traffic, starts another, and looks who noticed.
  void ExpectHostBackAfterKill(const std::vector<std::string>& flags,
                               const std::string& init) {
    auto host = StartHost(flags);
    Workers workers = StartTrainers(init);
    ASSERT_EQ(workers.size(), 2u);
    rendezvous::Membership& membership = workers[0]->membership();
    const auto before = membership.view();
    EXPECT_THAT(CallTwice(*workers[0], "ps0"), IsOkAndHolds(42));
    Traffic traffic(*workers[0], "trainer1");
    host->Signal(SIGKILL);
    EXPECT_THAT(host->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
    const Instant start = SteadyClock().Now();
    host = StartHost(flags);
    const auto after = membership.WaitFor(
        [&](const rendezvous::View& view) {
          return rendezvous::TermOf(view.version()) >
                     rendezvous::TermOf(before->version()) &&
                 view.IsComplete();
        },
        kBackWithin);
    ASSERT_THAT(after, IsOk()) << host->output();
    RecordProperty("back_ms", static_cast<int>(absl::ToInt64Milliseconds(
                                  SteadyClock().Now() - start)));
    EXPECT_GT((*after)->Find("ps0")->key.epoch, before->Find("ps0")->key.epoch);
    for (const char* name : {"trainer0", "trainer1"}) {
      EXPECT_EQ((*after)->Find(name)->key, before->Find(name)->key);
    }
    EXPECT_THAT(CallTwice(*workers[0], "ps0"), IsOkAndHolds(42));
    EXPECT_TRUE(traffic.GoesOn());
    EXPECT_THAT(traffic.End(), IsEmpty());
    host->Signal(SIGKILL);
    ShutdownOptions at_once;
    at_once.graceful = false;
    for (auto& worker : workers) (void)worker->Shutdown(at_once);
  }
};

TEST_F(HostTest, KilledWithALogIsBackInFiveSecondsAndNoOtherWorkerRestarts) {
  ExpectHostBackAfterKill(
      {absl::StrCat("--coordinator=unix:", dir_.Path("c.sock")),
       absl::StrCat("--coordinator-log=", dir_.Path("log"))},
      "");
}

TEST_F(HostTest, AMemberOfItsHostThatIsKilledIsGoneAtOnce) {
  const std::string coordinator =
      absl::StrCat("--coordinator=unix:", dir_.Path("c.sock"));
  const std::string log = absl::StrCat("--coordinator-log=", dir_.Path("log"));
  const auto start_host = [&] {
    return StartProcess({"--role=ps", "--trainers=3", coordinator, log});
  };
  auto host = start_host();
  const std::vector<std::string> trainer = {"--role=trainer", "--trainers=3",
                                            coordinator};
  const auto start_trainer = [&](const char* rank) {
    std::vector<std::string> flags = trainer;
    flags.push_back(absl::StrCat("--rank=", rank));
    return StartProcess(std::move(flags));
  };
  const auto first = start_trainer("1");
  const auto second = start_trainer("2");
  Options options = OptionsOf("trainer", 0);
  options.trainers = 3;
  Workers workers = StartAll({options});
  ASSERT_EQ(workers.size(), 1u);
  rendezvous::Membership& membership = workers[0]->membership();
  EXPECT_THAT(CallTwice(*workers[0], "trainer1"), IsOkAndHolds(42));

  first->Signal(SIGKILL);
  EXPECT_THAT(membership.WaitFor(
                  [](const auto& view) {
                    return IsGone(view, "trainer1", "its process has ended");
                  },
                  kLong),
              IsOk());
  EXPECT_THAT(CallTwice(*workers[0], "trainer1"),
              StatusIs(absl::StatusCode::kUnavailable, "process has ended"));

  // One that knows its members from its log looks at them too.
  host->Signal(SIGKILL);
  second->Signal(SIGKILL);
  EXPECT_THAT(host->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  host = start_host();
  EXPECT_THAT(membership.WaitFor(
                  [](const auto& view) {
                    return IsGone(view, "trainer2", "its process has ended");
                  },
                  kLong),
              IsOk());
  host->Signal(SIGKILL);
  ShutdownOptions at_once;
  at_once.graceful = false;
  (void)workers[0]->Shutdown(at_once);
}

TEST_F(HostTest, WorkerKilledUnderTrafficAnswersTheFirstCallAfterItsRestart) {
  Gate gate;  // a handler at it ends with its worker
  const std::string coordinator =
      absl::StrCat("--coordinator=unix:", dir_.Path("c.sock"));
  const auto start = [&] {
    return StartProcess(
        {"--role=trainer", "--rank=1", "--trainers=2", coordinator});
  };
  const auto host = StartHost({coordinator});
  const auto first = start();
  Workers workers = StartAll({OptionsOf("trainer", 0)});
  ASSERT_EQ(workers.size(), 1u);
  rpc::Agent& agent = workers[0]->agent();
  agent.SetLocal(&gate);
  rendezvous::Membership& membership = workers[0]->membership();
  const rendezvous::WorkerKey old_key =
      membership.view()->Find("trainer1")->key;
  const rpc::Target by_key = agent.To(old_key, kLong);
  const rpc::Target by_name = agent.To("trainer1", kLong);
  EXPECT_THAT(rpc::Call(by_key, Twice, int64_t{21}), IsOkAndHolds(42));
  Traffic others(*workers[0], "ps0");
  Traffic traffic(*workers[0], "trainer1");
  const Future<int64_t> held =
      rpc::CallAsync(by_name, PassGateAt, std::string("trainer0"));
  EXPECT_TRUE(IsWoken(gate.entered));

  first->Signal(SIGKILL);
  const absl::Status cut = held.Wait(kLong).status();
  EXPECT_THAT(cut, StatusIs(absl::StatusCode::kUnavailable,
                            "is gone: its process has ended"));
  EXPECT_EQ(rpc::ReasonOf(cut), rpc::Reason::kPeerGone);
  EXPECT_TRUE(rpc::OutcomeUnknown(cut));
  gate.may_leave.Unpark();
  for (const absl::Status& failure : traffic.End()) {
    EXPECT_THAT(failure, StatusIs(absl::StatusCode::kUnavailable, ""));
  }

  const auto second = start();
  ASSERT_THAT(membership.WaitFor(
                  [&](const auto& view) {
                    return view.IsComplete() &&
                           view.Find("trainer1")->key.epoch > old_key.epoch;
                  },
                  kLong),
              IsOk());
  EXPECT_THAT(CallTwice(*workers[0], "trainer1"), IsOkAndHolds(42));
  // A target by name follows the name, one by key does not.
  EXPECT_THAT(rpc::Call(by_name, Twice, int64_t{21}), IsOkAndHolds(42));
  for (const rpc::Target& old : {by_key, agent.To(old_key, kLong)}) {
    const absl::Status refused = rpc::Call(old, Twice, int64_t{21}).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kUnavailable,
                                  "is gone: its process has ended"));
    EXPECT_EQ(rpc::ReasonOf(refused), rpc::Reason::kPeerGone);
    EXPECT_FALSE(rpc::OutcomeUnknown(refused));
  }
  EXPECT_TRUE(others.GoesOn());
  EXPECT_THAT(others.End(), IsEmpty());  // and nobody else noticed
  host->Signal(SIGKILL);
  second->Signal(SIGKILL);
  ShutdownOptions at_once;
  at_once.graceful = false;
  (void)workers[0]->Shutdown(at_once);
}

TEST_F(HostTest, KilledWithEtcdIsBackInFiveSecondsAndNoOtherWorkerRestarts) {
  if (!testing::Etcd::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
  auto etcd = testing::Etcd::Start(dir_.path());
  ASSERT_THAT(etcd, IsOk());
  ExpectHostBackAfterKill({"--init=" + (*etcd)->url()}, (*etcd)->url());
}

TEST_F(HostTest, OutageOfEtcdEndsNoWorkerAndTheCoordinatorGoesOn) {
  if (!testing::Etcd::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
  auto etcd = testing::Etcd::Start(dir_.path());
  ASSERT_THAT(etcd, IsOk());
  const std::string init = (*etcd)->url();
  auto host = StartHost({"--init=" + init});
  Workers workers = StartTrainers(init);
  ASSERT_EQ(workers.size(), 2u);
  rendezvous::Store& store = workers[0]->membership().store();
  EXPECT_THAT(store.Add("sum", 1, kLong), IsOkAndHolds(1));
  const auto before = workers[0]->membership().view();
  etcd->reset();  // with SIGKILL
  // Decided, but not told; nothing else is decided.
  EXPECT_THAT(store.Add("sum", 1, absl::Seconds(3)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
  EXPECT_TRUE(Becomes([&] {
    const absl::Status status =
        store.Get("sum", absl::Milliseconds(300)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    return absl::StrContains(status.message(), "waits for its journal");
  }));
  EXPECT_THAT(CallTwice(*workers[0], "ps0"), IsOkAndHolds(42));
  etcd = testing::Etcd::Start(dir_.path());
  ASSERT_THAT(etcd, IsOk());
  // The cancelled change was applied nevertheless, once.
  EXPECT_THAT(store.Add("sum", 1, kLong), IsOkAndHolds(3));
  const auto after = workers[0]->membership().view();
  for (const char* name : {"ps0", "trainer0", "trainer1"}) {
    ASSERT_NE(after->Find(name), nullptr) << name;
    EXPECT_EQ(after->Find(name)->key, before->Find(name)->key);
  }
  host->Signal(SIGKILL);
  ShutdownOptions at_once;
  at_once.graceful = false;
  for (auto& worker : workers) (void)worker->Shutdown(at_once);
}

TEST_F(HostTest, WorkerOutOfItsJobExitsForItsSupervisor) {
  const std::string coordinator =
      absl::StrCat("--coordinator=unix:", dir_.Path("c.sock"));
  const auto host = StartProcess({"--role=ps", "--trainers=1", coordinator});
  const auto trainer = StartProcess(
      {"--role=trainer", "--trainers=1", "--exit-if-unreachable", coordinator});
  ASSERT_THAT(trainer->WaitForOutput("serving", kLong), IsOk());
  DeclareGone("trainer0");
  EXPECT_THAT(trainer->Wait(kLong),
              IsOkAndHolds(static_cast<int>(ExitCode::kPeerLost)));
  const std::string output = trainer->output();
  constexpr char kWhy[] =
      "trainer0 is out of job \"job\": declared gone: a test says so; start it "
      "again to join anew";
  EXPECT_THAT(output, HasSubstr(absl::StrCat("error: ", kWhy)));
  EXPECT_THAT(output, HasSubstr("flight recorder written to"));
  // The log, which a program without the flag has too.
  EXPECT_THAT(output.substr(0, output.find("flight recorder")),
              HasSubstr(kWhy));
}

TEST_F(HostTest, WorkerDeclaredGoneWhileJoiningIsAskedToStartAgain) {
  const auto host =
      StartProcess({"--role=ps", "--trainers=2",
                    absl::StrCat("--coordinator=unix:", dir_.Path("c.sock"))});
  Options options = OptionsOf("trainer", 0);
  options.listen = absl::StrCat("unix:", dir_.Path("t.sock"));
  options.dump_dir = dir_.Path("dumps");
  ASSERT_EQ(mkdir(options.dump_dir.c_str(), 0700), 0);
  absl::Status joined;
  std::thread joining([&] { joined = Worker::Start(options).status(); });
  // It serves calls once it has been let in; trainer1 is still to come.
  EXPECT_TRUE(Becomes([&] {
    const auto client = rpc::Client::Connect(options.listen);
    return client.ok() &&
           rpc::Call((*client)->To(absl::Seconds(1)), Twice, int64_t{21}).ok();
  }));
  DeclareGone("trainer0");
  joining.join();
  EXPECT_THAT(joined, StatusIs(absl::StatusCode::kAborted, "start it again"));
  EXPECT_EQ(ExitCodeFor(joined), ExitCode::kPeerLost);
  const std::string dump =
      absl::StrCat(options.dump_dir, "/job-trainer0-", getpid(), "-0.flight");
  EXPECT_EQ(access(dump.c_str(), F_OK), 0) << dump;
}

TEST_F(HostTest, StaleRendezvousFileIsNamed) {
  const std::string path = dir_.Path("meeting");
  const std::string init = "file://" + path;
  auto host = StartHost({"--init=" + init});
  Workers workers = StartTrainers(init);
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_THAT(CallTwice(*workers[0], "ps0"), IsOkAndHolds(42));
  host->Signal(SIGKILL);
  EXPECT_THAT(host->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  Options late = OptionsOf("trainer", 0);
  late.coordinator.clear();
  late.init = init;
  EXPECT_THAT(
      Worker::Start(late),
      StatusIs(absl::StatusCode::kFailedPrecondition, "remove it: rm " + path));
  auto second = StartHost({"--init=" + init});
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(3)) << second->output();
  EXPECT_THAT(second->output(), HasSubstr("remove it: rm " + path));
}

TEST_F(WorkerTest, UnreachableWorkerExitsForItsSupervisor) {
  testing::Command command;
  command.argv = {testing::RunfilePath("worker/test_worker"),
                  "--role=ps",
                  "--servers=1",
                  "--trainers=0",
                  "--exit-if-unreachable",
                  absl::StrCat("--dump-dir=", dir_.path()),
                  absl::StrCat("--coordinator=unix:", dir_.Path("c.sock"))};
  const auto host = testing::Process::Start(std::move(command));
  ASSERT_THAT(host, IsOk());
  ASSERT_THAT((*host)->WaitForOutput("serving", kLong), IsOk());
  // Its socket is lost, and where it was no other may be made.
  chmod(dir_.path().c_str(), 0755);
  ASSERT_EQ(unlink(dir_.Path("c.sock").c_str()), 0);
  EXPECT_THAT((*host)->Wait(kLong),
              IsOkAndHolds(static_cast<int>(ExitCode::kPeerLost)));
  EXPECT_THAT((*host)->output(), HasSubstr("flight recorder written to"));
  EXPECT_THAT((*host)->output(),
              HasSubstr("error: ps0 cannot be reached at its own address"));
}

TEST_F(WorkerTest, UnreachableWorkerGoesOnByDefault) {
  Options options = OptionsOf("trainer", 0);
  options.servers = 0;
  options.trainers = 1;
  options.probe_every = absl::Milliseconds(20);
  options.log_level = telemetry::Level::kOff;
  const auto worker = Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  chmod(dir_.path().c_str(), 0755);
  ASSERT_EQ(unlink(dir_.Path("c.sock").c_str()), 0);
  telemetry::Counter& tried = (*worker)->telemetry().metrics().CounterFor(
      "weft_net_listeners_reopened_total");
  // The first time has been reported when there is a second.
  EXPECT_TRUE(Becomes([&] { return tried.Value() >= 2; }));
}

}  // namespace
}  // namespace weft::worker
