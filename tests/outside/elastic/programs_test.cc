// `weft run --elastic` and its trainers as processes that are stopped, killed,
// asked to end and joined by others. What is expected is what docs/elastic.md,
// "Ranks that come and go", and docs/cli.md, "weft run", say.

#include <signal.h>

#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
using weft::testing::Becomes;
using weft::testing::Command;
using weft::testing::Flags;
using weft::testing::IsOk;
using weft::testing::IsOkAndHolds;
using weft::testing::Job;
using weft::testing::kLong;
using weft::testing::Process;
using weft::testing::Program;

// A job of `weft run --elastic`, on the data of `job`.
class ElasticPrograms : public ::testing::Test {
 protected:
  ElasticPrograms() { std::filesystem::create_directory(job_.Path("run")); }

  Flags Trainer(const std::string& saved, const Flags& more) const {
    Flags flags = {Program("trainer"), "--strategy=ddp", "--data=" + job_.data,
                   "--lr=0.001", "--checkpoint-dir=" + job_.Path(saved)};
    const auto add = [&](const std::string& name, const std::string& value) {
      for (const std::string& flag : more) {
        if (absl::StartsWith(flag, name)) return;
      }
      flags.push_back(name + value);
    };
    add("--virtual-shards=", "8");
    add("--batch-size=", "4");
    add("--epochs=", "60");
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
    if (!std::filesystem::exists(job_.Path(saved))) return {};
    return weft::testing::Checkpoints(job_.Path(saved));
  }
  void AwaitNextCheckpoint(const Process& run) const {
    const auto before = Saved();
    ASSERT_TRUE(Becomes([&] { return Saved() != before; })) << run.output();
  }

  // The bytes of the newest model in the folder.
  std::string Model(const std::string& saved = "saved") const {
    const auto names = Saved(saved);
    if (names.empty()) return "";
    std::filesystem::path newest(names.back());
    if (newest.is_relative()) newest = job_.Path(saved) / newest;
    return weft::testing::ReadBytes(newest / "shard-00000.safetensors");
  }
  // Of one trainer in no elastic job.
  std::string Undisturbed() const {
    const auto run = Start({"--nproc-per-node=1"}, Trainer("undisturbed", {}));
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
    return Model("undisturbed");
  }
  void ExpectUndisturbed(Process& run) const {
    EXPECT_THAT(run.Wait(kLong), IsOkAndHolds(0)) << run.output();
    EXPECT_EQ(Model() == Undisturbed(), true) << run.output();
  }

  const Job job_;
};

// Kills it, and waits until another is in its place.
void Kill(const Process& run, const std::string& role, int rank) {
  const pid_t pid = FindWorker(run, role, rank);
  ASSERT_GT(pid, 0) << role << rank << run.output();
  kill(pid, SIGKILL);
  ASSERT_TRUE(Becomes([&] {
    const pid_t next = FindWorker(run, role, rank);
    return next > 0 && next != pid;
  })) << run.output();
}

TEST_F(ElasticPrograms, TrainerThatStandsStillForAWhileHarmsNothing) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  const pid_t trainer = FindWorker(*run, "trainer", 1);
  ASSERT_GT(trainer, 0);
  kill(trainer, SIGSTOP);
  absl::SleepFor(absl::Seconds(3));
  kill(trainer, SIGCONT);
  ExpectUndisturbed(*run);
}

// "The exit code of `weft run` is ... 128 + signal if it was asked to end": and
// another number goes on to the same bits.
TEST_F(ElasticPrograms, StoppedJobIsResumedByAnotherNumber) {
  {
    const auto run =
        Start({"--elastic=2:4", "--nproc-per-node=3"}, Trainer("saved", {}));
    AwaitNextCheckpoint(*run);
    run->Signal(SIGTERM);
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGTERM)) << run->output();
    EXPECT_FALSE(std::filesystem::exists(job_.Path("run/weft/elastic")));
  }
  const auto run = Start({"--elastic=1:2", "--nproc-per-node=2"},
                         Trainer("saved", {"--resume"}));
  ExpectUndisturbed(*run);
}

TEST_F(ElasticPrograms, SameTrainerMayBeKilledFourTimes) {
  const auto run = Start({"--elastic=1:4", "--nproc-per-node=2"},
                         Trainer("saved", {"--epochs=500"}));
  for (int i = 0; i < 4; ++i) {
    AwaitNextCheckpoint(*run);
    Kill(*run, "trainer", 0);
    if (HasFatalFailure()) return;
    // Three that end within 2 s in a row end the job.
    if (i == 1) absl::SleepFor(absl::Seconds(2.5));
  }
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  const auto other =
      Start({"--nproc-per-node=1"}, Trainer("undisturbed", {"--epochs=500"}));
  EXPECT_THAT(other->Wait(kLong), IsOkAndHolds(0));
  EXPECT_EQ(Model() == Model("undisturbed"), true) << run->output();
}

TEST_F(ElasticPrograms, TrainersKilledWhileAnotherIsTakenIn) {
  const auto run = Start({"--elastic=1:4", "--nproc-per-node=3"},
                         Trainer("saved", {"--epochs=400"}));
  for (const int ms : {20, 150, 400}) {
    AwaitNextCheckpoint(*run);
    Kill(*run, "trainer", 1);
    if (HasFatalFailure()) return;
    absl::SleepFor(absl::Milliseconds(ms));
    Kill(*run, "trainer", 0);
    if (HasFatalFailure()) return;
    absl::SleepFor(absl::Seconds(2.5));
  }
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  const auto other =
      Start({"--nproc-per-node=1"}, Trainer("undisturbed", {"--epochs=400"}));
  EXPECT_THAT(other->Wait(kLong), IsOkAndHolds(0));
  EXPECT_EQ(Model() == Model("undisturbed"), true) << run->output();
}

// "a process of its own that is started again if it ends": with a trainer that
// dies right after it.
TEST_F(ElasticPrograms, CoordinatorMayBeKilled) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  Kill(*run, "coordinator", 0);
  if (HasFatalFailure()) return;
  Kill(*run, "trainer", 2);
  if (HasFatalFailure()) return;
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

// "more than MAX, or than there are shards, wait outside"
TEST_F(ElasticPrograms, OneMoreThanMaxWaitsAndTakesTheNextPlace) {
  const auto run = Start({"--elastic=1:2", "--nproc-per-node=2"},
                         Trainer("saved", {"--epochs=200"}));
  AwaitNextCheckpoint(*run);
  const auto third =
      StartByHand(7, "1:2", {"--epochs=200", "--join-timeout=30s"});
  absl::SleepFor(absl::Seconds(2));
  EXPECT_THAT(third->output(), Not(HasSubstr("taking part")));
  Kill(*run, "trainer", 1);
  EXPECT_THAT(third->WaitForOutput("taking part", kLong), IsOk())
      << third->output() << run->output();
  // It or the one that was killed may be outside at the end.
  EXPECT_THAT(run->Wait(kLong), IsOk()) << run->output();
  EXPECT_THAT(third->Wait(kLong), IsOk()) << third->output();
  const auto other =
      Start({"--nproc-per-node=1"}, Trainer("undisturbed", {"--epochs=200"}));
  EXPECT_THAT(other->Wait(kLong), IsOkAndHolds(0));
  EXPECT_EQ(Model() == Model("undisturbed"), true)
      << run->output() << third->output();
}

// "A newcomer whose model, settings or number of shards differ ends with what
// differs, and the others go on without it."
TEST_F(ElasticPrograms, NewcomersWithOtherFlagsAreRefusedAndNameThem) {
  const auto run = Start({"--elastic=1:6", "--nproc-per-node=2"},
                         Trainer("saved", {"--epochs=200"}));
  AwaitNextCheckpoint(*run);
  int rank = 7;
  for (const Flags& other :
       {Flags{"--lr=0.002"}, Flags{"--seed=5"}, Flags{"--virtual-shards=16"},
        Flags{"--batch-size=5"}}) {
    const std::string flag = other[0].substr(2, other[0].find('=') - 2);
    Flags flags = other;
    flags.push_back("--epochs=200");
    const auto newcomer = StartByHand(rank++, "1:6", flags);
    EXPECT_THAT(newcomer->Wait(kLong), IsOkAndHolds(3))
        << flag << newcomer->output() << run->output();
    // Shards, in words.
    if (flag != "virtual-shards") {
      EXPECT_THAT(newcomer->output(), HasSubstr(flag));
    }
  }
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  const auto other =
      Start({"--nproc-per-node=1"}, Trainer("undisturbed", {"--epochs=200"}));
  EXPECT_THAT(other->Wait(kLong), IsOkAndHolds(0));
  EXPECT_EQ(Model() == Model("undisturbed"), true) << run->output();
}

// Results with --json are one object a line, and those of a training that
// nobody touched.
TEST_F(ElasticPrograms, JsonIsThatOfAnUndisturbedTraining) {
  const auto results_of = [](const std::string& output) {
    std::vector<nlohmann::json> results;
    std::istringstream lines(output);
    std::string line;
    while (std::getline(lines, line)) {
      if (line.empty() || line[0] != '{') continue;
      results.push_back(nlohmann::json::parse(line, nullptr, false));
      EXPECT_FALSE(results.back().is_discarded()) << line;
    }
    return results;
  };
  const auto losses_of = [](const std::vector<nlohmann::json>& results) {
    std::map<int64_t, double> losses;
    for (const auto& result : results) {
      if (!result.contains("loss") || !result.contains("step")) continue;
      const auto [at, is_new] = losses.emplace(result["step"].get<int64_t>(),
                                               result["loss"].get<double>());
      // A step that was repeated has the same loss.
      EXPECT_EQ(at->second, result["loss"].get<double>()) << is_new;
    }
    return losses;
  };
  const auto accuracies_of = [](const std::vector<nlohmann::json>& results) {
    std::vector<double> accuracies;
    for (const auto& result : results) {
      if (result.contains("test_accuracy")) {
        accuracies.push_back(result["test_accuracy"].get<double>());
      }
    }
    return accuracies;
  };
  const Flags json = {"--json", "--loss-every=10"};
  const auto run = Start({"--no-prefix", "--elastic=1:4", "--nproc-per-node=2"},
                         Trainer("saved", json));
  AwaitNextCheckpoint(*run);
  Kill(*run, "trainer", 0);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  const auto calm = Start({"--no-prefix", "--nproc-per-node=1"},
                          Trainer("undisturbed", json));
  EXPECT_THAT(calm->Wait(kLong), IsOkAndHolds(0)) << calm->output();
  const auto found = results_of(run->output());
  const auto wanted = results_of(calm->output());
  EXPECT_EQ(losses_of(found), losses_of(wanted)) << run->output();
  EXPECT_EQ(losses_of(wanted).size(), 48u) << calm->output();
  EXPECT_EQ(accuracies_of(found), accuracies_of(wanted)) << run->output();
}

// "once true, training ends as if that had been the last one": for all, whoever
// was asked; or `weft run` starts again who has ended so, and the training is
// completed. Never another model, nor an end that is none of both.
TEST_F(ElasticPrograms, OneTrainerThatIsAskedToEndLeavesAGoodModel) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"}, Trainer("saved", {}));
  AwaitNextCheckpoint(*run);
  const pid_t trainer = FindWorker(*run, "trainer", 1);
  ASSERT_GT(trainer, 0);
  kill(trainer, SIGTERM);
  const auto code = run->Wait(kLong);
  ASSERT_THAT(code, IsOk()) << run->output();
  if (*code != 0) {
    EXPECT_EQ(*code, 128 + SIGTERM) << run->output();
    const auto next = Start({"--elastic=1:4", "--nproc-per-node=2"},
                            Trainer("saved", {"--resume"}));
    ExpectUndisturbed(*next);
  } else {
    EXPECT_EQ(Model() == Undisturbed(), true) << run->output();
  }
}

// "more ... than there are shards, wait outside": three trainers of two shards.
TEST_F(ElasticPrograms, MoreThanShardsDoNotDelayTheEnd) {
  const auto run =
      Start({"--elastic=1:4", "--nproc-per-node=3"},
            Trainer("saved", {"--virtual-shards=2", "--batch-size=16"}));
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  const auto other =
      Start({"--nproc-per-node=1"},
            Trainer("undisturbed", {"--virtual-shards=2", "--batch-size=16"}));
  EXPECT_THAT(other->Wait(kLong), IsOkAndHolds(0));
  EXPECT_EQ(Model() == Model("undisturbed"), true) << run->output();
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
