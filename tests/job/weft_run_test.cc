// `weft run` and `weft coordinator`, around jobs whose processes end.

#include <signal.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/endings.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/etcd.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

std::string MarkOf(const Job& job) { return "WEFT_TEST_JOB=" + job.data; }

// `weft run` of the job.
std::unique_ptr<Process> RunJob(const Job& job, const std::string& flags,
                                const Flags& run_flags = {},
                                const std::string& server_flags = "") {
  Flags command = {"/usr/bin/env", MarkOf(job), Program("weft"), "run"};
  command.insert(command.end(), run_flags.begin(), run_flags.end());
  command.push_back(
      absl::StrCat("--role=ps=", job.servers, ":", Program("parameter_server"),
                   " --checkpoint-dir=", job.Path(""), " ", server_flags));
  command.push_back(absl::StrCat("--role=trainer=", job.trainers, ":",
                                 Program("trainer"), " --data=", job.data,
                                 " --batch-size=16 --lr=0.01 --json ", flags));
  return StartProcess(std::move(command));
}

// Empty for what has ended, or is another user's.
std::string ReadProc(const std::string& id, const std::string& file) {
  std::ifstream in("/proc/" + id + "/" + file);
  // Its iterators would throw where the process ends while it is read.
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// The ids of the processes of `job`: what `weft run` starts inherits the mark.
std::vector<std::string> RunningFor(const Job& job) {
  std::vector<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string id = entry.path().filename();
    if (absl::StrContains(ReadProc(id, "environ"), MarkOf(job))) {
      ids.push_back(id);
    }
  }
  return ids;
}

TEST(WeftRun, TrainsAndEndsWithTheResult) {
  const Job job;
  const auto run = RunJob(job, "--epochs=3");
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("[trainer0] {\"test_accuracy\":"));
  EXPECT_THAT(run->output(), Not(HasSubstr("[trainer1] {")));
}

TEST(WeftRun, SetsTheEnvironmentOfAnyProgram) {
  const auto run = StartProcess(
      {Program("weft"), "run", "--nproc-per-node=2", "/bin/sh", "-c",
       "echo $WEFT_ROLE $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
       "at $MASTER_ADDR, $WEFT_COORDINATOR"});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(run->output(), HasSubstr(absl::StrCat(
                                   "[trainer", rank, "] trainer ", rank, "/2 ",
                                   rank, "/2 at 127.0.0.1, unix:/")));
  }
}

TEST(WeftRun, PassesATermSignalOnAndAllIsSaved) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      RunJob(job, absl::StrCat(kForLong, " --checkpoint-dir=", saved));
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  Stop(*run);
  EXPECT_THAT(run->output(), Not(HasSubstr("error: ")));
  const std::string output = run->output();
  const auto names = Checkpoints(saved);  // of the epochs before, too
  ASSERT_FALSE(names.empty());
  EXPECT_THAT(output, HasSubstr(absl::StrCat("\"checkpoint\":\"", saved, "/",
                                             names.back(),
                                             "\",\"interrupted\":true}")));
  // The last line of progress says how many images it has come to.
  const size_t last = output.rfind("[trainer0] training ");
  int64_t images = 0;
  ASSERT_EQ(sscanf(output.c_str() + last, "[trainer0] training %*d%% %" SCNd64,
                   &images),
            1);
  // A later one if trainer1 made a step after trainer0 had left: it saves then.
  const size_t number = names.back().rfind('-') + 1;
  int64_t step = 0;
  ASSERT_TRUE(absl::SimpleAtoi(names.back().substr(number), &step));
  EXPECT_GE(step, images / (2 * Job::kBatch)) << output;
}

TEST(WeftRun, NamesTheRankThatFailed) {
  Job job;
  job.data = job.Path("nowhere");
  const auto run = RunJob(job, "");
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(3)) << run->output();
  EXPECT_THAT(run->output(), ContainsRegex("trainer[01] failed first"));
  EXPECT_THAT(run->output(), HasSubstr("wanted --data=DIR"));
}

TEST(WeftRun, ReportsAnExitThatItHasSeenWithoutWaitingForSilence) {
  const Job job;
  const auto run = RunJob(job, kForLong);
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  pid_t victim = 0;
  for (const std::string& id : RunningFor(job)) {
    const std::string environment = ReadProc(id, "environ");
    if (absl::StrContains(environment, "WEFT_ROLE=trainer") &&
        absl::StrContains(environment, "WEFT_RANK=1")) {
      ASSERT_TRUE(absl::SimpleAtoi(id, &victim));
    }
  }
  ASSERT_NE(victim, 0);
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  // The coordinator looks itself, too: "killed by SIGKILL" may come too late.
  EXPECT_THAT(run->output(),
              HasSubstr("trainer1 is gone: its process has ended"));
}

// The process of `job` that has this role and rank.
pid_t RankOf(const Job& job, const std::string& role, int rank) {
  pid_t found = 0;
  for (const std::string& id : RunningFor(job)) {
    const std::string environment = ReadProc(id, "environ");
    if (absl::StrContains(environment, "WEFT_ROLE=" + role) &&
        absl::StrContains(environment, absl::StrCat("WEFT_RANK=", rank))) {
      EXPECT_TRUE(absl::SimpleAtoi(id, &found));
    }
  }
  EXPECT_NE(found, 0) << role << rank;
  return found;
}

// Its servers know the parts of the others' data, and the job is whole.
TEST(WeftRun, AJobOfTablesGoesOnWithoutATrainerThatDied) {
  Job job;
  job.trainers = 3;
  const auto run = RunJob(job, kForLong, {"--allow-trainer-exits=1"});
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  ASSERT_EQ(kill(RankOf(job, "trainer", 1), SIGKILL), 0);
  for (const char* text :
       {"trainer1 failed: killed by SIGKILL; the others go on without it",
        "the others take over its part", "[trainer0] {\"step\":"}) {
    EXPECT_THAT(run->WaitForOutput(text, kLong), IsOk());
  }
  Stop(*run);
  EXPECT_THAT(run->output(), HasSubstr("[trainer0] {\"test_accuracy\":"));
}

// Where nobody is told that ps0 is gone, for its coordinator went with it, its
// processes are seen to end.
TEST(WeftRun, DeathOfTheCoordinatorsServerDelaysNoRestartThoughThereIsALog) {
  const Job job;
  const auto run =
      RunJob(job, kForLong,
             {"--max-restarts=1", "--job=logged",
              "--coordinator=" + job.coordinator, "--no-own-coordinator"},
             "--grace=5m --coordinator-log=" + job.Path("log"));
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  ASSERT_EQ(kill(RankOf(job, "ps", 0), SIGKILL), 0);
  ASSERT_THAT(run->WaitForOutput("restart 1 of 1", kLong), IsOk());
  // A server waited --grace for trainers that had ended.
  EXPECT_THAT(run->output(), Not(HasSubstr("killed, as it did not end")));
  Stop(*run);
}

// The pid of the process that hosts the coordinator of `job`; 0: there is none
// now.
pid_t CoordinatorOf(const Job& job) {
  for (const std::string& id : RunningFor(job)) {
    const std::string command = ReadProc(id, "cmdline");
    pid_t found = 0;
    if (absl::StrContains(command, std::string("\0coordinator\0", 13)) &&
        absl::SimpleAtoi(id, &found)) {
      return found;
    }
  }
  return 0;
}

TEST(WeftRun, CoordinatorThatIsKilledIsStartedAgainAndChangesNoBit) {
  const Job job;
  const std::string saved = job.Path("killed");
  const auto run = RunJob(
      job, absl::StrCat(kForLong, " ", kKeepSome, " --checkpoint-dir=", saved));
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  // A third end soon after its start would be taken for one that cannot run.
  for (int kills = 0; kills < 2; ++kills) {
    pid_t coordinator = 0;
    ASSERT_TRUE(Becomes([&] {
      coordinator = CoordinatorOf(job);
      return coordinator != 0;
    })) << run->output();
    ASSERT_EQ(kill(coordinator, SIGKILL), 0);
    ASSERT_TRUE(Becomes([&] {
      const pid_t next = CoordinatorOf(job);
      return next != 0 && next != coordinator;
    })) << run->output();
  }
  AwaitWholeEpoch(*run, saved, kSteps);
  Stop(*run);
  EXPECT_THAT(run->output(),
              HasSubstr("coordinator0 has ended: killed by SIGKILL; starting "
                        "it again"));
  ExpectUndisturbed(job, saved);
}

// The others learn which server it was, and who that server's death makes end
// says so: the coordinator is still there.
TEST(WeftRun, DeathOfServerZeroTakesNoCoordinatorAlong) {
  const Job job;
  const auto run = RunJob(job, kForLong);
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  ASSERT_EQ(kill(RankOf(job, "ps", 0), SIGKILL), 0);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  EXPECT_THAT(run->output(), HasSubstr("ps0 failed first"));
  EXPECT_THAT(run->output(), HasSubstr("ps0 is gone"));
  EXPECT_THAT(run->output(), Not(HasSubstr("coordinator is lost")));
  EXPECT_THAT(run->output(), Not(HasSubstr("coordinator0 has ended")));
}

// Without weft run: its workers name it by --coordinator-host.
TEST(WeftCoordinator, WorkersOutliveItAndMeetInItAgain) {
  const Job job;
  const auto start = [&] {
    return StartProcess({Program("weft"), "coordinator", "--job=alone",
                         "--coordinator=" + job.coordinator,
                         "--coordinator-log=" + job.Path("log")});
  };
  auto coordinator = start();
  ASSERT_THAT(coordinator->WaitForOutput("job alone meets at unix:", kLong),
              IsOk());
  std::vector<std::unique_ptr<worker::Worker>> workers(2);
  const auto each = [&](const auto& run) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) threads.emplace_back(run, rank);
    for (std::thread& thread : threads) thread.join();
  };
  each([&](int rank) {
    worker::Options options;
    options.job = "alone";
    options.rank = rank;
    options.trainers = 2;
    options.coordinator = job.coordinator;
    options.coordinator_host = worker::kCoordinatorName;
    auto started = worker::Worker::Start(options);
    ASSERT_THAT(started, IsOk());
    workers[rank] = *std::move(started);
  });
  ASSERT_FALSE(HasFailure());
  for (int kills = 0; kills < 3; ++kills) {
    coordinator->Signal(SIGKILL);
    ASSERT_THAT(coordinator->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
    coordinator = start();
    each([&](int rank) {
      EXPECT_THAT(workers[rank]->AwaitAll(absl::StrCat("after ", kills), kLong),
                  IsOk());
    });
  }
  each([&](int rank) {
    EXPECT_THAT(workers[rank]->Shutdown().status(), IsOk());
  });
  coordinator->Signal(SIGTERM);
  EXPECT_THAT(coordinator->Wait(kLong), IsOkAndHolds(0));
}

// Two on hosts of their own, of which each in turn hosts the job.
TEST(WeftCoordinator, OneThatStandsByGoesOnInThePlaceOfAnother) {
  if (!Etcd::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
  const Job job;
  const TempDir etcd_dir;
  const auto etcd = Etcd::Start(etcd_dir.path());
  ASSERT_THAT(etcd, IsOk());
  const std::string init = "--init=" + (*etcd)->url();
  const auto start = [&](int host) {
    const std::string directory = job.Path(absl::StrCat("host", host));
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + directory};
    command.argv = {Program("weft"), "coordinator", "--job=standby",
                    "--standby", init};
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  };
  auto first = start(0);
  ASSERT_THAT(first->WaitForOutput("job standby meets at", kLong), IsOk());
  auto second = start(1);
  worker::Options options;
  options.job = "standby";
  options.trainers = 1;
  options.init = (*etcd)->url();
  options.coordinator_host = worker::kCoordinatorName;
  ASSERT_THAT(options.Resolve(), IsOk());
  const auto worker = worker::Worker::Start(options);
  ASSERT_THAT(worker, IsOk());
  EXPECT_THAT((*worker)->AwaitAll("first", kLong), IsOk());

  // One that stands still for longer than its lease ends once it goes on.
  first->Signal(SIGSTOP);
  ASSERT_THAT(second->WaitForOutput("job standby meets at", kLong), IsOk());
  EXPECT_THAT((*worker)->AwaitAll("second", kLong), IsOk());
  first->Signal(SIGCONT);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(10)) << first->output();
  EXPECT_THAT(first->output(), HasSubstr("another coordinator hosts the job"));

  first = start(0);
  second->Signal(SIGKILL);
  ASSERT_THAT(first->WaitForOutput("job standby meets at", kLong), IsOk());
  EXPECT_THAT((*worker)->AwaitAll("third", kLong), IsOk());
  second = start(1);
  ASSERT_THAT(second->WaitForOutput("standing by", kLong), IsOk());
  second->Signal(SIGTERM);  // it ends though it hosts nothing
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(0)) << second->output();
  EXPECT_THAT((*worker)->Shutdown().status(), IsOk());
  first->Signal(SIGTERM);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(0)) << first->output();
}

TEST(WeftCoordinator, AddressInUseAndBadFlagsAreSaid) {
  const Job job;
  const auto start = [&](const Flags& more) {
    Flags command = {Program("weft"), "coordinator",
                     "--coordinator=" + job.coordinator};
    command.insert(command.end(), more.begin(), more.end());
    return StartProcess(std::move(command));
  };
  const auto first = start({"--job=a"});
  ASSERT_THAT(first->WaitForOutput("job a meets at", kLong), IsOk());
  const auto second = start({"--job=b"});
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(kConfig));
  EXPECT_THAT(second->output(), HasSubstr("in use"));
  EXPECT_THAT(second->output(), HasSubstr("--coordinator"));
  const auto unknown = start({"--job=b", "--epochs=3"});
  EXPECT_THAT(unknown->Wait(kLong), IsOkAndHolds(2));
  EXPECT_THAT(unknown->output(), HasSubstr("--epochs"));
  first->Signal(SIGTERM);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(0));
}

TEST(WeftRun, ASecondOneOfTheJobHarmsNothing) {
  const Job job;
  const auto run = [&](const std::string& flags) {
    return StartProcess(
        {Program("weft"), "run", "--job=twice",
         "--coordinator=" + job.coordinator,
         absl::StrCat("--role=ps=1:", Program("parameter_server")),
         absl::StrCat("--role=trainer=1:", Program("trainer"),
                      " --data=", job.data, " --batch-size=16 ", flags)});
  };
  const auto first = run(kForLong);
  ASSERT_THAT(first->WaitForOutput("[trainer0] training ", kLong), IsOk());
  const auto second = run("--epochs=1");
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(3)) << second->output();
  EXPECT_THAT(second->output(), HasSubstr("already"));
  // Its coordinator has received the reports of those ends by now.
  EXPECT_THAT(first->Wait(absl::Seconds(3)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(first->output(), Not(HasSubstr("gone")));
  first->Signal(SIGTERM);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(128 + SIGTERM));
}

TEST(WeftRun, KilledLeavesNoOrphan) {
  const Job job;
  const auto run = RunJob(job, kForLong);
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  EXPECT_THAT(RunningFor(job), SizeIs(::testing::Ge(5)));
  run->Signal(SIGKILL);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  const absl::Time deadline = absl::Now() + kSeconds;
  while (!RunningFor(job).empty() && absl::Now() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_THAT(RunningFor(job), SizeIs(0));
}

}  // namespace
}  // namespace weft::testing
