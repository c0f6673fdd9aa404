// A data-parallel job of `weft run --elastic` whose trainers and coordinator
// are killed and stopped at random times, while other trainers are started by
// hand. The test restarts no process. The final weights equal, bit for bit,
// those of a job without faults.
//
// The job has more epochs than it can train during the test. After the last
// fault it is stopped, resumed until the end of its epoch, and compared with a
// job without faults of the same number of epochs. So the speed of the machine
// does not matter.
//
//   WEFT_CHAOS_SEED    determines the faults, their order and their times
//   WEFT_CHAOS_FAULTS  the number of faults

#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

constexpr int kTrainers = 3;  // of `weft run`; a fourth is started by hand
constexpr int kShards = 8;
constexpr int kBatch = 4;
constexpr int64_t kStepsOfEpoch = Job::kTrainImages / (kShards * kBatch);
constexpr char kEndless[] = "--epochs=1000000";

// `weft run` does not restart a process that ends within 2 s of its start three
// times in a row. So a fault waits until its victim is older than that.
constexpr absl::Duration kMinLifetime = absl::Milliseconds(2500);
constexpr absl::Duration kPollInterval = absl::Milliseconds(10);

uint64_t NumberOf(const char* variable, uint64_t default_value) {
  const char* const value = getenv(variable);
  uint64_t number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number
                                                              : default_value;
}

// A different seed on each call, so that --gtest_repeat tries other faults.
uint64_t NextSeed() {
  static uint64_t seed = NumberOf("WEFT_CHAOS_SEED", 1);
  return seed++;
}

// --- The faults. -------------------------------------------------------------

enum class Kind {
  kKill,
  kKillTwo,
  kKillItAndItsReplacement,
  kKillCoordinator,
  kKillItAndCoordinator,
  kStopForAWhile,
  kStopAndKillAnother,
  kAskToLeave,
  kStartByHand,
  kStartByHandAndKill,
};
constexpr int kKinds = 10;

// Drawn completely before the job begins, so that a seed gives the same faults
// whatever the job does.
struct Fault {
  Kind kind = Kind::kKill;
  absl::Duration pause;  // before it
  int victim = 0;        // rank of a trainer of `weft run`
  int other = 0;         // another such rank
  bool chance = false;   // chooses between two variants of the fault
  double part = 0;       // [0, 1], fraction of the longest duration
};

// Uses each kind once before it repeats one.
std::vector<Fault> DrawFaults(uint64_t seed, int count) {
  sim::Random random(seed);
  std::vector<Fault> faults;
  std::vector<Kind> remaining;
  while (static_cast<int>(faults.size()) < count) {
    if (remaining.empty()) {
      for (int kind = 0; kind < kKinds; ++kind) {
        remaining.push_back(static_cast<Kind>(kind));
      }
    }
    Fault fault;
    const auto at = remaining.begin() + random.Below(remaining.size());
    fault.kind = *at;
    remaining.erase(at);
    fault.pause =
        random.Between(absl::Milliseconds(50), absl::Milliseconds(600));
    fault.victim = static_cast<int>(random.Below(kTrainers));
    fault.other =
        (fault.victim + 1 + static_cast<int>(random.Below(kTrainers - 1))) %
        kTrainers;
    fault.chance = random.Chance(0.5);
    // More short durations than long ones.
    fault.part = static_cast<double>(random.Below(1001)) / 1000;
    if (random.Chance(0.3)) fault.part *= fault.part * fault.part;
    faults.push_back(fault);
  }
  return faults;
}

std::string TrainerName(int rank) { return absl::StrCat("trainer", rank); }
constexpr char kCoordinator[] = "coordinator0";

// --- The job. ----------------------------------------------------------------

class ElasticChaos : public ::testing::Test {
 protected:
  ElasticChaos() { std::filesystem::create_directory(job_.Path("run")); }

  // Prints the seed, the faults and the output of all processes.
  void TearDown() override {
    if (!HasFailure()) return;
    std::cerr << "WEFT_CHAOS_SEED=" << seed_ << " WEFT_CHAOS_FAULTS=" << wanted_
              << "\n"
              << absl::StrJoin(events_, "\n") << "\n";
    for (const auto& [name, process] : processes_) {
      std::cerr << "--- " << name << "\n" << process->output() << "\n";
    }
  }

  Process& Start(const std::string& name, Flags argv) {
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + job_.Path("run"), "OMP_NUM_THREADS=1"};
    command.argv = std::move(argv);
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    processes_.emplace_back(name, *std::move(process));
    return *processes_.back().second;
  }

  // A trainer that leaves saves a checkpoint too, so --keep is large enough for
  // those of complete epochs to remain.
  Flags Trainer(const std::string& saved, const std::string& epochs) const {
    return {Program("trainer"),
            "--strategy=ddp",
            absl::StrCat("--virtual-shards=", kShards),
            absl::StrCat("--batch-size=", kBatch),
            "--data=" + job_.data,
            "--lr=0.001",
            "--checkpoint-dir=" + job_.Path(saved),
            "--keep=20",
            epochs};
  }

  Process& StartRun(const std::string& name, const Flags& run_flags,
                    const Flags& trainer) {
    Flags argv = {Program("weft"), "run", "--job=chaos"};
    argv.insert(argv.end(), run_flags.begin(), run_flags.end());
    argv.insert(argv.end(), trainer.begin(), trainer.end());
    return Start(name, std::move(argv));
  }

  Process& StartElastic(const std::string& name, const Flags& trainer) {
    return StartRun(name,
                    {absl::StrCat("--elastic=1:", kTrainers + 1),
                     absl::StrCat("--nproc-per-node=", kTrainers)},
                    trainer);
  }

  Process& StartByHand() {
    const int rank = 10 + newcomers_++;
    Flags argv = Trainer("saved", kEndless);
    for (const std::string& flag :
         {std::string("--job=chaos"), absl::StrCat("--rank=", rank),
          absl::StrCat("--workers=1:", kTrainers + 1),
          std::string("--coordinator-host=coordinator0"),
          "--coordinator=unix:" +
              job_.Path("run/weft/chaos/coordinator.sock")}) {
      argv.push_back(flag);
    }
    Note(absl::StrCat("trainer", rank, " is started by hand"));
    return Start(absl::StrCat("trainer", rank), std::move(argv));
  }

  // --- Faults. ---

  void Note(const std::string& what) {
    events_.push_back(absl::StrCat(
        absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()),
        absl::StrFormat(" (%7.3f s) ",
                        absl::ToDoubleSeconds(SteadyClock().Now() - begin_)),
        what));
  }

  static bool IsRunning(const Process& process) {
    return kill(process.pid(), 0) == 0;
  }

  // Waits until `condition` holds; false after kLong, or once the job has
  // ended.
  bool Awaits(const std::string& what, absl::FunctionRef<bool()> condition) {
    const Instant deadline = SteadyClock().Now() + kLong;
    while (!condition()) {
      if (!IsRunning(*run_) || SteadyClock().Now() > deadline) {
        Note(absl::StrCat("timed out waiting for ", what));
        return false;
      }
      absl::SleepFor(kPollInterval);
    }
    return true;
  }

  // The processes of these workers, once all are older than kMinLifetime; empty
  // if that does not happen in time.
  std::vector<pid_t> AwaitVictims(const std::vector<std::string>& names) {
    std::vector<pid_t> found;
    const bool all =
        Awaits(absl::StrJoin(names, ", ") + " to be older than 2.5 s", [&] {
          NoteStarts();
          found.clear();
          for (const std::string& name : names) {
            const auto& [pid, since] = since_[name];
            if (pid <= 0 || SteadyClock().Now() - since < kMinLifetime)
              return false;
            found.push_back(pid);
          }
          return true;
        });
    return all ? found : std::vector<pid_t>();
  }

  // Records when each process was first seen.
  void NoteStarts() {
    const auto note = [&](const std::string& name, pid_t pid) {
      auto& [known, since] = since_[name];
      if (pid != known) since = SteadyClock().Now();
      known = pid;
    };
    for (int rank = 0; rank < kTrainers; ++rank) {
      note(TrainerName(rank), FindWorker(*run_, "trainer", rank));
    }
    note(kCoordinator, FindWorker(*run_, "coordinator", 0));
  }

  // Kills all of them at once.
  bool Kill(const std::vector<std::string>& names) {
    const std::vector<pid_t> victims = AwaitVictims(names);
    for (const pid_t victim : victims) kill(victim, SIGKILL);
    Note(absl::StrCat("killed ", absl::StrJoin(names, " and "), ", process ",
                      absl::StrJoin(victims, " and ")));
    return !victims.empty();
  }

  bool KillItAndItsReplacement(const Fault& fault) {
    const std::string name = TrainerName(fault.victim);
    if (!Kill({name})) return false;
    const pid_t killed = since_[name].first;
    pid_t next = -1;
    if (!Awaits("its replacement", [&] {
          next = FindWorker(*run_, "trainer", fault.victim);
          return next > 0 && next != killed;
        })) {
      return false;
    }
    absl::SleepFor(fault.part * absl::Seconds(1));
    kill(next, SIGKILL);
    Note(absl::StrCat("killed its replacement, process ", next));
    return true;
  }

  bool Stop(const Fault& fault, bool kills_another) {
    const std::vector<std::string> names = {TrainerName(fault.victim),
                                            TrainerName(fault.other)};
    const std::vector<pid_t> found = AwaitVictims(names);
    if (found.empty()) return false;
    const absl::Duration time = fault.part * absl::Seconds(3);
    kill(found[0], SIGSTOP);
    Note(absl::StrCat("stopped ", names[0], ", process ", found[0], ", for ",
                      absl::FormatDuration(time)));
    absl::SleepFor(time / 2);
    if (kills_another) {
      kill(found[1], SIGKILL);
      Note(absl::StrCat("killed ", names[1], ", process ", found[1]));
    }
    absl::SleepFor(time / 2);
    kill(found[0], SIGCONT);
    return true;
  }

  bool AskToLeave(const Fault& fault) {
    const std::string name = TrainerName(fault.victim);
    const std::vector<pid_t> found = AwaitVictims({name});
    if (found.empty()) return false;
    kill(found[0], SIGTERM);
    Note(absl::StrCat("SIGTERM to ", name, ", process ", found[0]));
    return true;
  }

  // Kills the previous trainer that was started by hand: the job has room for
  // one.
  bool StartNewcomer() {
    KillNewcomer();
    newcomer_ = &StartByHand();
    const absl::Status takes_part =
        newcomer_->WaitForOutput("taking part", kLong);
    if (takes_part.ok()) return true;
    Note(absl::StrCat("timed out waiting for the new trainer: ",
                      takes_part.message()));
    return false;
  }

  bool StartByHandAndKill(const Fault& fault) {
    KillNewcomer();
    newcomer_ = &StartByHand();
    absl::SleepFor(fault.part * absl::Seconds(1));
    KillNewcomer();
    return true;
  }

  void KillNewcomer() {
    if (newcomer_ == nullptr) return;
    Note("killed the trainer that was started by hand");
    newcomer_->Signal(SIGKILL);
    EXPECT_THAT(newcomer_->Wait(kLong), IsOkAndHolds(128 + SIGKILL))
        << "it ended before it was killed";
    newcomer_ = nullptr;
  }

  bool Do(const Fault& fault) {
    const std::string victim = TrainerName(fault.victim);
    switch (fault.kind) {
      case Kind::kKill:
        if (newcomer_ == nullptr || !fault.chance) return Kill({victim});
        KillNewcomer();
        return true;
      case Kind::kKillTwo:
        return Kill({victim, TrainerName(fault.other)});
      case Kind::kKillItAndItsReplacement:
        return KillItAndItsReplacement(fault);
      case Kind::kKillCoordinator:
        return Kill({kCoordinator});
      case Kind::kKillItAndCoordinator:
        return fault.chance ? Kill({victim, kCoordinator})
                            : Kill({kCoordinator, victim});
      case Kind::kStopForAWhile:
        return Stop(fault, /*kills_another=*/false);
      case Kind::kStopAndKillAnother:
        return Stop(fault, /*kills_another=*/true);
      case Kind::kAskToLeave:
        return AskToLeave(fault);
      case Kind::kStartByHand:
        return StartNewcomer();
      case Kind::kStartByHandAndKill:
        return StartByHandAndKill(fault);
    }
    return false;
  }

  // --- Results. ---

  std::vector<std::string> Saved() const {
    return Checkpoints(job_.Path("saved"));
  }

  // The bytes of the model that was saved in this folder after `step` steps.
  std::string Model(const std::string& saved, int64_t step) const {
    for (const std::string& name : Checkpoints(job_.Path(saved))) {
      if (absl::EndsWith(name, absl::StrCat("-step-", step))) {
        return ReadBytes(absl::StrCat(job_.Path(saved), "/", name,
                                      "/shard-00000.safetensors"));
      }
    }
    ADD_FAILURE() << saved << " has no checkpoint of step " << step << ", only "
                  << absl::StrJoin(Checkpoints(job_.Path(saved)), ", ");
    return "";
  }

  const Job job_;
  const uint64_t seed_ = NextSeed();
  const int wanted_ = static_cast<int>(NumberOf("WEFT_CHAOS_FAULTS", kKinds));
  const Instant begin_ = SteadyClock().Now();
  std::vector<std::string> events_;
  std::vector<std::pair<std::string, std::unique_ptr<Process>>> processes_;
  std::map<std::string, std::pair<pid_t, Instant>> since_;
  Process* run_ = nullptr;
  Process* newcomer_ = nullptr;  // null: none runs
  int newcomers_ = 0;
};

int64_t StepOf(const std::string& checkpoint) {
  int64_t step = -1;
  EXPECT_TRUE(
      absl::SimpleAtoi(checkpoint.substr(checkpoint.rfind('-') + 1), &step))
      << checkpoint;
  return step;
}

TEST_F(ElasticChaos, AnyProcessOfAnElasticTrainingMayBeKilledAtAnyTime) {
  run_ = &StartElastic("weft run", Trainer("saved", kEndless));
  ASSERT_TRUE(Awaits("a checkpoint", [&] { return !Saved().empty(); }));
  for (const Fault& fault : DrawFaults(seed_, wanted_)) {
    NoteStarts();
    // The moment is what is tested: nothing is waited for.
    absl::SleepFor(fault.pause);
    ASSERT_TRUE(Do(fault));
    ASSERT_TRUE(IsRunning(*run_));
  }
  KillNewcomer();  // `weft run` would not ask it to stop
  const std::string newest = NewestName(job_.Path("saved"));
  ASSERT_TRUE(Awaits("the next checkpoint",
                     [&] { return NewestName(job_.Path("saved")) != newest; }));
  Note("SIGTERM to weft run");
  run_->Signal(SIGTERM);
  ASSERT_THAT(run_->Wait(kLong), IsOkAndHolds(128 + SIGTERM));

  const int64_t epochs = StepOf(NewestName(job_.Path("saved"))) / kStepsOfEpoch;
  const std::string complete = Model("saved", epochs * kStepsOfEpoch);
  Flags trainer = Trainer("saved", absl::StrCat("--epochs=", epochs + 1));
  trainer.push_back("--resume");
  EXPECT_THAT(StartElastic("weft run --resume", trainer).Wait(kLong),
              IsOkAndHolds(0));
  EXPECT_THAT(
      StartRun("undisturbed", {"--nproc-per-node=1"},
               Trainer("undisturbed", absl::StrCat("--epochs=", epochs + 1)))
          .Wait(10 * kLong),
      IsOkAndHolds(0));
  EXPECT_TRUE(complete == Model("undisturbed", epochs * kStepsOfEpoch))
      << epochs;
  EXPECT_TRUE(Model("saved", (epochs + 1) * kStepsOfEpoch) ==
              Model("undisturbed", (epochs + 1) * kStepsOfEpoch))
      << epochs;
  ExpectNothingLeft(job_.Path("run"));
}

}  // namespace
}  // namespace weft::testing
