// JobOfRanks: `weft run`, `weft coordinator` and ranks in a folder of their
// own, and the processes that they start.

#ifndef WEFT_TESTS_OUTSIDE_COORDINATOR_JOB_OF_RANKS_H_
#define WEFT_TESTS_OUTSIDE_COORDINATOR_JOB_OF_RANKS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {

using Words = std::vector<std::string>;

class JobOfRanks : public ::testing::Test {
 protected:
  static constexpr absl::Duration kLong = absl::Seconds(100);

  JobOfRanks();
  // Nothing that was started here is left, nor a file of it.
  void TearDown() override;

  std::string Path(const std::string& name) const { return dir_.Path(name); }
  void Touch(const std::string& name) const;
  bool IsThere(const std::string& name) const;

  // "weft" and "rank" stand for the programs.
  std::unique_ptr<Process> Start(Words words, Words environment = {}) const;
  // `weft run` of two ranks with these words.
  std::unique_ptr<Process> Run(const Words& flags, const Words& words,
                               const Words& environment = {}) const;
  struct Ended {
    int code = -1;
    std::string output;
    absl::Duration took;
  };
  Ended Finish(Process& process) const;
  Ended Do(Words words, Words environment = {}) const;

  // The processes that `launcher` has started: its coordinator, another one
  // than `but`, once there is one, or 0 if there is none now; the rank that has
  // this number.
  pid_t CoordinatorOf(const Process& launcher, pid_t but = 0) const;
  pid_t CoordinatorNow(const Process& launcher, pid_t but) const;
  pid_t RankOf(const Process& launcher, int rank) const;
  // All that has the mark of this test, but what has ended.
  std::vector<pid_t> Running() const;
  // What is in the directory where jobs meet by default.
  std::vector<std::string> Left() const;

 private:
  TempDir dir_;
};

}  // namespace weft::testing

#endif  // WEFT_TESTS_OUTSIDE_COORDINATOR_JOB_OF_RANKS_H_
