// Tests of Worker: whole ranks, which meet, call each other and end.

#include "weft/worker/worker.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
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
#include "weft/proto/coordinator.pb.h"
#include "weft/proto/rpc.pb.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rpc/call.h"
#include "weft/rpc/client.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/worker/exit_code.h"
#include "weft/worker/test_functions.h"
#include "weft/worker/worker_fixture.h"

namespace weft::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

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
    // Any process takes longer than this to start.
    EXPECT_TRUE(Becomes(
        [&] { return rendezvous::TermOfNow() > rendezvous::TermOf(last); }));
  }
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

// A worker that was stopped for long and goes on is in this state.
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
