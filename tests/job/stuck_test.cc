// What `weft run` says of a job that is stuck: who, and how.

#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class Stuck : public ::testing::Test {
 protected:
  // Three ranks of stuck_worker.
  void Start(const std::string& how) {
    StartWith({"--nproc-per-node=3", Worker(), how, dir_.Path("go")});
  }
  // With so many servers.
  void StartWithServers(int servers, const std::string& how) {
    const std::string server = servers == 1 ? "1:" : "2:";
    StartWith({servers == 1 ? "--replicas=1" : "--replicas=2", "--role",
               "ps=" + server + Program("parameter_server"), "--role",
               "trainer=3:" + Worker() + " " + how + " " + dir_.Path("go")});
  }
  static std::string Worker() { return RunfilePath("tests/job/stuck_worker"); }
  void StartWith(const std::vector<std::string>& more) {
    Command command;
    // Who is stopped is not to be dead before it goes on.
    command.argv = {Program("weft"), "run", "--silence=100s",
                    "--events=" + dir_.Path("events")};
    command.argv.insert(command.argv.end(), more.begin(), more.end());
    auto process = Process::Start(std::move(command));
    ASSERT_THAT(process, IsOk());
    run_ = *std::move(process);
    EXPECT_THAT(run_->WaitForOutput("all are in", kLong), IsOk());
  }
  void GoOn() { WriteBytes(dir_.Path("go"), "go"); }
  // The job says `what`, goes on, and ends well.
  void ExpectToSay(const std::string& what) {
    EXPECT_THAT(run_->WaitForOutput("no progress: ", kLong), IsOk());
    EXPECT_TRUE(Becomes([&] {
      return ::testing::Matches(ContainsRegex(what))(run_->output());
    })) << run_->output();
    GoOn();
    EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(0)) << run_->output();
  }
  std::string events() const { return ReadBytes(dir_.Path("events")); }

  const TempDir dir_;
  std::unique_ptr<Process> run_;
};

TEST_F(Stuck, RankThatIsStoppedIsNamedSo) {
  Start("run");
  const pid_t trainer = FindWorker(*run_, "trainer", 1);
  ASSERT_GT(trainer, 0);
  ASSERT_EQ(kill(trainer, SIGSTOP), 0);
  EXPECT_THAT(run_->WaitForOutput("no progress: ", kLong), IsOk());
  EXPECT_THAT(run_->WaitForOutput("lets it go on", kLong), IsOk());
  EXPECT_THAT(run_->output(),
              ContainsRegex("trainer1 .pid [0-9]+ on [^ ]*, which is stopped"));
  ASSERT_EQ(kill(trainer, SIGCONT), 0);
  EXPECT_THAT(run_->WaitForOutput("the job goes on, after", kLong), IsOk());
  GoOn();
  EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(0)) << run_->output();
  EXPECT_THAT(events(), ContainsRegex(R"("event":"stuck","class":"stopped",)"
                                      R"("ranks":"trainer1")"));
  EXPECT_THAT(events(), HasSubstr(R"("event":"unstuck","lasted_s":)"));
}

// Another rank that gets no core for seconds is late too, and may be named
// before.
TEST_F(Stuck, RankThatSleepsInItsOwnCodeIsNamedSo) {
  Start("sleep");
  EXPECT_THAT(run_->WaitForOutput("--page=trainer1", kLong), IsOk());
  GoOn();
  EXPECT_THAT(run_->WaitForOutput("the job goes on, after", kLong), IsOk());
  EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(0)) << run_->output();
  EXPECT_THAT(
      run_->output(),
      ContainsRegex("no progress: (trainer0 and trainer2 wait|trainer[02] "
                    "waits) in Barrier #10 of group trainer/world#[^ ]* "
                    ".[0-9.]+ s. for trainer1 .*which runs and is not in "
                    "that call: it "));
  EXPECT_THAT(events(), ContainsRegex(R"("event":"stuck","class":"busy",)"
                                      R"("ranks":"trainer1","waiting":)"
                                      R"("trainer[02](,trainer2)?")"));
}

TEST_F(Stuck, OfARankThatComputesItsCpuTimeIsSaid) {
  Start("spin");
  EXPECT_THAT(run_->WaitForOutput("--page=trainer1", kLong), IsOk());
  GoOn();
  EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(0)) << run_->output();
  EXPECT_THAT(run_->output(),
              ContainsRegex("trainer1 .*which runs and is not in that call: it "
                            "[a-z ]+, [0-9.]+ s of CPU in the last [0-9.]+ s"));
}

TEST_F(Stuck, RanksThatCallTheGroupsInAnotherOrderAreNamedWithTheirCalls) {
  Start("order");
  EXPECT_THAT(run_->WaitForOutput("called different things", kLong), IsOk());
  EXPECT_THAT(run_->WaitForOutput("must call the operations", kLong), IsOk());
  EXPECT_THAT(run_->output(), ContainsRegex("trainer1 is in AllReduce #0 of "
                                            "group trainer/other#"));
  EXPECT_THAT(run_->output(),
              ContainsRegex("(trainer0 and trainer2 are|trainer[02] is) in "
                            "AllReduce #10 of group trainer/world#"));
  run_->Signal(SIGTERM);
  EXPECT_THAT(run_->Wait(kLong), IsOk());
  EXPECT_THAT(events(), ContainsRegex(R"("class":"different-calls",)"
                                      R"("ranks":"[^"]*trainer1)"));
}

TEST_F(Stuck, RankThatWaitsForAKeyOfTheStoreIsNamedWithIt) {
  Start("key");
  ExpectToSay(
      "no progress: (trainer0 and trainer2 wait|trainer[02] waits) in Barrier "
      "#10 of group trainer/world#[^ ]* .[0-9.]+ s. for trainer1 .pid [0-9]+ "
      "on "
      "[^ ]*, which is in Wait for key orders of the store .[0-9.]+ s., which "
      "nobody sets");
  EXPECT_THAT(events(), ContainsRegex(R"("class":"store-key",)"
                                      R"("ranks":"trainer1")"));
}

// trainer0 waits for trainer1, and that is at the barrier.
TEST_F(Stuck, RankThatIsMissingAtABarrierOfTheCoordinatorIsNamed) {
  Start("barrier");
  const std::string first = "Barrier #10 of group trainer/world#[^,]*";
  const std::string second = "Barrier orders of the coordinator [^,]*";
  ExpectToSay(absl::StrCat(
      "no progress: (trainer0 waits in ", first, ", trainer1 in ", second,
      "|trainer1 waits in ", second, ", trainer0 in ", first,
      ") for trainer2 .pid [0-9]+ on [^ ]*, which runs and is not in that "
      "call"));
  EXPECT_THAT(events(), ContainsRegex(R"("class":"busy","ranks":"trainer2",)"
                                      R"("waiting":"trainer0,trainer1")"));
}

TEST_F(Stuck, MessageThatNobodySendsIsNamedWithItsTag) {
  Start("message");
  ExpectToSay(
      // trainer2 may have waited longer than it, or not yet for so long.
      "no progress: ([^(]*.[0-9.]+ s., )?trainer0 (waits )?in Receive of tag 7 "
      "in group trainer/world .[0-9.]+ s.(, trainer2 in [^(]*.[0-9.]+ s.)? for "
      "trainer1 .*which runs and is not in that call");
  EXPECT_THAT(run_->output(),
              ContainsRegex("of tag 7 from rank 1: rank 0 of group [^ ]* still "
                            "waits after [^:]*: rank 1 .trainer1. has not sent "
                            "it and last called AllReduce #9"));
}

TEST_F(Stuck, RanksThatBothReceiveAreNamedWithTheirCalls) {
  Start("receive");
  EXPECT_THAT(run_->WaitForOutput("called different things", kLong), IsOk());
  EXPECT_THAT(run_->output(),
              ContainsRegex("trainer0 and trainer1 are in Receive of tag 7 in "
                            "group trainer/world"));
  run_->Signal(SIGTERM);
  EXPECT_THAT(run_->Wait(kLong), IsOk());
}

TEST_F(Stuck, ServerThatIsStoppedIsNamedWithTheTable) {
  StartWithServers(1, "rounds");
  const pid_t server = FindWorker(*run_, "ps", 0);
  ASSERT_GT(server, 0);
  ASSERT_EQ(kill(server, SIGSTOP), 0);
  EXPECT_THAT(run_->WaitForOutput("in PushPull on table users (", kLong),
              IsOk());
  EXPECT_THAT(run_->output(),
              ContainsRegex("for ps0 .pid [0-9]+ on [^ ]*, which is stopped"));
  ASSERT_EQ(kill(server, SIGCONT), 0);
  EXPECT_THAT(run_->WaitForOutput("the job goes on, after", kLong), IsOk());
  GoOn();
  EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(0)) << run_->output();
  EXPECT_THAT(events(),
              ContainsRegex(R"("class":"stopped","ranks":"ps0","waiting":)"
                            R"("[^"]*trainer.*"table":"users")"));
}

// Its backups take its part over within seconds, and rounds go on.
TEST_F(Stuck, StoppedServerWhosePartOthersServeIsNotSaidToKeepTheJob) {
  StartWithServers(2, "rounds");
  const pid_t server = FindWorker(*run_, "ps", 1);
  ASSERT_GT(server, 0);
  ASSERT_EQ(kill(server, SIGSTOP), 0);
  // Longer than it takes until a process that is stopped is named. On a busy
  // machine trainers may have waited for it for as long.
  EXPECT_FALSE(run_->WaitForOutput("no progress: ps1 ", absl::Seconds(8)).ok())
      << run_->output();
  GoOn();
  EXPECT_THAT(run_->WaitForOutput("the last round has ended", kLong), IsOk());
  ASSERT_EQ(kill(server, SIGCONT), 0);
  EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(0)) << run_->output();
}

TEST_F(Stuck, TrainerForWhichARoundWaitsIsNamed) {
  StartWithServers(1, "round");
  ExpectToSay(
      "no progress: trainer[02]( and trainer2)? waits? in PushPull on table "
      "users .[0-9.]+ s. for trainer1 .*which runs and is not in that call");
  EXPECT_THAT(run_->output(),
              HasSubstr("ps0 waits for trainer1 (round 10 waits for shard 1 of "
                        "rank 1)"));
}

TEST_F(Stuck, TrainerForWhichStablePushesWaitIsNamed) {
  StartWithServers(2, "stable");
  ExpectToSay(
      "no progress: trainer[02]( and trainer2)? waits? in AwaitStable on table "
      "users .[0-9.]+ s. for trainer1 .*which runs and is not in that call");
}

TEST_F(Stuck, SlowestTrainerOfATableWithStalenessIsNamed) {
  StartWithServers(1, "clock");
  ExpectToSay(
      "no progress: trainer[02]( and trainer2)? waits? in PushPull on table "
      "users .[0-9.]+ s. for trainer1 .*which runs and is not in that call");
}

// Its handlers get no thread, and the process answers.
TEST_F(Stuck, ServerThatIsBusyIsNamed) {
  setenv("WEFT_FAILPOINTS", "ps/exchange=40*off->1*delay(15s)", 1);
  StartWithServers(1, "rounds");
  unsetenv("WEFT_FAILPOINTS");
  ExpectToSay(
      "no progress: .*in PushPull on table users .[0-9.]+ s. for ps0 .*which "
      "runs and has not done it");
}

}  // namespace
}  // namespace weft::testing
