// Any process of a job with parameter servers is killed or stopped at random
// moments, again and again, also while the last one is being replaced. Nobody
// helps by hand, and the job ends with the bits of one that nobody touched.
// elastic_chaos_test.cc does the same to a data-parallel job.

#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"
#include "weft/tests/chaos/chaos_job.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

struct Victim {
  std::string role;
  int rank = 0;
  std::string name() const { return absl::StrCat(role, rank); }
};

// --- Parameter servers -------------------------------------------------------

class Chaos : public ChaosJob {
 protected:
  Chaos() : ChaosJob(/*faults=*/10), random_(seed()) {}

  Process& StartRun(const std::string& name, const std::string& saved,
                    const std::string& epochs) {
    return Start(
        name, job_.Path("run"),
        {Program("weft"), "run", "--job=chaos", "--replicas=2",
         "--allow-trainer-exits=1", "--role",
         absl::StrCat("ps=3:", Program("parameter_server"),
                      " --checkpoint-dir=", saved),
         "--role",
         absl::StrCat("trainer=2:", Program("trainer"), " --data=", job_.data,
                      " --batch-size=", Job::kBatch, " --lr=0.001 ", epochs,
                      " ", kKeepSome, " --checkpoint-dir=", saved)});
  }

  // Hits processes of `run`, which trains until the test stops it (kForLong in
  // job.h), until all faults are done. `may_be_hit`: whether the victim does
  // not hold the only copy of something now. Returns how many were hit.
  int InjectFaults(const Process& run, const std::vector<Victim>& victims,
                   absl::FunctionRef<bool(const Victim&)> may_be_hit) {
    int hits = 0;
    const Instant end = SteadyClock().Now() + kLong;
    while (hits < faults() && SteadyClock().Now() < end) {
      // The moment is what is tested: nothing is waited for.
      absl::SleepFor(
          random_.Between(absl::Milliseconds(50), absl::Milliseconds(600)));
      const Victim& victim = victims[random_.Below(victims.size())];
      See(run, victim.role, victim.rank);
      const std::vector<pid_t> found = OldEnough({victim.name()});
      if (found.empty() || !may_be_hit(victim)) continue;
      Hit(victim, found[0]);
      ++hits;
    }
    return hits;
  }

 private:
  void Hit(const Victim& victim, pid_t pid) {
    if (random_.Chance(0.2)) {
      const absl::Duration time =
          random_.Between(absl::Milliseconds(20), absl::Milliseconds(500));
      Note(absl::StrCat("stopped ", victim.name(), " for ",
                        absl::FormatDuration(time)));
      kill(pid, SIGSTOP);
      absl::SleepFor(time);
      kill(pid, SIGCONT);
    } else {
      Note(absl::StrCat("killed ", victim.name()));
      kill(pid, SIGKILL);
    }
  }

  sim::Random random_;
};

// Whether the newest map that a server tells of has each partition on two
// servers.
bool IsReplicated(const std::string& output) {
  const size_t at = output.rfind("partition map: ");
  if (at == std::string::npos) return true;
  const std::string line = output.substr(at, output.find('\n', at) - at);
  return line.find("0 silent or gone") != std::string::npos &&
         line.find(" 0 without a backup in sync") != std::string::npos;
}

TEST_F(Chaos, AnyProcessOfReplicatedServersMayBeKilledAtAnyTime) {
  const std::string saved = job_.Path("saved");
  Process& run = StartRun("disturbed", saved, kForLong);
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }));
  int trainers = 2;
  size_t told = 0;  // of the output, when a server was hit
  const int hits = InjectFaults(
      run,
      {{"ps", 0}, {"ps", 1}, {"ps", 2}, {"coordinator", 0}, {"trainer", 1}},
      [&](const Victim& victim) {
        // The last trainer, and a server whose partitions may be on no other
        // one, hold the only copy of something.
        if (victim.role == "trainer") return --trainers > 0;
        if (victim.role != "ps") return true;
        const std::string output = run.output();
        const std::string news = output.substr(std::min(told, output.size()));
        if (told != 0 && news.find("partition map: ") == std::string::npos) {
          return false;
        }
        if (!IsReplicated(output)) return false;
        told = output.size();
        return true;
      });
  EXPECT_GE(hits, faults() / 2);

  // A whole epoch later it has the bits of a training that nobody touched.
  constexpr int64_t kSteps = 8;
  AwaitWholeEpoch(run, saved, kSteps);
  Stop(run);
  const Epochs trained = WholeEpochs(saved, kSteps);
  ASSERT_GT(trained.count, 0);
  const std::string whole = job_.Path("whole");
  EXPECT_THAT(StartRun("undisturbed", whole, trained.flag()).Wait(5 * kLong),
              IsOkAndHolds(0));
  const std::string file = "/shard-99999.safetensors";
  EXPECT_TRUE(ReadBytes(trained.checkpoint + file) ==
              ReadBytes(absl::StrCat(whole, "/", NewestName(whole), file)))
      << trained.checkpoint;
  // Servers of a training that lost a trainer and was not completed leave their
  // flight recordings.
}

}  // namespace
}  // namespace weft::testing
