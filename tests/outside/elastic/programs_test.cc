// `weft run --elastic` and its trainers as processes that are stopped, killed,
// asked to end and joined by others. What is expected is what docs/elastic.md,
// "Ranks that come and go", and docs/cli.md, "weft run", say. Trainings last
// until the test stops them: see kForLong in job.h.

#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::outside {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using weft::testing::AwaitBack;
using weft::testing::AwaitWholeEpoch;
using weft::testing::Becomes;
using weft::testing::Checkpoints;
using weft::testing::Command;
using weft::testing::Epochs;
using weft::testing::Flags;
using weft::testing::IsOk;
using weft::testing::IsOkAndHolds;
using weft::testing::Job;
using weft::testing::kLong;
using weft::testing::Process;
using weft::testing::Program;
using weft::testing::Stop;
using weft::testing::WholeEpochs;

// 256 images, and 32 of them a step: 8 shards of 4, or 2 of 16.
constexpr int64_t kSteps = 8;

// A job of `weft run --elastic`, on the data of `job`.
class ElasticPrograms : public ::testing::Test {
 protected:
  ElasticPrograms() { std::filesystem::create_directory(job_.Path("run")); }

  // The last one of two flags counts.
  Flags Trainer(const std::string& saved, const Flags& more) const {
    Flags flags = {Program("trainer"),
                   "--strategy=ddp",
                   "--virtual-shards=8",
                   "--data=" + job_.data,
                   "--batch-size=4",
                   "--lr=0.001",
                   weft::testing::kForLong,
                   weft::testing::kKeepSome,
                   "--checkpoint-dir=" + job_.Path(saved)};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  std::unique_ptr<Process> Start(const Flags& run, const Flags& trainer) const {
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + job_.Path("run")};
    command.argv = {Program("weft"), "run", "--job=elastic"};
    command.argv.insert(command.argv.end(), run.begin(), run.end());
    command.argv.insert(command.argv.end(), trainer.begin(), trainer.end());
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }

  // A trainer that somebody starts beside `weft run --elastic=workers`.
  std::unique_ptr<Process> StartByHand(int rank, const std::string& workers,
                                       const Flags& more = {}) const {
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + job_.Path("run")};
    command.argv = Trainer("saved", more);
    for (const std::string& flag :
         {std::string("--job=elastic"), absl::StrCat("--rank=", rank),
          "--workers=" + workers,
          std::string("--coordinator-host=coordinator0"),
          "--coordinator=unix:" +
              job_.Path("run/weft/elastic/coordinator.sock")}) {
      command.argv.push_back(flag);
    }
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }

  std::vector<std::string> Saved(const std::string& saved = "saved") const {
    return Checkpoints(job_.Path(saved));
  }
  void AwaitNextCheckpoint(const Process& run) const {
    const auto before = Saved();
    ASSERT_TRUE(Becomes([&] { return Saved() != before; })) << run.output();
  }
  // A whole epoch after all that was done to the training.
  void AwaitEpoch(const Process& run) const {
    AwaitWholeEpoch(run, job_.Path("saved"), kSteps);
  }

  // The bytes of the model in a checkpoint, and in the newest of a folder.
  static std::string ModelIn(const std::string& checkpoint) {
    return weft::testing::ReadBytes(checkpoint + "/shard-00000.safetensors");
  }
  std::string Model(const std::string& saved = "saved") const {
    const auto names = Saved(saved);
    return names.empty() ? "" : ModelIn(job_.Path(saved + "/" + names.back()));
  }
  // The model of one trainer in a job that is not elastic.
  std::string Undisturbed(const Flags& flags) const {
    const auto run =
        Start({"--nproc-per-node=1"}, Trainer("undisturbed", flags));
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
    return Model("undisturbed");
  }
  // Stops the training; it has the bits of one that nobody touched.
  void ExpectUndisturbed(Process& run) const {
    Stop(run);
    const Epochs trained = WholeEpochs(job_.Path("saved"), kSteps);
    ASSERT_GT(trained.count, 0) << run.output();
    EXPECT_EQ(ModelIn(trained.checkpoint) == Undisturbed({trained.flag()}),
              true)
        << trained.checkpoint << "\n"
        << run.output();
  }

  // What was stopped goes on by two trainers, for long enough that both come,
  // and has the bits of an undisturbed training in the end.
  void ExpectResumed() const {
    ASSERT_FALSE(Saved().empty());
    Epochs wanted;
    wanted.count =
        static_cast<int>(weft::testing::StepOf(Saved().back()) / kSteps) + 40;
    const auto run = Start({"--elastic=1:2", "--nproc-per-node=2"},
                           Trainer("saved", {"--resume", wanted.flag()}));
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
    EXPECT_EQ(Model() == Undisturbed({wanted.flag()}), true) << run->output();
  }

  const Job job_;
};

TEST_F(ElasticPrograms, TrainerThatStandsStillForAWhileHarmsNothing) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  const pid_t trainer = FindWorker(*run, "trainer", 1);
  ASSERT_GT(trainer, 0);
  kill(trainer, SIGSTOP);
  absl::SleepFor(absl::Seconds(3));
  kill(trainer, SIGCONT);
  AwaitEpoch(*run);
  ExpectUndisturbed(*run);
}

// "The exit code of `weft run` is ... 128 + signal if it was asked to end": and
// another number goes on to the same bits.
TEST_F(ElasticPrograms, StoppedJobIsResumedByAnotherNumber) {
  {
    const auto run =
        Start({"--elastic=2:4", "--nproc-per-node=3"}, Trainer("saved", {}));
    AwaitNextCheckpoint(*run);
    Stop(*run);
    EXPECT_FALSE(std::filesystem::exists(job_.Path("run/weft/elastic")));
  }
  ExpectResumed();
}

TEST_F(ElasticPrograms, SameTrainerMayBeKilledFourTimes) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=2"}, Trainer("saved", {}));
  for (int i = 0; i < 3; ++i) {
    AwaitNextCheckpoint(*run);
    KillWorker(*run, "trainer", 0);
    if (HasFatalFailure()) return;
    // Three that end within 2 s in a row end the job.
    if (i == 1) absl::SleepFor(absl::Seconds(4));
  }
  AwaitNextCheckpoint(*run);
  KillWorker(*run, "trainer", 0);
  if (HasFatalFailure()) return;
  AwaitBack(*run, "trainer0", 4);
  AwaitEpoch(*run);
  ExpectUndisturbed(*run);
}

TEST_F(ElasticPrograms, TrainersKilledWhileAnotherIsTakenIn) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", {}));
  for (const int ms : {20, 150, 400}) {
    AwaitNextCheckpoint(*run);
    KillWorker(*run, "trainer", 1);
    if (HasFatalFailure()) return;
    absl::SleepFor(absl::Milliseconds(ms));
    KillWorker(*run, "trainer", 0);
    if (HasFatalFailure()) return;
    // Three that end within 2 s in a row end the job.
    absl::SleepFor(absl::Seconds(3));
  }
  AwaitEpoch(*run);
  ExpectUndisturbed(*run);
}

// "a process of its own that is started again if it ends": with a trainer that
// dies right after it.
TEST_F(ElasticPrograms, CoordinatorMayBeKilled) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  KillWorker(*run, "coordinator", 0);
  if (HasFatalFailure()) return;
  KillWorker(*run, "trainer", 2);
  if (HasFatalFailure()) return;
  AwaitBack(*run, "trainer2");
  AwaitEpoch(*run);
  ExpectUndisturbed(*run);
}

// "code 2, 3, 14 or 20 ends the job"
TEST_F(ElasticPrograms, TrainersThatCannotBeginEndTheJob) {
  Flags program = {"sh", "-c",
                   "[ $RANK = 0 ] || set -- --no-such-flag; exec \"$PROGRAM\" "
                   "--strategy=ddp --virtual-shards=8 --epochs=2 "
                   "--data=\"$DATA\" \"$@\"",
                   "sh"};
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job_.Path("run"),
                 "PROGRAM=" + Program("trainer"), "DATA=" + job_.data};
  command.argv = {Program("weft"), "run", "--job=elastic", "--elastic=3:3",
                  "--nproc-per-node=3"};
  command.argv.insert(command.argv.end(), program.begin(), program.end());
  const auto run = Process::Start(std::move(command));
  ASSERT_THAT(run, IsOk());
  EXPECT_THAT((*run)->Wait(kLong), IsOkAndHolds(2)) << (*run)->output();
  EXPECT_THAT((*run)->output(), HasSubstr("no-such-flag"));
}

// "Below MIN they wait, until --join-timeout, for others"
TEST_F(ElasticPrograms, TooFewEndAtTheJoinTimeout) {
  Command command;
  command.argv = Trainer("saved", {"--join-timeout=3s", "--job=alone",
                                   "--rank=0", "--workers=2:3"});
  command.argv.push_back("--coordinator=unix:" + job_.Path("socket"));
  auto trainer = Process::Start(std::move(command));
  ASSERT_THAT(trainer, IsOk());
  EXPECT_THAT((*trainer)->Wait(kLong), IsOkAndHolds(11))
      << (*trainer)->output();
}

// "more than MAX, or than there are shards, wait outside". Nobody starts the
// second again, which would come before the third by its rank.
TEST_F(ElasticPrograms, OneMoreThanMaxWaitsAndTakesTheNextPlace) {
  const auto run =
      Start({"--elastic=1:2", "--nproc-per-node=1"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  const auto second = StartByHand(5, "1:2");
  ASSERT_THAT(second->WaitForOutput("taking part", kLong), IsOk());
  const auto third = StartByHand(7, "1:2", {"--join-timeout=5m"});
  ASSERT_THAT(third->WaitForOutput("the job is full", kLong), IsOk());
  AwaitEpoch(*run);
  EXPECT_THAT(third->output(), Not(HasSubstr("taking part")));
  second->Signal(SIGKILL);
  EXPECT_THAT(third->WaitForOutput("taking part", kLong), IsOk())
      << third->output() << run->output();
  AwaitEpoch(*run);
  Stop(*third);
  ExpectUndisturbed(*run);
}

// "A newcomer whose model, settings or number of shards differ ends with what
// differs, and the others go on without it."
TEST_F(ElasticPrograms, NewcomersWithOtherFlagsAreRefusedAndNameThem) {
  const auto run =
      Start({"--elastic=1:6", "--nproc-per-node=2"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  int rank = 7;
  for (const Flags& other :
       {Flags{"--lr=0.002"}, Flags{"--seed=5"}, Flags{"--virtual-shards=16"},
        Flags{"--batch-size=5"}}) {
    const std::string flag = other[0].substr(2, other[0].find('=') - 2);
    const auto newcomer = StartByHand(rank++, "1:6", other);
    EXPECT_THAT(newcomer->Wait(kLong), IsOkAndHolds(3))
        << flag << newcomer->output() << run->output();
    // Shards, in words.
    if (flag != "virtual-shards") {
      EXPECT_THAT(newcomer->output(), HasSubstr(flag));
    }
  }
  AwaitEpoch(*run);
  ExpectUndisturbed(*run);
}

// The objects among the lines of `output`, each of which is one.
std::vector<nlohmann::json> ResultsOf(const std::string& output) {
  std::vector<nlohmann::json> results;
  std::istringstream lines(output);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.empty() || line[0] != '{') continue;
    results.push_back(nlohmann::json::parse(line, nullptr, false));
    EXPECT_FALSE(results.back().is_discarded()) << line;
  }
  return results;
}

// By step. A step that was repeated has the same loss.
std::map<int64_t, double> LossesOf(const std::vector<nlohmann::json>& results) {
  std::map<int64_t, double> losses;
  for (const auto& result : results) {
    if (!result.contains("loss") || !result.contains("step")) continue;
    const double loss = result["loss"].get<double>();
    const int64_t step = result["step"].get<int64_t>();
    EXPECT_EQ(losses.emplace(step, loss).first->second, loss) << step;
  }
  return losses;
}

// Results with --json are one object a line, and those of a training that
// nobody touched.
TEST_F(ElasticPrograms, JsonIsThatOfAnUndisturbedTraining) {
  const Flags json = {"--json", "--loss-every=10"};
  const auto run = Start({"--no-prefix", "--elastic=1:4", "--nproc-per-node=2"},
                         Trainer("saved", json));
  AwaitNextCheckpoint(*run);
  KillWorker(*run, "trainer", 0);
  if (HasFatalFailure()) return;
  AwaitBack(*run, "trainer0");
  AwaitEpoch(*run);
  Stop(*run);
  const Epochs trained = WholeEpochs(job_.Path("saved"), kSteps);
  ASSERT_GT(trained.count, 0);
  Flags whole = json;
  whole.push_back(trained.flag());
  const auto calm = Start({"--no-prefix", "--nproc-per-node=1"},
                          Trainer("undisturbed", whole));
  EXPECT_THAT(calm->Wait(kLong), IsOkAndHolds(0)) << calm->output();
  const auto wanted = LossesOf(ResultsOf(calm->output()));
  EXPECT_EQ(static_cast<int64_t>(wanted.size()), trained.count * kSteps / 10)
      << calm->output();
  const auto found = LossesOf(ResultsOf(run->output()));
  // The one that was killed may have taken a step and not told its loss.
  int untold = 0;
  for (const auto& [step, loss] : wanted) {
    const auto at = found.find(step);
    if (at == found.end()) {
      ++untold;
    } else {
      EXPECT_EQ(at->second, loss) << step;
    }
  }
  EXPECT_LE(untold, 1) << run->output();
  // The test of the model that was stopped.
  const auto results = ResultsOf(run->output());
  ASSERT_FALSE(results.empty());
  EXPECT_TRUE(results.back().contains("test_accuracy")) << run->output();
  EXPECT_TRUE(results.back().value("interrupted", false)) << run->output();
}

// "leaves after a step, a second later, with a checkpoint, and the others go
// on": `weft run` starts it again, and it takes part.
TEST_F(ElasticPrograms, OneTrainerThatIsAskedToEndLeavesAGoodModel) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  const pid_t trainer = FindWorker(*run, "trainer", 1);
  ASSERT_GT(trainer, 0);
  kill(trainer, SIGTERM);
  ASSERT_TRUE(Becomes([&] {
    const pid_t next = FindWorker(*run, "trainer", 1);
    return next > 0 && next != trainer;
  })) << run->output();
  AwaitBack(*run, "trainer1");
  AwaitEpoch(*run);
  ExpectUndisturbed(*run);
}

// "more ... than there are shards, wait outside": three trainers of two shards.
TEST_F(ElasticPrograms, MoreThanShardsDoNotDelayTheEnd) {
  const Flags flags = {"--virtual-shards=2", "--batch-size=16", "--epochs=60"};
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", flags));
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_EQ(Model() == Undisturbed(flags), true) << run->output();
}

TEST_F(ElasticPrograms, WithoutVirtualShardsIsRefused) {
  for (const Flags& flags :
       {Flags{"--strategy=ddp"}, Flags{"--strategy=ps", "--virtual-shards=8"},
        Flags{"--strategy=ddp", "--virtual-shards=6"}}) {
    Flags trainer = {Program("trainer"), "--data=" + job_.data};
    trainer.insert(trainer.end(), flags.begin(), flags.end());
    const auto run = Start({"--elastic=1:2", "--nproc-per-node=2"}, trainer);
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(2)) << run->output();
  }
}

TEST_F(ElasticPrograms, AskedToEndBelowMinEndsAtOnce) {
  const auto run =
      Start({"--elastic=2:3", "--nproc-per-node=1"}, Trainer("saved", {}));
  ASSERT_TRUE(Becomes([&] { return FindWorker(*run, "trainer", 0) > 0; }));
  absl::SleepFor(absl::Seconds(1));  // says nothing of its wait
  run->Signal(SIGTERM);
  EXPECT_THAT(run->Wait(absl::Seconds(25)), IsOkAndHolds(128 + SIGTERM))
      << run->output();
}

}  // namespace
}  // namespace weft::outside
