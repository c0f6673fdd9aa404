// What `weft run` says of a job that is stuck: who, and how.

#include <signal.h>

#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
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
    Command command;
    // Who is stopped is not to be dead before it goes on.
    command.argv = {Program("weft"), "run", "--nproc-per-node=3",
                    "--silence=100s", "--events=" + dir_.Path("events")};
    command.argv.push_back(RunfilePath("tests/job/stuck_worker"));
    command.argv.push_back(how);
    command.argv.push_back(dir_.Path("go"));
    auto process = Process::Start(std::move(command));
    ASSERT_THAT(process, IsOk());
    run_ = *std::move(process);
    EXPECT_THAT(run_->WaitForOutput("all are in", kLong), IsOk());
  }
  void GoOn() { WriteBytes(dir_.Path("go"), "go"); }
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

}  // namespace
}  // namespace weft::testing
