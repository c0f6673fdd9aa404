// Trainers that are killed and that come while others train, as users run them:
// `weft run --elastic` starts who has failed again, nobody else ends, and the
// model has the bits of a training that nobody touched. Trainings last until
// the test stops them: see kForLong in job.h.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

using ::testing::HasSubstr;

// 256 images, 8 shards of 4 a step.
constexpr int64_t kSteps = 8;

Flags Trainer(const Job& job, const std::string& saved,
              const Flags& more = {kForLong}) {
  Flags flags = {Program("trainer"),
                 "--strategy=ddp",
                 "--virtual-shards=8",
                 "--data=" + job.data,
                 "--batch-size=4",
                 "--lr=0.001",
                 kKeepSome,
                 "--checkpoint-dir=" + saved};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

// `weft run` with its own folder for sockets.
std::unique_ptr<Process> StartRun(const Job& job, const Flags& flags,
                                  const std::string& saved,
                                  const Flags& more = {kForLong}) {
  std::filesystem::create_directory(job.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  command.argv = {Program("weft"), "run", "--job=elastic"};
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  const Flags trainer = Trainer(job, saved, more);
  command.argv.insert(command.argv.end(), trainer.begin(), trainer.end());
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

// A trainer that no `weft run` starts, of the same job.
std::unique_ptr<Process> StartByHand(const Job& job, const std::string& saved,
                                     int rank, const std::string& workers,
                                     const Flags& env = {},
                                     const std::string& program = "") {
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  command.env.insert(command.env.end(), env.begin(), env.end());
  command.argv = Trainer(job, saved);
  if (!program.empty()) command.argv[0] = program;
  for (const std::string& flag :
       {std::string("--job=elastic"), absl::StrCat("--rank=", rank),
        "--workers=" + workers, std::string("--coordinator-host=coordinator0"),
        "--coordinator=unix:" +
            job.Path("run/weft/elastic/coordinator.sock")}) {
    command.argv.push_back(flag);
  }
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

std::string ModelIn(const std::string& checkpoint) {
  return ReadBytes(checkpoint + "/shard-00000.safetensors");
}

// The model of a training by one trainer, in no elastic job.
std::string UndisturbedModel(const Job& job, const std::string& epochs) {
  const std::string saved = job.Path("undisturbed");
  const auto run = StartRun(job, {"--nproc-per-node=1"}, saved, {epochs});
  // It may take as long as the training that it is compared with.
  EXPECT_THAT(run->Wait(3 * kLong), IsOkAndHolds(0)) << run->output();
  return ModelIn(saved + "/" + NewestName(saved));
}

// Stops the training of `run`; it has the bits of an undisturbed one.
void ExpectUndisturbed(Process& run, const Job& job, const std::string& saved) {
  Stop(run);
  const Epochs trained = WholeEpochs(saved, kSteps);
  ASSERT_GT(trained.count, 0) << run.output();
  EXPECT_TRUE(ModelIn(trained.checkpoint) ==
              UndisturbedModel(job, trained.flag()))
      << trained.checkpoint << "\n"
      << run.output();
}

void AwaitNextCheckpoint(const Process& run, const std::string& saved) {
  const auto before = Checkpoints(saved);
  ASSERT_TRUE(Becomes([&] { return Checkpoints(saved) != before; }))
      << run.output();
}

// kill -9 of each trainer in turn, the one that writes checkpoints among them.
TEST(Elastic, KilledTrainersAreStartedAgainAndTheBitsStay) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, {"--elastic=2:4", "--nproc-per-node=3"}, saved);
  for (const int victim : {1, 0, 2}) {
    AwaitNextCheckpoint(*run, saved);
    KillWorker(*run, "trainer", victim);
    if (HasFatalFailure()) return;
  }
  AwaitBack(*run, "trainer2");
  AwaitWholeEpoch(*run, saved, kSteps);
  EXPECT_THAT(run->output(), HasSubstr("starting it again"));
  ExpectUndisturbed(*run, job, saved);
  ExpectNothingLeft(job.Path("run"));
}

TEST(Elastic, TrainerThatComesByHandTakesPart) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, {"--elastic=1:4", "--nproc-per-node=2"}, saved);
  AwaitNextCheckpoint(*run, saved);
  const auto newcomer = StartByHand(job, saved, 7, "1:4");
  EXPECT_THAT(newcomer->WaitForOutput("taking part", kLong), IsOk())
      << newcomer->output() << run->output();
  AwaitWholeEpoch(*run, saved, kSteps);
  Stop(*newcomer);
  ExpectUndisturbed(*run, job, saved);
}

// The others stop for it, and it does not go on: once its silence counts as
// death they go on without it. Those two begin together: nobody else goes over.
TEST(Elastic, NewcomerThatNeverAnswersInTheHandOverIsLeftOut) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run = StartRun(
      job, {"--elastic=2:4", "--nproc-per-node=2", "--silence=3s"}, saved);
  AwaitNextCheckpoint(*run, saved);
  const auto newcomer = StartByHand(
      job, saved, 7, "2:4",
      {"WEFT_SILENCE=3s", "WEFT_FAILPOINTS=train/take_state=block"});
  ASSERT_THAT(run->WaitForOutput("going over to the group of those", kLong),
              IsOk())
      << newcomer->output();
  newcomer->Signal(SIGSTOP);
  EXPECT_THAT(run->WaitForOutput("not all who met go on", kLong), IsOk());
  AwaitNextCheckpoint(*run, saved);
  EXPECT_THAT(newcomer->output(), ::testing::Not(HasSubstr("taking part")));
  newcomer->Signal(SIGKILL);
  AwaitWholeEpoch(*run, saved, kSteps);
  ExpectUndisturbed(*run, job, saved);
}

// Its process answers, so it is not silent: it ends by itself, and is named.
TEST(Elastic, NewcomerThatHangsInTheHandOverEndsAndTheOthersGoOn) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run = StartRun(
      job, {"--elastic=2:4", "--nproc-per-node=2", "--silence=3s"}, saved);
  AwaitNextCheckpoint(*run, saved);
  const auto newcomer = StartByHand(
      job, saved, 7, "2:4",
      {"WEFT_SILENCE=3s", "WEFT_FAILPOINTS=train/take_state=block"});
  EXPECT_THAT(newcomer->Wait(kLong), IsOkAndHolds(11)) << newcomer->output();
  EXPECT_THAT(newcomer->output(),
              HasSubstr("trainer7 has been beginning to take the state for "
                        "more than 9s"));
  EXPECT_THAT(run->WaitForOutput("not all who met go on", kLong), IsOk());
  EXPECT_THAT(run->output(),
              ::testing::ContainsRegex("not all who met go on.* rank 2 "));
  EXPECT_THAT(run->output(), HasSubstr("rank 2 (trainer7) has not called it"));
  AwaitNextCheckpoint(*run, saved);
  AwaitWholeEpoch(*run, saved, kSteps);
  ExpectUndisturbed(*run, job, saved);
}

// A copy of the trainer with another id of its build.
std::string TrainerOfAnotherBuild(const Job& job) {
  std::string bytes = ReadBytes(Program("trainer"));
  // The note NT_GNU_BUILD_ID: the sizes of its name and of the id, 20 or 16,
  // its type 3, "GNU".
  const std::string tail("\0\0\0\3\0\0\0GNU\0", 11);
  size_t at = bytes.find(tail);
  while (at != std::string::npos && bytes[at - 1] != 20 &&
         bytes[at - 1] != 16) {
    at = bytes.find(tail, at + 1);
  }
  EXPECT_NE(at, std::string::npos);
  if (at == std::string::npos) return "";
  bytes[at + tail.size()] ^= 1;
  WriteBytes(job.Path("other_trainer"), bytes);
  std::filesystem::permissions(job.Path("other_trainer"),
                               std::filesystem::perms::owner_all);
  return job.Path("other_trainer");
}

// Both are named, and the others go on.
TEST(Elastic, NewcomerOfAnotherBuildIsRefused) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, {"--elastic=1:4", "--nproc-per-node=2"}, saved);
  AwaitNextCheckpoint(*run, saved);
  const auto newcomer =
      StartByHand(job, saved, 7, "1:4", {}, TrainerOfAnotherBuild(job));
  EXPECT_THAT(newcomer->Wait(kLong), IsOkAndHolds(3)) << newcomer->output();
  EXPECT_THAT(newcomer->output(),
              ::testing::ContainsRegex(
                  "rank 0: the build is weft [0-9.]+, program [0-9a-f]+; rank "
                  "[0-9]: the build is weft [0-9.]+, program [0-9a-f]+"));
  AwaitWholeEpoch(*run, saved, kSteps);
  ExpectUndisturbed(*run, job, saved);
}

// For how long ranks die and come.
absl::Duration ChurnTime() {
  const char* const seconds = getenv("WEFT_CHURN_SECONDS");
  int number = 12;
  return absl::Seconds(
      seconds != nullptr && absl::SimpleAtoi(seconds, &number) ? number : 12);
}

// Every 2 s one comes by hand, or is killed, whether it takes part by then or
// not, or one of those is killed that `weft run` starts again.
TEST(Elastic, RanksThatDieAndComeAllTheTimeLeaveTheBits) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, {"--elastic=2:8", "--nproc-per-node=3"}, saved);
  AwaitNextCheckpoint(*run, saved);
  std::unique_ptr<Process> guest;
  const absl::Time end = absl::Now() + ChurnTime();
  for (int turn = 0; absl::Now() < end && !HasFatalFailure(); ++turn) {
    if (turn % 2 == 0) {
      guest = StartByHand(job, saved, 10 + turn, "2:8");
    } else if (turn % 4 == 1) {
      guest->Signal(SIGKILL);
    } else {
      KillWorker(*run, "trainer", turn / 4 % 3);
    }
    absl::SleepFor(absl::Seconds(2));
  }
  guest = StartByHand(job, saved, 9, "2:8");
  EXPECT_THAT(guest->WaitForOutput("taking part", kLong), IsOk())
      << guest->output() << run->output();
  Stop(*guest);
  AwaitWholeEpoch(*run, saved, kSteps);
  ExpectUndisturbed(*run, job, saved);
}

TEST(Elastic, AllTrainersKilledAtOnceGoOnFromTheNewestCheckpoint) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, {"--elastic=1:2", "--nproc-per-node=2"}, saved);
  AwaitNextCheckpoint(*run, saved);
  const pid_t first = FindWorker(*run, "trainer", 0);
  const pid_t second = FindWorker(*run, "trainer", 1);
  ASSERT_GT(first, 0);
  ASSERT_GT(second, 0);
  // Gives nothing to the one that is started in the first one's place, however
  // long this process waits before the second kill.
  kill(second, SIGSTOP);
  kill(first, SIGKILL);
  kill(second, SIGKILL);
  EXPECT_THAT(run->WaitForOutput("resuming", kLong), IsOk());
  AwaitWholeEpoch(*run, saved, kSteps);
  ExpectUndisturbed(*run, job, saved);
}

// kill -9 of `weft run`, with which all end that it has started, in the middle
// of an epoch; the next one goes on from there.
TEST(Elastic, AllProcessesKilledWithinAnEpochGoOnFromWithinIt) {
  constexpr int64_t kStepsOfEpoch = Job::kTrainImages / 8;
  const Job job;
  const std::string saved = job.Path("saved");
  const Flags elastic = {"--elastic=1:2", "--nproc-per-node=2"};
  const Flags trainer = {"--batch-size=1", "--checkpoint-every=5"};
  const auto newest_is_within = [&](int64_t from) {
    return !Checkpoints(saved).empty() && [&] {
      const int64_t step = StepOf(NewestName(saved));
      return step > from && step % kStepsOfEpoch != 0;
    }();
  };
  int64_t step = 0;
  Flags more = trainer;
  more.push_back(kForLong);
  for (int kills = 0; kills < 3; ++kills) {
    const auto run = StartRun(job, elastic, saved, more);
    ASSERT_TRUE(Becomes([&] { return newest_is_within(step + 5); }))
        << run->output();
    run->Signal(SIGKILL);
    ASSERT_TRUE(run->Wait(kLong).ok());
    if (kills > 0) {
      EXPECT_THAT(run->output(), HasSubstr("resuming checkpoint=ckpt-"));
    } else {
      more.push_back("--resume");
    }
    step = StepOf(NewestName(saved));
  }
  // Those that it had started may have taken some steps more.
  const std::string epochs =
      absl::StrCat("--epochs=", step / kStepsOfEpoch + 2);
  const auto last = StartRun(job, elastic, saved,
                             {trainer[0], trainer[1], epochs, "--resume"});
  EXPECT_THAT(last->Wait(kLong), IsOkAndHolds(0)) << last->output();
  const auto whole = StartRun(job, {"--nproc-per-node=1"}, job.Path("whole"),
                              {trainer[0], epochs});
  EXPECT_THAT(whole->Wait(3 * kLong), IsOkAndHolds(0)) << whole->output();
  EXPECT_TRUE(ModelIn(saved + "/" + NewestName(saved)) ==
              ModelIn(job.Path("whole/") + NewestName(job.Path("whole"))))
      << last->output();
}

// The others go on without one that is stopped, once it counts as dead. When it
// goes on it ends, and another takes part in its place.
TEST(Elastic, TrainerThatIsStoppedForLongIsLeftOut) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, {"--elastic=1:4", "--nproc-per-node=3"}, saved);
  AwaitNextCheckpoint(*run, saved);
  // The first may not be in the job yet: the others do not wait for it.
  KillWorker(*run, "trainer", 1);
  if (HasFatalFailure()) return;
  AwaitBack(*run, "trainer1");
  const pid_t trainer = FindWorker(*run, "trainer", 1);
  ASSERT_GT(trainer, 0) << run->output();
  kill(trainer, SIGSTOP);
  EXPECT_THAT(run->WaitForOutput("trainer1 is gone: silent", kLong), IsOk());
  kill(trainer, SIGCONT);
  AwaitBack(*run, "trainer1", 2);
  AwaitWholeEpoch(*run, saved, kSteps);
  ExpectUndisturbed(*run, job, saved);
}

// The number behind the last `name` in `text`; -1: there is none.
int64_t LastNumber(const std::string& text, const std::string& name) {
  const size_t at = text.rfind(name);
  int64_t number = -1;
  if (at == std::string::npos) return number;
  const size_t begin = at + name.size();
  const size_t end = text.find_first_not_of("0123456789", begin);
  return absl::SimpleAtoi(text.substr(begin, end - begin), &number) ? number
                                                                    : -1;
}

// Below MIN the others are waited for. Who is asked to stop meanwhile saves
// what nobody else has; it has not failed, and leaves no flight recording.
TEST(Elastic, TrainerThatIsAskedToStopWhileItWaitsSavesAndLeavesNothing) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto run =
      StartRun(job, {"--elastic=2:4", "--nproc-per-node=1"}, saved);
  // Its socket and the other's are in a directory that it makes.
  ASSERT_TRUE(Becomes([&] {
    return std::filesystem::exists(job.Path("run/weft/elastic"));
  })) << run->output();
  const auto other = StartByHand(job, saved, 7, "2:4");
  // After the first step, most often before the first checkpoint.
  ASSERT_THAT(run->WaitForOutput("] training ", kLong), IsOk());
  other->Signal(SIGKILL);
  ASSERT_THAT(run->WaitForOutput("which the job has not", kLong), IsOk());
  run->Signal(SIGTERM);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGTERM)) << run->output();
  ExpectNothingLeft(job.Path("run"));
  const int64_t steps = LastNumber(run->output(), "meet again step=");
  EXPECT_EQ(LastNumber(NewestName(saved), "-step-"), steps) << run->output();

  const std::string epochs = absl::StrCat("--epochs=", steps / kSteps + 1);
  const auto next =
      StartRun(job, {"--nproc-per-node=2"}, saved, {epochs, "--resume"});
  EXPECT_THAT(next->Wait(kLong), IsOkAndHolds(0)) << next->output();
  EXPECT_TRUE(ModelIn(saved + "/" + NewestName(saved)) ==
              UndisturbedModel(job, epochs))
      << run->output() << next->output();
}

// 640 points, 4 shards of 10 a step.
constexpr int64_t kCircleSteps = 16;

// `weft run` of examples/train/elastic_circle, with ranks of its own number.
std::unique_ptr<Process> StartCircle(const TempDir& dir, int ranks,
                                     const std::string& saved,
                                     const Flags& more) {
  std::filesystem::create_directory(dir.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + dir.Path("run")};
  command.argv = {Program("weft"),
                  "run",
                  "--elastic=1:4",
                  absl::StrCat("--nproc-per-node=", ranks),
                  RunfilePath("examples/train/elastic_circle"),
                  "--checkpoint-dir=" + saved,
                  "--dump-dir=" + dir.path()};
  command.argv.insert(command.argv.end(), more.begin(), more.end());
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

// The loss is told at the end, so what was stopped goes on to one. By one rank:
// another that came after it would tell one, too.
TEST(Elastic, TrainingOfOnesOwnWhoseRanksAreKilledEndsWithTheSameLoss) {
  const TempDir dir;
  const std::string saved = dir.Path("saved");
  const auto run = StartCircle(dir, 3, saved, {kForLong});
  for (const int victim : {0, 2}) {
    AwaitNextCheckpoint(*run, saved);
    KillWorker(*run, "trainer", victim);
    if (HasFatalFailure()) return;
  }
  AwaitBack(*run, "trainer2");
  AwaitWholeEpoch(*run, saved, kCircleSteps);
  Stop(*run);
  ExpectNothingLeft(dir.Path("run"));
  const std::string epochs =
      absl::StrCat("--epochs=", StepOf(NewestName(saved)) / kCircleSteps + 2);
  const auto resumed = StartCircle(dir, 1, saved, {epochs, "--resume"});
  EXPECT_THAT(resumed->Wait(kLong), IsOkAndHolds(0)) << resumed->output();
  const auto whole = StartCircle(dir, 1, dir.Path("whole"), {epochs});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  EXPECT_EQ(LossOf(*resumed), LossOf(*whole));
  ExpectNothingLeft(dir.Path("run"));
}

TEST(Elastic, WrongUsesAreRefusedWithWhatIsWanted) {
  const Job job;
  const auto refuses = [&](const Flags& flags, const std::string& message) {
    const auto run = StartRun(job, flags, job.Path("none"));
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(2)) << run->output();
    EXPECT_THAT(run->output(), HasSubstr(message));
  };
  refuses({"--elastic=4:2", "--nproc-per-node=2"}, "wanted MIN:MAX");
  refuses({"--elastic=2", "--nproc-per-node=2"}, "wanted MIN:MAX");
  refuses({"--elastic=1:2", "--nproc-per-node=3"},
          "wanted at most 2 trainers, found 3");
  refuses({"--elastic=1:2", "--nproc-per-node=1", "--allow-trainer-exits=1"},
          "goes without --allow-trainer-exits");
}

}  // namespace
}  // namespace weft::testing
