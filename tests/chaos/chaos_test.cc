// Any process of a job with parameter servers is killed or stopped at random
// moments, again and again, also while the last one is being replaced. Nobody
// helps by hand, and the job ends with the bits of one that nobody touched.
// elastic_chaos_test.cc does the same to a data-parallel job.
//
//   WEFT_CHAOS_SEED    the moments and the victims; printed, so that a failure
//                      can be tried again
//   WEFT_CHAOS_FAULTS  how many of them

#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

uint64_t NumberOf(const char* variable, uint64_t otherwise) {
  const char* const value = getenv(variable);
  uint64_t number = 0;
  return value != nullptr && absl::SimpleAtoi(value, &number) ? number
                                                              : otherwise;
}

// Another one each time, so that repeats try other moments.
uint64_t NextSeed() {
  static uint64_t seed = NumberOf("WEFT_CHAOS_SEED", 1);
  return seed++;
}

// A process that is killed within 2 s of its start three times in a row is not
// started again: here none is hit so soon.
constexpr absl::Duration kSpared = absl::Milliseconds(2500);

struct Victim {
  std::string role;
  int rank = 0;
  std::string name() const { return absl::StrCat(role, rank); }
};

// Hits processes of `run`, which trains until the test stops it (kForLong in
// job.h), until `faults` are done.
class Storm {
 public:
  Storm(const Process& run, uint64_t seed) : run_(run), random_(seed) {}

  // `may_be_hit`: whether the victim does not hold the only copy of something
  // now. Returns how many were hit.
  int Rage(const std::vector<Victim>& victims, int faults,
           absl::FunctionRef<bool(const Victim&)> may_be_hit) {
    int hits = 0;
    const Instant end = SteadyClock().Now() + kLong;
    while (hits < faults && SteadyClock().Now() < end) {
      Pause(random_.Between(absl::Milliseconds(50), absl::Milliseconds(600)));
      const Victim& victim = victims[random_.Below(victims.size())];
      if (Hit(victim, may_be_hit)) ++hits;
    }
    return hits;
  }
  const std::string& story() const { return story_; }

 private:
  bool Hit(const Victim& victim,
           absl::FunctionRef<bool(const Victim&)> may_be_hit) {
    const pid_t pid = FindWorker(run_, victim.role, victim.rank);
    const Instant now = SteadyClock().Now();
    if (pid <= 0) return false;
    auto& [known, since] = seen_[victim.name()];
    if (known != pid) {
      known = pid;
      since = now;
    }
    if (now - since < kSpared || !may_be_hit(victim)) return false;
    if (random_.Chance(0.2)) {
      const absl::Duration time =
          random_.Between(absl::Milliseconds(20), absl::Milliseconds(500));
      absl::StrAppend(&story_, " stop ", victim.name(), " for ",
                      absl::FormatDuration(time), ";");
      kill(pid, SIGSTOP);
      Pause(time);
      kill(pid, SIGCONT);
    } else {
      absl::StrAppend(&story_, " kill ", victim.name(), ";");
      kill(pid, SIGKILL);
    }
    return true;
  }

  // The moment is what is tested: nothing is waited for.
  static void Pause(absl::Duration time) { absl::SleepFor(time); }

  const Process& run_;
  sim::Random random_;
  std::map<std::string, std::pair<pid_t, Instant>> seen_;
  std::string story_;
};

std::unique_ptr<Process> StartRun(const Job& job, Flags argv) {
  std::filesystem::create_directory(job.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run"), "OMP_NUM_THREADS=1"};
  command.argv = std::move(argv);
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

void AwaitFirstCheckpoint(const Process& run, const std::string& saved) {
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << run.output();
}

// Awaits a whole epoch after the storm, and stops the training: it has the bits
// of one that nobody touched, which `start` starts in a folder of its own.
void ExpectUndisturbed(
    Process& run, const Job& job, const std::string& saved, int64_t steps,
    const std::string& file,
    absl::FunctionRef<std::unique_ptr<Process>(const std::string& directory,
                                               const std::string& epochs)>
        start) {
  AwaitWholeEpoch(run, saved, steps);
  Stop(run);
  const Epochs trained = WholeEpochs(saved, steps);
  ASSERT_GT(trained.count, 0) << run.output();
  const std::string whole = job.Path("whole");
  const auto undisturbed = start(whole, trained.flag());
  EXPECT_THAT(undisturbed->Wait(5 * kLong), IsOkAndHolds(0))
      << undisturbed->output();
  EXPECT_TRUE(ReadBytes(absl::StrCat(trained.checkpoint, "/", file)) ==
              ReadBytes(absl::StrCat(whole, "/", NewestName(whole), "/", file)))
      << trained.checkpoint << "\n"
      << run.output();
}

// --- Parameter servers -------------------------------------------------------

Flags ServersRun(const Job& job, const std::string& saved,
                 const std::string& epochs) {
  return {Program("weft"),
          "run",
          "--job=chaos",
          "--replicas=2",
          "--allow-trainer-exits=1",
          "--role",
          absl::StrCat("ps=3:", Program("parameter_server"),
                       " --checkpoint-dir=", saved),
          "--role",
          absl::StrCat("trainer=2:", Program("trainer"), " --data=", job.data,
                       " --batch-size=", Job::kBatch, " --lr=0.001", " ",
                       epochs, " ", kKeepSome, " --checkpoint-dir=", saved)};
}

// Whether the newest map that a server tells of has each partition on two
// servers.
bool IsReplicated(const std::string& output) {
  const size_t at = output.rfind("partition map: ");
  if (at == std::string::npos) return true;
  const std::string line = output.substr(at, output.find('\n', at) - at);
  return line.find("0 silent or gone") != std::string::npos &&
         line.find(" 0 without a backup in sync") != std::string::npos;
}

TEST(Chaos, AnyProcessOfReplicatedServersMayBeKilledAtAnyTime) {
  const Job job;
  const uint64_t seed = NextSeed();
  SCOPED_TRACE(absl::StrCat("WEFT_CHAOS_SEED=", seed));
  const std::string saved = job.Path("saved");
  const auto run = StartRun(job, ServersRun(job, saved, kForLong));
  AwaitFirstCheckpoint(*run, saved);
  Storm storm(*run, seed);
  const int wanted = static_cast<int>(NumberOf("WEFT_CHAOS_FAULTS", 10));
  int trainers = 2;
  size_t told = 0;  // of the output, when a server was hit
  const int hits = storm.Rage(
      {{"ps", 0}, {"ps", 1}, {"ps", 2}, {"coordinator", 0}, {"trainer", 1}},
      wanted, [&](const Victim& victim) {
        // The last trainer, and a server whose partitions may be on no other
        // one, hold the only copy of something.
        if (victim.role == "trainer") return --trainers > 0;
        if (victim.role != "ps") return true;
        const std::string output = run->output();
        const std::string news = output.substr(std::min(told, output.size()));
        if (told != 0 && news.find("partition map: ") == std::string::npos) {
          return false;
        }
        if (!IsReplicated(output)) return false;
        told = output.size();
        return true;
      });
  SCOPED_TRACE(storm.story());
  EXPECT_GE(hits, wanted / 2);
  ExpectUndisturbed(
      *run, job, saved, /*steps=*/8, "shard-99999.safetensors",
      [&](const std::string& directory, const std::string& epochs) {
        return StartRun(job, ServersRun(job, directory, epochs));
      });
  // Servers of a training that lost a trainer and was not completed leave their
  // flight recordings.
}

}  // namespace
}  // namespace weft::testing
