// ChaosJob: a job whose processes a test kills and stops at random times.
//
//   WEFT_CHAOS_SEED    determines the faults, their order and their times
//   WEFT_CHAOS_FAULTS  the number of faults

#ifndef WEFT_TESTS_CHAOS_CHAOS_JOB_H_
#define WEFT_TESTS_CHAOS_CHAOS_JOB_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/sim/random.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/spawn.h"

namespace weft::testing {

// What every fault has. All faults are drawn before the job begins, so that a
// seed gives the same ones whatever the job does.
struct FaultTimes {
  absl::Duration pause;  // before it
  double part = 0;       // [0, 1], fraction of the longest duration

  // More short durations than long ones.
  static FaultTimes Draw(sim::Random& random);
};

// `count` numbers of kinds, [0, kinds): each kind once before one is repeated.
std::vector<int> DrawKinds(int kinds, int count, sim::Random& random);

class ChaosJob : public ::testing::Test {
 protected:
  // `faults`: their number where WEFT_CHAOS_FAULTS does not say it.
  explicit ChaosJob(int faults);
  // After a failure: prints the seed, the faults and the output of all
  // processes.
  void TearDown() override;

  uint64_t seed() const { return seed_; }
  int faults() const { return faults_; }

  // The process lives as long as this; its XDG_RUNTIME_DIR is `directory`,
  // which is made.
  Process& Start(const std::string& name, const std::string& directory,
                 Flags argv, std::vector<std::string> env = {});
  // The output of each process that was started.
  std::vector<std::string> Outputs() const;

  // Adds a line to what TearDown prints.
  void Note(absl::string_view what);

  // Waits until `condition` holds; false after kLong, or once `is_running` does
  // not hold.
  bool Awaits(absl::string_view what, absl::FunctionRef<bool()> is_running,
              absl::FunctionRef<bool()> condition);

  struct Seen {
    pid_t pid = -1;     // none: not positive
    Instant since;      // when it was seen first
    size_t offset = 0;  // of what is told after that in its run's output
  };
  // Records that worker `rank` of `role` under `run` is this process now.
  void See(const Process& run, const std::string& role, int rank);
  // The worker with this name, of role and rank: "ps0".
  const Seen& seen(const std::string& name) { return seen_[name]; }
  // The processes of these workers; empty if one does not run, or has not for
  // so long that `weft run` certainly starts it again.
  std::vector<pid_t> OldEnough(const std::vector<std::string>& names);

  const Job job_;

 private:
  const uint64_t seed_;
  const int faults_;
  const Instant begin_ = SteadyClock().Now();
  std::vector<std::string> events_;
  std::vector<std::pair<std::string, std::unique_ptr<Process>>> processes_;
  std::map<std::string, Seen> seen_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_CHAOS_CHAOS_JOB_H_
