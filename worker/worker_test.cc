// Tests of Worker: whole ranks, which meet, call each other and end.

#include "weft/worker/worker.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/parker.h"
#include "weft/net/channel.h"
#include "weft/net/loop/loop.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/process_watch.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/client.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/rpc/stream.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/etcd.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_functions.h"

namespace weft::worker {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);
// A coordinator that was killed, after it was started again: 5 s on a machine
// that has the time, and as much again and more on one that is stopped now and
// then. How long it was is the test's property back_ms.
constexpr absl::Duration kBackWithin = absl::Seconds(60);

// An object that a program may forget to release.
class Counter {
 public:
  explicit Counter(int64_t n) : n_(n) { ++living; }
  ~Counter() { --living; }
  int64_t Value() const { return n_; }

  static inline std::atomic<int> living{0};

 private:
  const int64_t n_;
};
WEFT_RPC_CLASS(Counter, int64_t);
WEFT_RPC_METHOD(Counter, Value);

// Until nobody reads.
void Ticks(rpc::Writer<int64_t> out) {
  while (out.Write(1).ok()) {
  }
}
WEFT_RPC_STREAM(Ticks);

using Workers = std::vector<std::unique_ptr<Worker>>;

// All at once, as each waits for the others. Empty if one could not.
Workers StartAll(const std::vector<Options>& ranks) {
  Workers workers(ranks.size());
  const auto statuses = testing::RunRanks(ranks.size(), [&](int i) {
    auto worker = Worker::Start(ranks[i]);
    if (worker.ok()) workers[i] = *std::move(worker);
    return worker.status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, IsOk());
    if (!status.ok()) workers.clear();
  }
  return workers;
}

// Each by a thread of its own, as each may wait for the others.
void EndAll(Workers workers) {
  const auto statuses = testing::RunRanks(workers.size(), [&](int i) {
    const ShutdownReport report = workers[i]->Shutdown(kLong);
    workers[i].reset();
    return report.status();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
}

absl::StatusOr<int64_t> CallTwice(Worker& caller, const std::string& peer) {
  return rpc::Call(caller.agent().To(peer, kLong), Twice, int64_t{21});
}

// Calls `peer` over and over, from its making to its end.
class Traffic {
 public:
  Traffic(Worker& caller, std::string peer)
      : thread_([this, &caller, peer = std::move(peer)] {
          while (!is_over_) {
            const auto reply = CallTwice(caller, peer);
            if (!reply.ok()) failures_.push_back(reply.status());
            ++calls_;
          }
        }) {}
  ~Traffic() { (void)End(); }

  int64_t calls() const { return calls_; }
  ::testing::AssertionResult GoesOn() {
    return Becomes([this, before = calls()] { return calls() > before; });
  }
  // Ends it, and returns the errors of all its calls.
  std::vector<absl::Status> End() {
    is_over_ = true;
    if (thread_.joinable()) thread_.join();
    return failures_;
  }

 private:
  std::atomic<bool> is_over_{false};
  std::atomic<int64_t> calls_{0};
  std::vector<absl::Status> failures_;
  std::thread thread_;
};

class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() {
    chmod(dir_.path().c_str(), 0700);
    // Where default sockets go.
    setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1);
  }

  Options OptionsOf(const std::string& role, int rank) {
    Options options;
    options.job = "job";
    options.role = role;
    options.rank = rank;
    options.servers = 1;
    options.trainers = 2;
    options.coordinator = absl::StrCat("unix:", dir_.Path("c.sock"));
    options.join_timeout = kLong;
    options.log_level = telemetry::Level::kWarning;
    return options;
  }

  Options ElasticOf(int rank, int min, int max) {
    Options options = OptionsOf("trainer", rank);
    options.servers = options.trainers = 0;
    options.min_workers = min;
    options.max_workers = max;
    return options;
  }

  // As a witness of its end tells the coordinator.
  void DeclareGone(const std::string& name) {
    const auto loop = net::Loop::Create();
    ASSERT_THAT(loop, IsOk());
    const auto link =
        rendezvous::MakeGrpcLink(**loop, OptionsOf("ps", 0).coordinator, "ps0");
    ASSERT_THAT(link, IsOk());
    rendezvous::v1::ReportExitRequest report;
    report.set_job("job");
    report.set_name(name);
    // All that is started here is of this group of processes.
    const auto self = rendezvous::ThisProcess();
    ASSERT_TRUE(self.has_value());
    report.mutable_process()->set_pid(self->group());
    report.mutable_process()->set_space(self->space());
    report.set_reason("a test says so");
    EXPECT_THAT((*link)
                    ->Call("ReportExit", report.SerializeAsString(), kLong)
                    .Wait(kLong),
                IsOk());
  }

  // ps0, trainer0 and trainer1.
  Workers StartThree() {
    return StartAll(
        {OptionsOf("ps", 0), OptionsOf("trainer", 0), OptionsOf("trainer", 1)});
  }

  testing::TempDir dir_;
};

TEST_F(WorkerTest, RanksMeetInAnyOrderCallEachOtherAndEndInPeace) {
  const std::vector<Options> ranks = {
      OptionsOf("trainer", 0), OptionsOf("trainer", 1), OptionsOf("ps", 0)};
  std::vector<std::thread> threads;
  for (const Options& options : ranks) {
    threads.emplace_back([options] {
      auto worker = Worker::Start(options);
      ASSERT_THAT(worker, IsOk());
      EXPECT_EQ((*worker)->self().name, options.name());
      for (const char* peer : {"ps0", "trainer0", "trainer1"}) {
        EXPECT_THAT(
            rpc::Call((*worker)->agent().To(peer, kLong), Twice, int64_t{21}),
            IsOkAndHolds(42))
            << options.name() << " to " << peer;
      }
      EXPECT_THAT((*worker)->AwaitAll("called", kLong), IsOk());
      const ShutdownReport report = (*worker)->Shutdown(kLong);
      EXPECT_THAT(report.status(), IsOk()) << report.ToString();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(WorkerTest, AServerThatIsNotThereIsNamedWithTheDeadline) {
  Options options = OptionsOf("trainer", 0);
  options.join_timeout = absl::Milliseconds(500);
  const auto worker = Worker::Start(options);
  EXPECT_THAT(worker,
              StatusIs(absl::StatusCode::kDeadlineExceeded, "is ps0 running"));
  EXPECT_EQ(ExitCodeFor(worker.status()), ExitCode::kTimeout);
}

TEST_F(WorkerTest, NameThatIsNoneMakesNoPathWithoutResolveEither) {
  for (const char* role : {"../ps", "a/b", "..", ""}) {
    Options options = OptionsOf(role, 0);
    options.listen = absl::StrCat("unix:", dir_.Path("l.sock"));
    options.trace = dir_.Path("traces/{name}.json");
    std::filesystem::create_directories(dir_.Path("traces"));
    EXPECT_THAT(Worker::Start(options),
                StatusIs(absl::StatusCode::kInvalidArgument, "role"));
    std::filesystem::remove(dir_.Path("traces"));  // if it is empty
    EXPECT_TRUE(std::filesystem::is_empty(dir_.path())) << role;
  }
}

TEST_F(WorkerTest, AWorldOfOneCallsItself) {
  Options options = OptionsOf("trainer", 0);
  options.servers = 0;
  options.trainers = 1;
  for (int life = 0; life < 2; ++life) {  // nothing is left of the first
    auto worker = Worker::Start(options);
    ASSERT_THAT(worker, IsOk());
    EXPECT_THAT(CallTwice(**worker, "trainer0"), IsOkAndHolds(42));
    EXPECT_THAT((*worker)->Shutdown(kLong).status(), IsOk());
  }
}

TEST_F(WorkerTest, OthersReachItAtTheAdvertisedAddress) {  // F16
  std::vector<Options> ranks = {OptionsOf("ps", 0), OptionsOf("trainer", 0)};
  ranks[1].listen = "127.0.0.1:0";
  ranks[1].advertise = "localhost:0";
  for (Options& options : ranks) {
    options.trainers = 1;
    options.insecure = true;
    options.log_level = telemetry::Level::kError;
  }
  Workers workers = StartAll(ranks);
  ASSERT_EQ(workers.size(), 2u);
  const std::string address = workers[1]->self().address;
  EXPECT_THAT(address, StartsWith("localhost:"));
  EXPECT_NE(address, "localhost:0");
  EXPECT_EQ(workers[0]->membership().view()->Find("trainer0")->address,
            address);
  EXPECT_THAT(CallTwice(*workers[0], "trainer0"), IsOkAndHolds(42));
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, UnknownWorkerIsNotFoundAndKnownOnesAreNamed) {
  Options options = OptionsOf("trainer", 0);
  options.servers = 0;
  options.trainers = 1;
  auto worker = Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  rpc::Agent& agent = (*worker)->agent();
  const auto refused =
      StatusIs(absl::StatusCode::kNotFound, "there are: trainer0");
  const auto call = [](const rpc::Target& target) {
    return rpc::Call(target, Twice, int64_t{21});
  };
  EXPECT_THAT(call(agent.To("trainer1", kLong)), refused);
  EXPECT_THAT(call(agent.To(rpc::WorkerKey{77, 1}, kLong)), refused);
  EXPECT_THAT(agent.ToAll("role=ps", kLong), refused);
  EXPECT_THAT((*worker)->Shutdown(kLong).status(), IsOk());
}

struct sigaction ActionOfUsr2() {
  struct sigaction current = {};
  EXPECT_EQ(sigaction(SIGUSR2, nullptr, &current), 0);
  return current;
}

void (*HandlerOfUsr2())(int) { return ActionOfUsr2().sa_handler; }

TEST_F(WorkerTest, ASignalMakesEveryWorkerOfTheProcessWriteItsDump) {
  const std::string dumps = dir_.Path("dumps");
  ASSERT_EQ(mkdir(dumps.c_str(), 0700), 0);
  std::vector<Options> ranks = {OptionsOf("ps", 0), OptionsOf("trainer", 0),
                                OptionsOf("trainer", 1)};
  for (Options& options : ranks) options.dump_dir = dumps;
  Workers workers = StartAll(ranks);
  ASSERT_EQ(workers.size(), 3u);
  const auto has_written = [&](const std::string& name, int n) {
    const std::string path =
        absl::StrCat(dumps, "/job-", name, "-", getpid(), "-", n, ".flight");
    return access(path.c_str(), F_OK) == 0;
  };
  // A view is there before its record.
  EXPECT_TRUE(Becomes([&] {
    return absl::StrContains(workers[0]->telemetry().recorder().DumpText(),
                             "member.joined");
  }));
  EXPECT_NE(ActionOfUsr2().sa_flags & SA_ONSTACK, 0);
  kill(getpid(), SIGUSR2);
  for (const char* name : {"ps0", "trainer0", "trainer1"}) {
    EXPECT_TRUE(Becomes([&] { return has_written(name, 0); })) << name;
  }
  workers.erase(workers.begin() + 1);
  kill(getpid(), SIGUSR2);
  for (const char* name : {"ps0", "trainer1"}) {
    EXPECT_TRUE(Becomes([&] { return has_written(name, 1); })) << name;
  }
  EXPECT_FALSE(has_written("trainer0", 1));
  workers.clear();
  EXPECT_EQ(HandlerOfUsr2(), SIG_DFL);
}

TEST_F(WorkerTest, AProgramKeepsItsOwnHandlerOfTheSignal) {
  Options options = OptionsOf("trainer", 0);
  options.servers = 0;
  options.trainers = 1;
  signal(SIGUSR2, SIG_IGN);
  EXPECT_THAT(Worker::Start(options), IsOk());
  EXPECT_EQ(HandlerOfUsr2(), SIG_IGN);
  signal(SIGUSR2, SIG_DFL);
  auto worker = Worker::Start(options);
  EXPECT_THAT(worker, IsOk());
  signal(SIGUSR2, SIG_IGN);  // nor is a later one's taken away
  worker->reset();
  EXPECT_EQ(HandlerOfUsr2(), SIG_IGN);
  signal(SIGUSR2, SIG_DFL);
}

// A target of the first must not reach the second, which has no log to count
// by.
TEST_F(WorkerTest, AHostWithoutALogUsesNoKeyAgain) {
  Options options = OptionsOf("trainer", 0);
  options.servers = 0;
  options.trainers = 1;
  rendezvous::Epoch last = 0;
  for (int i = 0; i < 2; ++i) {
    const auto worker = Worker::Start(options);
    ASSERT_THAT(worker, IsOk());
    const rendezvous::Epoch epoch = (*worker)->membership().self().key.epoch;
    EXPECT_GT(rendezvous::TermOf(epoch), rendezvous::TermOf(last));
    last = epoch;
    // As any process takes longer than to start.
    EXPECT_TRUE(Becomes(
        [&] { return rendezvous::TermOfNow() > rendezvous::TermOf(last); }));
  }
}

TEST_F(WorkerTest, EndingWorkerServesUntilTheOthersEndToo) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  std::thread early(
      [&] { EXPECT_THAT(workers[1]->Shutdown(kLong).status(), IsOk()); });
  ASSERT_THAT(workers[2]->membership().WaitFor(
                  [](const rendezvous::View& view) {
                    return view.Find("trainer0")->phase ==
                           rendezvous::Phase::kQuiescing;
                  },
                  kLong),
              IsOk());
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  }
  EXPECT_THAT(workers[2]->Shutdown(kLong).status(), IsOk());
  early.join();
  EXPECT_THAT(CallTwice(*workers[1], "ps0"),
              StatusIs(absl::StatusCode::kFailedPrecondition, "shutting down"));
  EXPECT_THAT(workers[0]->Shutdown(kLong).status(), IsOk());
}

TEST_F(WorkerTest, ShutdownDeadlineNamesLateWorkersAndCutCalls) {
  Gate gate;  // handlers at it end with their workers
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[2]->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync(workers[1]->agent().To("trainer1", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  const ShutdownReport report = workers[1]->Shutdown(absl::Milliseconds(300));
  EXPECT_THAT(report.status(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                        "trainer1 did not begin to end"));
  EXPECT_THAT(report.pending_calls, ElementsAre("1 calls to trainer1"));
  EXPECT_THAT(report.ToString(), HasSubstr("cut: 1 calls to trainer1"));
  EXPECT_THAT(held.Wait(kLong), StatusIs(absl::StatusCode::kCancelled, ""));
  EXPECT_THAT(workers[1]->Shutdown().phases, IsEmpty());  // once is enough
  gate.may_leave.Unpark();
  // The others saw it leave all the same.
  const auto view = workers[0]->membership().WaitFor(
      [](const auto& v) { return v.Find("trainer0") == nullptr; }, kLong);
  ASSERT_THAT(view, IsOk());
  EXPECT_TRUE((*view)->departed().front().left);
  workers.erase(workers.begin() + 1);
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, CallsServedAtALateReleaseAreReportedAsCut) {
  Gate ours;  // handlers at them end with their workers
  Gate others;
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[0]->agent().SetLocal(&others);
  workers[1]->agent().SetLocal(&ours);
  const Future<int64_t> slow =
      rpc::CallAsync(workers[2]->agent().To("ps0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(others.entered));
  ShutdownReport report;
  std::thread first([&] { report = workers[1]->Shutdown(absl::Seconds(8)); });
  std::thread second(
      [&] { EXPECT_THAT(workers[2]->Shutdown(kLong).status(), IsOk()); });
  // Its own calls have ended, and it serves until those of trainer1 have.
  EXPECT_THAT(workers[0]->membership().WaitFor(
                  [](const rendezvous::View& view) {
                    const auto* trainer = view.Find("trainer0");
                    return trainer == nullptr ||
                           trainer->phase == rendezvous::Phase::kDrained;
                  },
                  kLong),
              IsOk());
  const Future<int64_t> held =
      rpc::CallAsync(workers[0]->agent().To("trainer0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(ours.entered));
  others.may_leave.Unpark();
  first.join();
  EXPECT_THAT(report.pending_calls, ElementsAre("1 calls of ps0"));
  EXPECT_THAT(report.status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "1 calls of ps0"));
  ours.may_leave.Unpark();
  second.join();
  workers.erase(workers.begin() + 1, workers.end());
  EndAll(std::move(workers));
}

std::vector<std::string> NamesOf(const ShutdownReport& report) {
  std::vector<std::string> names;
  for (const ShutdownReport::Phase& phase : report.phases) {
    names.push_back(phase.name);
    EXPECT_GE(phase.took, absl::ZeroDuration()) << phase.name;
    EXPECT_LT(phase.took, kLong) << phase.name;
  }
  return names;
}

// ps0, trainer0 and trainer1 end; what each said.
std::vector<ShutdownReport> Reports(Workers workers,
                                    const ShutdownOptions& options) {
  std::vector<ShutdownReport> reports(workers.size());
  testing::RunRanks(workers.size(), [&](int i) {
    reports[i] = workers[i]->Shutdown(options);
    workers[i].reset();
    return absl::OkStatus();
  });
  for (const ShutdownReport& report : reports) {
    EXPECT_THAT(NamesOf(report),
                ElementsAre("quiesce", "drain", "release", "leave"));
  }
  return reports;
}

TEST_F(WorkerTest, ReportHasNoLeaksWhenAllWasReleased) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  const rpc::Target to = workers[1]->agent().To("trainer1", kLong);
  const auto counter = rpc::Make<Counter>(to, 3);
  ASSERT_THAT(counter, IsOk());
  EXPECT_THAT(rpc::Call(*counter, &Counter::Value), IsOkAndHolds(3));
  EXPECT_THAT(rpc::Release(*counter), IsOk());
  {
    auto ticks = rpc::OpenStream(to, Ticks);
    EXPECT_THAT(ticks.Next(), IsOk());
  }
  ShutdownOptions strict;
  strict.strict_leaks = true;
  ::testing::internal::CaptureStderr();
  const auto reports = Reports(std::move(workers), strict);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  for (const ShutdownReport& report : reports) {
    EXPECT_THAT(report.status(), IsOk());
    EXPECT_THAT(report.leaked_objects, IsEmpty());
    EXPECT_THAT(report.leaked_streams, IsEmpty());
  }
}

TEST_F(WorkerTest, HandlesThatWereNotReleasedAreNamedAtBothWorkers) {
  for (const bool is_strict : {false, true}) {
    Workers workers = StartThree();
    ASSERT_EQ(workers.size(), 3u);
    const rpc::Target to = workers[1]->agent().To("trainer1", kLong);
    ASSERT_THAT(rpc::Make<Counter>(to, 3), IsOk());
    ASSERT_THAT(rpc::Remote(to, Twice, 2), IsOk());
    ShutdownOptions options;
    options.strict_leaks = is_strict;
    ::testing::internal::CaptureStderr();
    const auto reports = Reports(std::move(workers), options);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(reports[0].leaked_objects, IsEmpty());
    EXPECT_THAT(
        reports[1].leaked_objects,
        UnorderedElementsAre(HasSubstr("Counter::new at trainer1 (call 1)"),
                             HasSubstr("Twice at trainer1 (call 2)")));
    // Also where trainer0 had left before trainer1 looked.
    EXPECT_THAT(
        reports[2].leaked_objects,
        UnorderedElementsAre(HasSubstr("Counter::new of trainer0 (call 1)"),
                             HasSubstr("Twice of trainer0 (call 2)")));
    EXPECT_THAT(log, HasSubstr("left open: wanted no object"));
    EXPECT_THAT(log, HasSubstr("Counter::new at trainer1"));
    EXPECT_THAT(log, HasSubstr("Counter::new of trainer0"));
    if (is_strict) {
      EXPECT_THAT(reports[1].status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "Counter::new at trainer1 (call 1)"));
      EXPECT_THAT(reports[2].status(),
                  StatusIs(absl::StatusCode::kFailedPrecondition,
                           "Counter::new of trainer0 (call 1)"));
    } else {
      EXPECT_THAT(reports[1].status(), IsOk());
      EXPECT_THAT(reports[2].status(), IsOk());
    }
    EXPECT_THAT(reports[0].status(), IsOk());
  }
}

TEST_F(WorkerTest, AStreamThatIsOpenAtTheEndIsCutAndNamed) {
  for (const int who : {1, 2}) {  // its reader, and its writer
    Workers workers = StartThree();
    ASSERT_EQ(workers.size(), 3u);
    const rpc::Target to = workers[1]->agent().To("trainer1", kLong);
    ASSERT_THAT(rpc::Make<Counter>(to, 3), IsOk());
    auto ticks = rpc::OpenStream(to, Ticks);
    EXPECT_THAT(ticks.Next(), IsOk());
    ShutdownOptions options;
    options.graceful = false;
    options.strict_leaks = true;
    const ShutdownReport report = workers[who]->Shutdown(options);
    const std::string where = who == 1 ? " at trainer1" : " of trainer0";
    EXPECT_THAT(NamesOf(report), ElementsAre("release", "leave"));
    EXPECT_THAT(report.leaked_objects,
                ElementsAre(HasSubstr("Counter::new" + where + " (call 1)")));
    EXPECT_THAT(report.leaked_streams,
                ElementsAre(HasSubstr("Ticks" + where + " (call 2)")));
    EXPECT_THAT(report.status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, "Ticks"));
    // Its function was notified, and Shutdown did not wait for it.
    EXPECT_TRUE(
        Becomes([&] { return workers[who]->agent().OpenCalls().empty(); }));
  }
}

TEST_F(WorkerTest, GracelessShutdownDoesNotWaitAndNotifiesTheOthers) {
  Gate gate;  // handlers at it end with their workers
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[1]->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync(workers[2]->agent().To("trainer0", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  ShutdownOptions at_once;
  at_once.graceful = false;
  EXPECT_THAT(workers[1]->Shutdown(at_once).status(), IsOk());
  // An agent that nobody tells gives a silent peer up after 10 s.
  const absl::Status cut = held.Wait(kLong).status();
  EXPECT_THAT(cut, StatusIs(absl::StatusCode::kUnavailable, "trainer0"));
  // From the coordinator or from the peer itself, whichever comes first.
  EXPECT_THAT(rpc::ReasonOf(cut),
              AnyOf(rpc::Reason::kPeerGone, rpc::Reason::kShuttingDown));
  EXPECT_TRUE(rpc::OutcomeUnknown(cut));
  const auto view = workers[2]->membership().WaitFor(
      [](const auto& v) { return v.Find("trainer0") == nullptr; }, kLong);
  ASSERT_THAT(view, IsOk());
  EXPECT_TRUE((*view)->departed().front().left);
  const absl::Status late = CallTwice(*workers[2], "trainer0").status();
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kUnavailable, "is gone: left"));
  EXPECT_EQ(rpc::ReasonOf(late), rpc::Reason::kPeerGone);
  EXPECT_FALSE(rpc::OutcomeUnknown(late));
  gate.may_leave.Unpark();
  workers.erase(workers.begin() + 1);
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, AWorkerThatIsJustDroppedEndsWithinSeconds) {
  Gate gate;  // handlers at it end with their workers
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  workers[2]->agent().SetLocal(&gate);
  const Future<int64_t> held =
      rpc::CallAsync(workers[1]->agent().To("trainer1", kLong), PassGate);
  EXPECT_TRUE(IsWoken(gate.entered));
  workers[0].reset();  // the coordinator cannot be notified any more
  const Instant start = SteadyClock().Now();
  workers[1].reset();
  EXPECT_LT(SteadyClock().Now() - start, absl::Seconds(20));
  EXPECT_THAT(held.Wait(kLong), StatusIs(absl::StatusCode::kCancelled, ""));
  gate.may_leave.Unpark();
}

// SERVING is 1, NOT_SERVING 2.
std::string HealthOf(Worker& worker) {
  const auto channel = net::Channel::Create(
      worker.loop(), worker.endpoint().address(), {worker.endpoint().name()});
  EXPECT_THAT(channel, IsOk());
  const auto answer = (*channel)
                          ->UnaryCall("/grpc.health.v1.Health/Check", {}, kLong)
                          .Wait(kLong);
  EXPECT_THAT(answer, IsOk());
  return std::string(Flatten(*answer).view());
}

// As one is that was stopped for long, and goes on.
TEST_F(WorkerTest, WorkerOutOfItsJobServesNoCallsAndNotifiesItsProgram) {
  Parker told;
  absl::Status why;
  Options options = OptionsOf("trainer", 1);
  options.on_out_of_job = [&](const absl::Status& reason) {
    why = reason;
    told.Unpark();
  };
  Workers workers =
      StartAll({OptionsOf("ps", 0), OptionsOf("trainer", 0), options});
  ASSERT_EQ(workers.size(), 3u);
  const auto client = rpc::Client::Connect(workers[2]->endpoint().address());
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT(rpc::Call((*client)->To(kLong), Twice, int64_t{21}),
              IsOkAndHolds(42));
  EXPECT_EQ(HealthOf(*workers[2]), "\x08\x01");
  DeclareGone("trainer1");
  EXPECT_TRUE(IsWoken(told));
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kAborted,
                            "trainer1 is out of job \"job\": declared gone: a "
                            "test says so; start it again"));
  EXPECT_EQ(ExitCodeFor(why), ExitCode::kPeerLost);
  EXPECT_EQ(HealthOf(*workers[2]), "\x08\x02");
  EXPECT_EQ(HealthOf(*workers[0]), "\x08\x01");
  const absl::Status refused =
      rpc::Call((*client)->To(kLong), Twice, int64_t{21}).status();
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kUnavailable, "start it again"));
  EXPECT_EQ(rpc::ReasonOf(refused), rpc::Reason::kPeerGone);
  rpc::v1::CallRequest plain;  // as of `weft call`
  plain.set_function("weft::worker::ForMembers");
  const auto channel = net::Channel::Create(
      workers[0]->loop(), workers[2]->endpoint().address(), {"trainer1"});
  ASSERT_THAT(channel, IsOk());
  EXPECT_THAT((*channel)
                  ->UnaryCall("/weft.rpc.v1.Worker/Call",
                              {Bytes::Own(plain.SerializeAsString())}, kLong)
                  .Wait(kLong),
              StatusIs(absl::StatusCode::kUnavailable, "start it again"));
  EXPECT_THAT(
      workers[0]->membership().WaitFor(
          [](const auto& v) { return v.Find("trainer1") == nullptr; }, kLong),
      IsOk());
  EXPECT_THAT(
      CallTwice(*workers[0], "trainer1"),
      StatusIs(absl::StatusCode::kUnavailable, "is gone: a test says so"));
  EXPECT_THAT(CallTwice(*workers[2], "ps0"),
              StatusIs(absl::StatusCode::kAborted, "start it again"));
  workers.pop_back();
  auto again = Worker::Start(OptionsOf("trainer", 1));
  ASSERT_THAT(again, IsOk());
  workers.push_back(*std::move(again));
  EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, SecondWorkerOfTheSameNameIsRefusedOnTheDefaultSocketToo) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  const Instant start = SteadyClock().Now();
  const auto second = Worker::Start(OptionsOf("trainer", 0));
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kAlreadyExists,
                               "trainer0 is in job \"job\" already"));
  EXPECT_EQ(ExitCodeFor(second.status()), ExitCode::kConfig);
  EXPECT_LT(SteadyClock().Now() - start, absl::Seconds(20));
  EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, JoinDeadlineErrorNamesTheWorkerOnce) {
  Options alone = OptionsOf("ps", 0);
  alone.join_timeout = absl::Milliseconds(300);
  const auto late = Worker::Start(alone);
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded,
                             "ps0 waited 300ms for job \"job\""));
  EXPECT_THAT(std::string(late.status().message()),
              ::testing::Not(HasSubstr("ps0: ps0")));
}

TEST_F(WorkerTest, RefusedWorkerWritesNoDump) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  Options second = OptionsOf("trainer", 0);
  second.dump_dir = dir_.Path("dumps");
  ASSERT_EQ(mkdir(second.dump_dir.c_str(), 0700), 0);
  EXPECT_THAT(Worker::Start(second),
              StatusIs(absl::StatusCode::kAlreadyExists, "trainer0"));
  EXPECT_EQ(rmdir(second.dump_dir.c_str()), 0) << "it is not empty";
  EndAll(std::move(workers));
}

// The role is a label of a DNS name in its certificate, and so shorter than a
// name may be.
TEST_F(WorkerTest, MalformedNameFailsBeforeTheStart) {
  Options options = ElasticOf(0, 1, 2);
  for (const std::string& role :
       {std::string(), std::string(57, 'r'), std::string("a b"),
        std::string("a/b"), std::string("a_b"), std::string("a:b"),
        std::string("A"), std::string("a1"), std::string("-a"),
        std::string("a\n"), std::string("\xc3\xa9")}) {
    options.role = role;
    const auto worker = Worker::Start(options);
    EXPECT_THAT(worker, StatusIs(absl::StatusCode::kInvalidArgument,
                                 "--job, --role or --rank: identity: the role"))
        << role;
    EXPECT_EQ(ExitCodeFor(worker.status()), ExitCode::kUsage);
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  options.role = "trainer";
  Workers workers = StartAll({options});
  ASSERT_EQ(workers.size(), 1u);
  Options longest = ElasticOf(1000000, 1, 2);
  longest.role = std::string(56, 'r');
  Workers second = StartAll({longest});
  ASSERT_EQ(second.size(), 1u);
  EXPECT_THAT(CallTwice(*workers[0], longest.name()), IsOkAndHolds(42));
  EXPECT_THAT(CallTwice(*second[0], "trainer0"), IsOkAndHolds(42));
  workers.push_back(std::move(second[0]));
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, SecondHostGetsTheNameOfTheFirst) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  const Instant start = SteadyClock().Now();
  Options second = OptionsOf("ps", 0);
  EXPECT_THAT(Worker::Start(second), StatusIs(absl::StatusCode::kAlreadyExists,
                                              "ps0 is in job \"job\""));
  second.trainers = 3;
  EXPECT_THAT(Worker::Start(second),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "ps0 expects the world \"ps=1 trainer=3\", the job "
                       "has \"ps=1 trainer=2\""));
  second.job = "other";
  EXPECT_THAT(Worker::Start(second),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "serves job \"job\", not job \"other\""));
  EXPECT_LT(SteadyClock().Now() - start, absl::Seconds(30));
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, RestartedWorkerAnswersTheFirstCall) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  Traffic traffic(*workers[2], "ps0");
  const rendezvous::WorkerKey old_key = workers[1]->self().key;
  EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  ShutdownOptions alone;
  alone.together = "name=trainer0";
  EXPECT_THAT(workers[1]->Shutdown(alone).status(), IsOk());
  workers[1].reset();
  ASSERT_THAT(
      workers[2]->membership().WaitFor(
          [&](const auto& view) { return view.IsGone(old_key); }, kLong),
      IsOk());
  const absl::Status meanwhile = CallTwice(*workers[2], "trainer0").status();
  EXPECT_THAT(meanwhile,
              StatusIs(absl::StatusCode::kUnavailable, "trainer0: the incarn"));
  EXPECT_EQ(rpc::ReasonOf(meanwhile), rpc::Reason::kPeerGone);
  EXPECT_FALSE(rpc::OutcomeUnknown(meanwhile));
  auto again = Worker::Start(OptionsOf("trainer", 0));
  ASSERT_THAT(again, IsOk());
  workers[1] = *std::move(again);
  EXPECT_GT(workers[1]->self().key.epoch, old_key.epoch);
  ASSERT_THAT(workers[2]->membership().WaitFor(
                  [](const auto& view) { return view.IsComplete(); }, kLong),
              IsOk());
  EXPECT_THAT(CallTwice(*workers[2], "trainer0"), IsOkAndHolds(42));
  EXPECT_THAT(CallTwice(*workers[1], "trainer1"), IsOkAndHolds(42));
  EXPECT_TRUE(traffic.GoesOn());
  EXPECT_THAT(traffic.End(), IsEmpty());  // and nobody else noticed
  EndAll(std::move(workers));
}

// PROBE-P17: what it made in one life is no burden of the next.
TEST_F(WorkerTest, EndedIncarnationsLeaveNoObjectsAtTheOwner) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  for (int life = 0; life < 3; ++life) {
    const rpc::Target to = workers[1]->agent().To("ps0", kLong);
    const auto counter = rpc::Make<Counter>(to, life);
    ASSERT_THAT(counter, IsOk());
    EXPECT_EQ(Counter::living, 1);
    EXPECT_THAT(rpc::Call(*counter, &Counter::Value), IsOkAndHolds(life));
    const bool releases = life != 1;
    if (releases) {
      EXPECT_THAT(rpc::Release(*counter), IsOk());
    }
    ShutdownOptions alone;
    alone.together = "name=trainer0";
    alone.strict_leaks = releases;
    const rendezvous::WorkerKey key = workers[1]->self().key;
    EXPECT_THAT(workers[1]->Shutdown(alone).status(), IsOk());
    workers[1].reset();
    EXPECT_TRUE(Becomes([] { return Counter::living == 0; }));
    ASSERT_THAT(workers[0]->membership().WaitFor(
                    [&](const auto& view) { return view.IsGone(key); }, kLong),
                IsOk());
    auto again = Worker::Start(OptionsOf("trainer", 0));
    ASSERT_THAT(again, IsOk());
    workers[1] = *std::move(again);
  }
  // The one of the second life, which it left and nobody else.
  const auto left = workers[0]->agent().Leaks();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_THAT(left[0].ToString(), HasSubstr("1 "));
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, AnElasticJobGrowsAndShrinksWhileCallsFlow) {
  const auto start = [&](int rank, const std::string& zone) {
    Options options = ElasticOf(rank, 1, 3);
    options.labels = {{"zone", zone}};
    return StartAll({options});
  };
  Workers workers = start(0, "a");
  std::optional<Traffic> traffic;  // while a third comes and goes
  for (const char* zone : {"a", "b"}) {
    Workers next = start(static_cast<int>(workers.size()), zone);
    ASSERT_EQ(next.size(), 1u);
    workers.push_back(std::move(next[0]));
    if (workers.size() == 2) traffic.emplace(*workers[0], "trainer1");
  }
  Options fourth = ElasticOf(3, 1, 3);
  fourth.join_timeout = absl::Seconds(3);  // somebody might leave
  const absl::Status full = Worker::Start(fourth).status();
  EXPECT_THAT(full, StatusIs(absl::StatusCode::kDeadlineExceeded,
                             "the job is full, it has 3 of at most 3"));
  EXPECT_THAT(full.message(), ::testing::HasSubstr("has not let it in"));
  EXPECT_THAT(full.message(), Not(::testing::HasSubstr("running")));
  EXPECT_THAT(Worker::Start(ElasticOf(3, 1, 4)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "\"elastic 1 to 4\", the job has \"elastic 1 to 3\": "
                       "start all workers with the same --workers"));
  EXPECT_THAT(Worker::Start(OptionsOf("trainer", 0)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "the job has \"elastic 1 to 3\""));
  const auto view = workers[0]->membership().WaitFor(
      [](const auto& v) { return v.members().size() == 3; }, kLong);
  ASSERT_THAT(view, IsOk());
  const auto near = (*view)->Select("role=trainer,zone=a");
  ASSERT_THAT(near, IsOk());
  std::vector<std::string> names;
  for (const rendezvous::Member* member : *near) names.push_back(member->name);
  EXPECT_THAT(names, ElementsAre("trainer0", "trainer1"));
  std::thread other([&] {
    EXPECT_THAT(workers[1]->membership().Barrier("near", names, kLong), IsOk());
  });
  EXPECT_THAT(workers[0]->membership().Barrier("near", names, kLong), IsOk());
  other.join();
  for (int rank : {2, 1}) {  // each when it likes
    EXPECT_THAT(CallTwice(*workers[0], absl::StrCat("trainer", rank)),
                IsOkAndHolds(42));
    if (rank == 1) {
      EXPECT_TRUE(traffic->GoesOn());
      EXPECT_THAT(traffic->End(), IsEmpty());
    }
    EXPECT_THAT(workers[rank]->Shutdown(kLong).status(), IsOk());
    workers.pop_back();
  }
  EndAll(std::move(workers));
}

// The first learns of each join from the worker that joined, perhaps before its
// own view has it.
TEST_F(WorkerTest, CallToAWorkerThatHasJustJoinedReachesIt) {
  constexpr int kJoins = 12;
  Workers workers = StartAll({ElasticOf(0, 1, 1 + kJoins)});
  ASSERT_EQ(workers.size(), 1u);
  for (int rank = 1; rank <= kJoins; ++rank) {
    auto joined = Worker::Start(ElasticOf(rank, 1, 1 + kJoins));
    ASSERT_THAT(joined, IsOk());
    const std::string name = (*joined)->self().name;
    EXPECT_THAT(workers[0]->agent().To((*joined)->self().key).status(), IsOk());
    EXPECT_THAT(CallTwice(*workers[0], name), IsOkAndHolds(42));
    workers.push_back(*std::move(joined));
  }
  for (; workers.size() > 1; workers.pop_back()) {
    EXPECT_THAT(workers.back()->Shutdown(kLong).status(), IsOk());
  }
  EndAll(std::move(workers));
}

TEST_F(WorkerTest, ElasticWorkerEndsWithoutCuttingItsCalls) {
  Gate gates[2];  // F10; handlers at it end with their workers
  Workers workers = StartAll({ElasticOf(0, 2, 2), ElasticOf(1, 2, 2)});
  ASSERT_EQ(workers.size(), 2u);
  std::vector<Future<int64_t>> held;  // of trainer0, and of trainer1
  for (const int caller : {0, 1}) {
    const int callee = 1 - caller;
    workers[callee]->agent().SetLocal(&gates[callee]);
    held.push_back(rpc::CallAsync(
        workers[caller]->agent().To(absl::StrCat("trainer", callee), kLong),
        PassGate));
    EXPECT_TRUE(IsWoken(gates[callee].entered));
  }
  std::atomic<bool> is_over{false};
  ShutdownReport report;
  std::thread ending([&] {
    report = workers[1]->Shutdown(kLong);
    is_over = true;
  });
  ASSERT_THAT(workers[0]->membership().WaitFor(
                  [](const rendezvous::View& view) {
                    return view.Find("trainer1")->phase !=
                           rendezvous::Phase::kActive;
                  },
                  kLong),
              IsOk());
  for (const int callee : {1, 0}) {
    EXPECT_FALSE(is_over);
    gates[callee].may_leave.Unpark();
    EXPECT_THAT(held[1 - callee].Wait(kLong), IsOkAndHolds(1));
  }
  ending.join();
  EXPECT_THAT(report.status(), IsOk());
  EXPECT_THAT(report.pending_calls, IsEmpty());
  workers.pop_back();
  EndAll(std::move(workers));
}

double Mean(const Tensor& x) {
  const auto elements = x.span<float>();
  double sum = 0;
  for (const float element : elements) sum += element;
  return sum / static_cast<double>(elements.size());
}
WEFT_RPC(Mean);

// Heartbeats have a connection of their own, so what they share with tensors is
// the machine. No answer is timed but by the bound of suspicion.
TEST_F(WorkerTest, HeartbeatsPassWhileLargeTensorsFlow) {
  Workers workers = StartThree();
  ASSERT_EQ(workers.size(), 3u);
  rendezvous::Membership& membership = workers[1]->membership();
  std::atomic<int> suspects{0};
  const auto follow = workers[2]->membership().OnChange(
      [&](const std::shared_ptr<const rendezvous::View>& view) {
        for (const rendezvous::Member& member : view->members()) {
          if (member.suspect) ++suspects;
        }
      });
  // On a thread of its own: who makes a call writes as much of it as there is
  // room for.
  std::atomic<bool> done{false};
  std::atomic<int> passed{0};
  std::thread beats([&] {
    while (!done.load()) {
      ASSERT_THAT(membership.store().Add("beats", 1, kLong), IsOk());
      ++passed;
    }
  });
  const Tensor large = Tensor::Ones({16 << 20});  // 64 MiB
  for (int round = 0; round < 10 || (passed < 20 && !HasFailure()); ++round) {
    std::vector<Future<double>> calls;
    for (const int callee : {0, 2}) {  // to the coordinator's host, too
      calls.push_back(rpc::CallAsync(
          workers[1]->agent().To(workers[callee]->self().name, kLong), Mean,
          large));
    }
    for (const auto& call : calls)
      EXPECT_THAT(call.Wait(kLong), IsOkAndHolds(1));
  }
  done = true;
  beats.join();
  EXPECT_EQ(suspects, 0);
  EndAll(std::move(workers));
}

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

bool IsGone(const rendezvous::View& view, const std::string& name,
            const std::string& reason) {
  return std::any_of(view.departed().begin(), view.departed().end(),
                     [&](const rendezvous::Departed& departed) {
                       return departed.name == name &&
                              absl::StrContains(departed.reason, reason);
                     });
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

TEST_F(WorkerTest, ACallNeedNotWaitForSixteenFunctionsThatSleepInTurn) {
  Options options = OptionsOf("ps", 0);
  options.trainers = 0;
  auto worker = Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  const rpc::Target self = (*worker)->agent().To("ps0", kLong);
  std::vector<Future<int64_t>> sleeping;
  for (int64_t i = 0; i < 16; ++i) {
    sleeping.push_back(rpc::CallAsync(self, SleepThen, 1.0, i));
  }
  const Instant start = SteadyClock().Now();
  EXPECT_THAT(rpc::Call(self, Twice, int64_t{21}), IsOkAndHolds(42));
  // With two threads eight of them would sleep before it, one after another.
  EXPECT_LT(SteadyClock().Now() - start, absl::Seconds(5));
  for (int64_t i = 0; i < 16; ++i) {
    EXPECT_THAT(sleeping[i].Wait(kLong), IsOkAndHolds(i));
  }
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

TEST_F(WorkerTest, TcpWithoutCertificatesNamesTheCommandThatMakesThem) {
  Options options = OptionsOf("ps", 0);
  options.coordinator = "127.0.0.1:1";
  const auto worker = Worker::Start(options);
  EXPECT_THAT(worker, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "weft certs init"));
  EXPECT_EQ(ExitCodeFor(worker.status()), ExitCode::kAuth);
}

}  // namespace
}  // namespace weft::worker
