// Data-parallel training that goes on: from a checkpoint, on another number of
// ranks, and after kill -9 of a rank.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kBadCheckpoint = 20;
// As in ddp_test: sums over a batch are of another order on 1 and 2 ranks.
constexpr double kTolerance = 1e-5;
// 256 images, 2 ranks with 16 a step.
constexpr int64_t kSteps = 8;

// `weft run` of `ranks` trainers that save in `saved` and whose sockets are in
// job.Path("run").
std::unique_ptr<Process> StartRun(const Job& job, int ranks, int64_t batch,
                                  const std::string& saved, const Flags& run,
                                  const Flags& trainer,
                                  const std::string& failpoints = "") {
  std::filesystem::create_directory(job.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  if (!failpoints.empty()) {
    command.env.push_back("WEFT_FAILPOINTS=" + failpoints);
  }
  command.argv = {Program("weft"), "run",
                  absl::StrCat("--nproc-per-node=", ranks)};
  command.argv.insert(command.argv.end(), run.begin(), run.end());
  for (const std::string& word :
       {Program("trainer"), std::string("--strategy=ddp"), "--data=" + job.data,
        absl::StrCat("--batch-size=", batch), std::string("--lr=0.001"),
        std::string("--json"), "--checkpoint-dir=" + saved,
        "--dump-dir=" + job.Path("")}) {
    command.argv.push_back(word);
  }
  command.argv.insert(command.argv.end(), trainer.begin(), trainer.end());
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

// The trainers that `run` has started, by rank; -1 for one that is not there.
std::vector<pid_t> TrainersOf(const Process& run, int ranks) {
  std::vector<pid_t> found(ranks, -1);
  std::ifstream children(
      absl::StrCat("/proc/", run.pid(), "/task/", run.pid(), "/children"));
  pid_t pid = 0;
  while (children >> pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
    std::string variable;
    while (std::getline(file, variable, '\0')) {
      int rank = -1;
      if (!absl::StartsWith(variable, "WEFT_RANK=") ||
          !absl::SimpleAtoi(variable.substr(10), &rank)) {
        continue;
      }
      if (rank >= 0 && rank < ranks) found[rank] = pid;
    }
  }
  return found;
}

TEST(DataParallelRestart, ResumeOnAnotherNumberOfRanksGivesTheSameWeights) {
  const Job job;
  // The batch of all ranks is 32.
  const auto train = [&](int ranks, const std::string& saved, int epochs,
                         bool resume) {
    const auto run =
        StartRun(job, ranks, 32 / ranks, job.Path(saved), {},
                 {absl::StrCat("--epochs=", epochs),
                  absl::StrCat("--resume=", resume ? "true" : "false")});
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
    if (resume) {
      EXPECT_THAT(run->output(), HasSubstr("resuming"));
    }
    const auto loaded = LoadNewest(job.Path(saved));
    EXPECT_THAT(loaded, IsOk()) << run->output();
    return loaded;
  };
  const auto whole = train(2, "whole", 3, false);
  for (const std::vector<int>& ranks :
       {std::vector<int>{2, 2, 2}, {2, 1, 2}, {1, 2, 1}}) {
    const std::string saved = absl::StrCat("parts", ranks[0], ranks[1]);
    (void)train(ranks[0], saved, 1, false);
    (void)train(ranks[1], saved, 2, true);
    auto parts = train(ranks[2], saved, 3, true);
    ASSERT_TRUE(whole.ok() && parts.ok());
    // Each run has a name of its own.
    parts->manifest.metadata["run"] = whole->manifest.metadata.at("run");
    EXPECT_EQ(parts->manifest.step, whole->manifest.step);
    EXPECT_EQ(parts->manifest.metadata, whole->manifest.metadata);
    ExpectNear(whole->tensors, parts->tensors,
               ranks[0] == ranks[1] ? 0 : kTolerance);
  }
}

TEST(DataParallelRestart, ResumeFromDamagedCheckpointsFailsOnEveryRank) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto first = StartRun(job, 2, 16, saved, {}, {"--epochs=1"});
  ASSERT_THAT(first->Wait(kLong), IsOkAndHolds(0)) << first->output();
  const std::string shard =
      saved + "/" + NewestName(saved) + "/shard-00000.safetensors";
  std::string bytes = ReadBytes(shard);
  bytes.back() ^= 1;
  WriteBytes(shard, bytes);
  const auto second = StartRun(job, 2, 16, saved, {"--max-restarts=3"},
                               {"--epochs=2", "--resume"});
  // No restart can help.
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(kBadCheckpoint));
  EXPECT_THAT(second->output(), HasSubstr("shard-00000.safetensors"));
  EXPECT_THAT(second->output(), Not(HasSubstr("starting all ranks again")));
  ExpectNothingLeft(job.Path("run"));
}

// kill -9 of one rank of `run` after another, each time after another
// checkpoint of the restarted job.
void KillRanks(Process& run, const std::string& saved, int rounds) {
  std::set<pid_t> seen;
  for (int round = 0; round < rounds; ++round) {
    const int rank = round % 2;
    const std::string before = NewestName(saved);
    std::vector<pid_t> pids;
    ASSERT_TRUE(Becomes([&] {
      pids = TrainersOf(run, 2);
      return pids[0] > 0 && pids[1] > 0 && seen.count(pids[rank]) == 0 &&
             NewestName(saved) > before;
    })) << run.output();
    for (const pid_t pid : pids) seen.insert(pid);
    ASSERT_EQ(kill(pids[rank], SIGKILL), 0);
    ASSERT_THAT(
        run.WaitForOutput(absl::StrCat("restart ", round + 1, " of "), kLong),
        IsOk());
    EXPECT_THAT(
        run.output(),
        HasSubstr(absl::StrCat("trainer", rank, " failed: killed by SIGKILL")));
  }
}

// The parameter is the number of kills.
class KillInALoop : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataParallelRestart, KillInALoop,
                         ::testing::Values(3));
// tests/run.sh --long
INSTANTIATE_TEST_SUITE_P(DISABLED_ManyTimes, KillInALoop,
                         ::testing::Values(40));

// What is left must be what a job without any has. The training lasts until the
// last kill: see kForLong in job.h.
TEST_P(KillInALoop, KilledRanksAreRestartedFromTheLastCheckpoint) {
  const int rounds = GetParam();
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run = StartRun(
      job, 2, 16, saved,
      {absl::StrCat("--max-restarts=", rounds), "--shutdown-timeout=20s"},
      {kForLong});
  KillRanks(*run, saved, rounds);
  if (HasFatalFailure()) return;
  AwaitWholeEpoch(*run, saved, kSteps);
  Stop(*run);
  EXPECT_THAT(run->output(), HasSubstr("resuming"));
  ExpectNothingLeft(job.Path("run"));
  // What was stopped goes on to an end.
  const std::string epochs =
      absl::StrCat("--epochs=", StepOf(NewestName(saved)) / kSteps + 2);
  const auto resumed = StartRun(job, 2, 16, saved, {}, {epochs, "--resume"});
  EXPECT_THAT(resumed->Wait(kLong), IsOkAndHolds(0)) << resumed->output();
  const auto whole = StartRun(job, 2, 16, job.Path("whole"), {}, {epochs});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  const auto wanted = LoadNewest(job.Path("whole"));
  const auto found = LoadNewest(saved);
  ASSERT_THAT(wanted, IsOk());
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->manifest.step, wanted->manifest.step);
  ExpectNear(wanted->tensors, found->tensors, 0);
}

TEST(DataParallelRestart, RankKilledMoreOftenThanMaxRestartsEndsTheJob) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run = StartRun(job, 2, 16, saved, {}, {kForLong});
  ASSERT_TRUE(Becomes([&] { return !NewestName(saved).empty(); }))
      << run->output();
  ASSERT_EQ(kill(TrainersOf(*run, 2)[1], SIGKILL), 0);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  // Rank 0 names rank 1, and ends with its own code.
  EXPECT_THAT(run->output(), HasSubstr("rank 1"));
  EXPECT_THAT(run->output(),
              ContainsRegex("trainer0 .*exit code 10 \\(peer lost\\)"));
  // An exit that is proven is not waited for as for silence.
  EXPECT_THAT(run->output(), Not(HasSubstr("silent")));
  ExpectNothingLeft(job.Path("run"));
}

std::string WithFailpoint(const std::string& actions) {
  return "checkpoint/before_rename=" + actions;
}

TEST(DataParallelRestart, LastSaveIsTriedAgainAloneAndNothingIsTrainedAgain) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, 2, 16, saved, {"--max-restarts=3"}, {"--epochs=2"},
               WithFailpoint("1*off->2*error(RESOURCE_EXHAUSTED,full)"));
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("was not saved; trying again"));
  EXPECT_THAT(run->output(), Not(HasSubstr("starting all ranks again")));
  EXPECT_THAT(Checkpoints(saved), SizeIs(2));
}

// Neither is a passing fault, whatever code says it.
TEST(DataParallelRestart, LastSaveThatCannotSucceedEndsWithOneAndNoRestart) {
  const Job job;
  for (const char* error :
       {"RESOURCE_EXHAUSTED,disk full", "PERMISSION_DENIED,read-only"}) {
    const std::string saved =
        job.Path(absl::StrCat("saved-", std::string(error, 1)));
    const auto run =
        StartRun(job, 2, 16, saved, {"--max-restarts=3"}, {"--epochs=1"},
                 WithFailpoint(absl::StrCat("error(", error, ")")));
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(1)) << run->output();
    EXPECT_THAT(run->output(),
                HasSubstr("no checkpoint was saved in " + saved));
    EXPECT_THAT(run->output(), Not(HasSubstr("starting all ranks again")));
  }
}

// `weft run` of two ranks of examples/train/circle.
std::unique_ptr<Process> StartCircle(const TempDir& dir,
                                     const std::string& saved, const Flags& run,
                                     const Flags& circle) {
  std::filesystem::create_directory(dir.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + dir.Path("run")};
  command.argv = {Program("weft"), "run", "--nproc-per-node=2"};
  command.argv.insert(command.argv.end(), run.begin(), run.end());
  command.argv.push_back(RunfilePath("examples/train/circle"));
  command.argv.push_back("--checkpoint-dir=" + saved);
  command.argv.push_back("--dump-dir=" + dir.path());
  command.argv.insert(command.argv.end(), circle.begin(), circle.end());
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

// The last line {"loss":...}.
std::string LossOf(const Process& run) {
  const std::string output = run.output();
  const size_t begin = output.rfind("{\"loss\":");
  if (begin == std::string::npos) return "none in " + output;
  return output.substr(begin, output.find('}', begin) - begin);
}

// 600 points, 2 ranks with 20 a step.
constexpr int64_t kCircleSteps = 15;

// The training in `saved`, which was stopped, goes on to an end with the loss
// of one that nobody touched.
void ExpectSameLossAsWhole(const TempDir& dir, const std::string& saved) {
  const std::string epochs =
      absl::StrCat("--epochs=", StepOf(NewestName(saved)) / kCircleSteps + 2);
  const auto resumed = StartCircle(dir, saved, {}, {epochs, "--resume"});
  EXPECT_THAT(resumed->Wait(kLong), IsOkAndHolds(0)) << resumed->output();
  const auto whole = StartCircle(dir, dir.Path("whole"), {}, {epochs});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  EXPECT_EQ(LossOf(*resumed), LossOf(*whole));
}

TEST(DataParallelRestart, TrainingOfOnesOwnThatIsKilledEndsWithTheSameLoss) {
  const TempDir dir;
  const std::string saved = dir.Path("saved");
  const auto run = StartCircle(
      dir, saved, {"--max-restarts=2", "--shutdown-timeout=20s"}, {kForLong});
  KillRanks(*run, saved, 2);
  if (HasFatalFailure()) return;
  AwaitWholeEpoch(*run, saved, kCircleSteps);
  Stop(*run);
  ExpectNothingLeft(dir.Path("run"));
  ExpectSameLossAsWhole(dir, saved);
}

TEST(DataParallelRestart, TrainingOfOnesOwnThatIsStoppedSavesAndIsResumed) {
  const TempDir dir;
  const std::string saved = dir.Path("saved");
  const auto stopped = StartCircle(dir, saved, {}, {kForLong});
  ASSERT_TRUE(Becomes([&] { return !NewestName(saved).empty(); }))
      << stopped->output();
  Stop(*stopped);
  // Without --resume it would push the former run's checkpoints out.
  const auto refused = StartCircle(dir, saved, {}, {"--epochs=1"});
  EXPECT_THAT(refused->Wait(kLong), IsOkAndHolds(3));
  EXPECT_THAT(refused->output(), HasSubstr("give --resume to go on from it"));
  ExpectSameLossAsWhole(dir, saved);
}

}  // namespace
}  // namespace weft::testing
