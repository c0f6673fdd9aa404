// A data-parallel job of `weft run --elastic` whose trainers and coordinator
// are killed and stopped at random times, while other trainers are started by
// hand. The test restarts no process. The final weights equal, bit for bit,
// those of a job without faults.
//
// The job has more epochs than it can train during the test. After the last
// fault it is stopped, resumed until the end of its epoch, and compared with a
// job without faults of the same number of epochs. So the speed of the machine
// does not matter.

#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"
#include "weft/tests/chaos/chaos_job.h"
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

struct Fault {
  Kind kind = Kind::kKill;
  FaultTimes times;
  int victim = 0;       // rank of a trainer of `weft run`
  int other = 0;        // another such rank
  bool chance = false;  // chooses between two variants of the fault
};

std::vector<Fault> DrawFaults(uint64_t seed, int count) {
  sim::Random random(seed);
  std::vector<Fault> faults;
  for (const int kind : DrawKinds(kKinds, count, random)) {
    Fault& fault = faults.emplace_back();
    fault.kind = static_cast<Kind>(kind);
    fault.times = FaultTimes::Draw(random);
    fault.victim = static_cast<int>(random.Below(kTrainers));
    fault.other =
        (fault.victim + 1 + static_cast<int>(random.Below(kTrainers - 1))) %
        kTrainers;
    fault.chance = random.Chance(0.5);
  }
  return faults;
}

std::string TrainerName(int rank) { return absl::StrCat("trainer", rank); }
constexpr char kCoordinator[] = "coordinator0";

// --- The job. ----------------------------------------------------------------

class ElasticChaos : public ChaosJob {
 protected:
  ElasticChaos() : ChaosJob(kKinds) {}

  Process& Start(const std::string& name, Flags argv) {
    return ChaosJob::Start(name, job_.Path("run"), std::move(argv));
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

  static bool IsRunning(const Process& process) {
    return kill(process.pid(), 0) == 0;
  }

  bool Awaits(absl::string_view what, absl::FunctionRef<bool()> condition) {
    return ChaosJob::Awaits(
        what, [&] { return IsRunning(*run_); }, condition);
  }

  // The processes of these workers, once all are older than kMinLifetime; empty
  // if that does not happen in time.
  std::vector<pid_t> AwaitVictims(const std::vector<std::string>& names) {
    std::vector<pid_t> found;
    const bool all =
        Awaits(absl::StrJoin(names, ", ") + " to be older than 2.5 s", [&] {
          NoteStarts();
          found = OldEnough(names);
          return !found.empty();
        });
    return all ? found : std::vector<pid_t>();
  }

  void NoteStarts() {
    for (int rank = 0; rank < kTrainers; ++rank) See(*run_, "trainer", rank);
    See(*run_, "coordinator", 0);
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
    const pid_t killed = seen(name).pid;
    pid_t next = -1;
    if (!Awaits("its replacement", [&] {
          next = FindWorker(*run_, "trainer", fault.victim);
          return next > 0 && next != killed;
        })) {
      return false;
    }
    absl::SleepFor(fault.times.part * absl::Seconds(1));
    kill(next, SIGKILL);
    Note(absl::StrCat("killed its replacement, process ", next));
    return true;
  }

  bool Stop(const Fault& fault, bool kills_another) {
    const std::vector<std::string> names = {TrainerName(fault.victim),
                                            TrainerName(fault.other)};
    const std::vector<pid_t> found = AwaitVictims(names);
    if (found.empty()) return false;
    const absl::Duration time = fault.times.part * absl::Seconds(3);
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
    absl::SleepFor(fault.times.part * absl::Seconds(1));
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
  for (const Fault& fault : DrawFaults(seed(), faults())) {
    NoteStarts();
    // The moment is what is tested: nothing is waited for.
    absl::SleepFor(fault.times.pause);
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
