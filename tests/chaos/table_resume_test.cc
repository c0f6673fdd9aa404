// Elastic trainers with tables whose last copy of the model dies: the training
// goes on from a checkpoint of model and tables, with the bits of one that
// nobody touched.

#include <signal.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/chaos/chaos_job.h"
#include "weft/tests/chaos/table_job.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

constexpr int64_t kMoreSteps = 30;

class TableResume : public ChaosJob {
 protected:
  TableResume() : ChaosJob(/*faults=*/0) {}

  Process& StartRun(const std::string& name, const std::string& saved,
                    const std::string& more = "") {
    const std::string directory =
        saved.empty() ? "" : " --checkpoint-dir=" + saved;
    run_ = &Start(
        name, job_.Path("run"),
        {Program("weft"), "run", "--job=" + name, "--elastic=1:2",
         "--replicas=2", "--role",
         absl::StrCat("ps=2:", Program("parameter_server"), directory),
         "--role",
         absl::StrCat("trainer=2:", RunfilePath("tests/chaos/table_worker"),
                      directory, " --end=", job_.Path("end"), more)});
    return *run_;
  }

  bool AwaitsRunning(const std::string& what,
                     absl::FunctionRef<bool()> condition) {
    return Awaits(
        what,
        [&] {
          return absl::IsDeadlineExceeded(
              run_->Wait(absl::ZeroDuration()).status());
        },
        condition);
  }

  // Both processes of a role, once they are old enough to be started again.
  std::vector<pid_t> AwaitBoth(const std::string& role) {
    std::vector<pid_t> found;
    EXPECT_TRUE(AwaitsRunning(role + " to be older than 2.5 s", [&] {
      for (const int rank : {0, 1}) See(*run_, role, rank);
      found = OldEnough({role + "0", role + "1"});
      return !found.empty();
    }));
    return found;
  }
  void KillBoth(const std::string& role) {
    const std::vector<pid_t> found = AwaitBoth(role);
    ASSERT_EQ(found.size(), 2);
    // The other gives nothing on, however long this process waits between.
    kill(found[1], SIGSTOP);
    for (const pid_t process : found) kill(process, SIGKILL);
    Note("killed both of " + role);
  }

  // The result of a training that goes on beyond `step`, which its run has told
  // before, and of one that nobody has touched.
  void ExpectUndisturbed(int64_t step) {
    WriteEnd(job_.Path("end"), step + kMoreSteps);
    EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(0));
    const std::set<std::string> results = ResultsIn(run_->output());
    EXPECT_EQ(results.size(), 1);
    EXPECT_THAT(StartRun("calm", job_.Path("calm")).Wait(kLong),
                IsOkAndHolds(0));
    EXPECT_EQ(results, ResultsIn(run_->output()));
  }

  Process* run_ = nullptr;
};

// The servers have rows of steps that no trainer has any more: they go back to
// the checkpoint as well.
TEST_F(TableResume, AllTrainersAreKilledAtOnce) {
  const std::string saved = job_.Path("saved");
  StartRun("tables", saved);
  ASSERT_TRUE(AwaitsRunning("a checkpoint",
                            [&] { return !Checkpoints(saved).empty(); }));
  KillBoth("trainer");
  if (HasFatalFailure()) return;
  const size_t offset = run_->output().size();
  ASSERT_TRUE(AwaitsRunning("steps after that", [&] {
    return LastStep(run_->output(), offset) >= 0;
  }));
  EXPECT_THAT(run_->output(), ::testing::HasSubstr("resuming"));
  ExpectUndisturbed(LastStep(run_->output(), offset));
  ExpectNothingLeft(job_.Path("run"));
}

// The trainers end, are started again, and put tables and model back; also one
// that waits for what it has pushed to be stable.
TEST_F(TableResume, BothCopiesOfTheTablesAreLostAtOnce) {
  const std::string saved = job_.Path("saved");
  StartRun("tables", saved);
  ASSERT_TRUE(AwaitsRunning("a checkpoint",
                            [&] { return !Checkpoints(saved).empty(); }));
  KillBoth("ps");
  if (HasFatalFailure()) return;
  const size_t offset = run_->output().size();
  ASSERT_TRUE(AwaitsRunning("the checkpoint to be restored", [&] {
    return run_->output().find("resuming checkpoint=", offset) !=
           std::string::npos;
  }));
  const size_t resumed = run_->output().find("resuming checkpoint=", offset);
  ASSERT_TRUE(AwaitsRunning("steps after that", [&] {
    return LastStep(run_->output(), resumed) >= 0;
  }));
  EXPECT_THAT(run_->output(), ::testing::ContainsRegex(
                                  "weft: trainer[01] has ended: exit code 10"));
  EXPECT_THAT(run_->output(),
              ::testing::Not(::testing::HasSubstr("has ended: exit code 11")));
  ExpectUndisturbed(LastStep(run_->output(), resumed));
}

TEST_F(TableResume, BothCopiesAreLostWithoutACheckpoint) {
  StartRun("tables", "");
  ASSERT_TRUE(
      AwaitsRunning("steps", [&] { return LastStep(run_->output(), 0) >= 0; }));
  KillBoth("ps");
  if (HasFatalFailure()) return;
  EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(10));
  EXPECT_THAT(run_->output(),
              ::testing::HasSubstr("no checkpoint was saved, and all servers"));
}

TEST_F(TableResume, AllProcessesAreKilledWithinAnEpoch) {
  constexpr int64_t kStepsOfEpoch = 20;  // of table_worker
  const std::string saved = job_.Path("saved");
  const std::string every = " --checkpoint-every=3";
  StartRun("tables", saved, every);
  ASSERT_TRUE(AwaitsRunning("a checkpoint within an epoch", [&] {
    const auto checkpoints = Checkpoints(saved);
    return !checkpoints.empty() && StepOf(checkpoints.back()) > kStepsOfEpoch &&
           StepOf(checkpoints.back()) % kStepsOfEpoch != 0;
  }));
  run_->Signal(SIGKILL);
  ASSERT_TRUE(run_->Wait(kLong).ok());
  Note("the newest checkpoint is " + Checkpoints(saved).back());
  StartRun("tables", saved, every + " --resume");
  ASSERT_TRUE(
      AwaitsRunning("steps", [&] { return LastStep(run_->output(), 0) >= 0; }));
  EXPECT_THAT(run_->output(),
              ::testing::HasSubstr("resuming checkpoint=ckpt-"));
  ExpectUndisturbed(LastStep(run_->output(), 0));
}

TEST_F(TableResume, TableOfOtherShardsThanTheTrainingIsRefused) {
  StartRun("other", job_.Path("saved"), " --table-shards=4");
  EXPECT_THAT(run_->Wait(kLong), IsOkAndHolds(3));
  EXPECT_THAT(run_->output(),
              ::testing::HasSubstr("found TableSpec::shards of 4 and "
                                   "Parts::virtual_shards of 8"));
  EXPECT_EQ(LastStep(run_->output(), 0), -1);
}

TEST_F(TableResume, AllProcessesAreKilledAndTheJobIsStartedAgain) {
  const std::string saved = job_.Path("saved");
  StartRun("tables", saved);
  ASSERT_TRUE(AwaitsRunning("a checkpoint",
                            [&] { return !Checkpoints(saved).empty(); }));
  run_->Signal(SIGKILL);  // all that it has started end with it
  ASSERT_TRUE(run_->Wait(kLong).ok());
  StartRun("tables", saved, " --resume");
  ASSERT_TRUE(
      AwaitsRunning("steps", [&] { return LastStep(run_->output(), 0) >= 0; }));
  ExpectUndisturbed(LastStep(run_->output(), 0));
}

}  // namespace
}  // namespace weft::testing
