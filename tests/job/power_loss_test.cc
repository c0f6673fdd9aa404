// A loss of power, as far as processes show one: all of a job, `weft run` too,
// is killed at one moment, while its trainer pushes to a logged table or while
// it is being started again. What was acknowledged is there once, and nothing
// is doubled: ledger_worker compares.
//
// What a disk loses that was not synced, //ps/replicated:table_log_test and
// //rendezvous/journal show.

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// `pid` and all that come from it.
void AddWithChildren(pid_t pid, std::vector<pid_t>& pids) {
  pids.push_back(pid);
  std::ifstream children(
      absl::StrCat("/proc/", pid, "/task/", pid, "/children"));
  pid_t child = 0;
  while (children >> child) AddWithChildren(child, pids);
}

// Whether it has ended, be it reaped or not.
bool HasEnded(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string number, name;
  char state = 'X';
  file >> number >> name >> state;
  return state == 'X' || state == 'Z';
}

class PowerLoss : public ::testing::TestWithParam<int> {
 protected:
  std::unique_ptr<Process> Start(int servers) const {
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + dir_.Path("")};
    command.argv = {
        Program("weft"),
        "run",
        "--job=ledger",
        "--replicas=2",
        "--silence=5s",  // a busy machine may hold one up
        "--table-log-dir=" + dir_.Path("logs"),
        "--coordinator-log=" + dir_.Path("coordinator.log"),
        "--role",
        absl::StrCat("ps=", servers, ":", Program("parameter_server")),
        "--role",
        absl::StrCat("trainer=1:", RunfilePath("tests/job/ledger_worker"), " ",
                     dir_.Path(""))};
    auto started = Process::Start(std::move(command));
    EXPECT_THAT(started, IsOk());
    return *std::move(started);
  }

  // All at once: none of them sees another end.
  void Cut(Process& run) {
    run.Signal(SIGSTOP);  // it starts nobody any more
    std::vector<pid_t> pids;
    AddWithChildren(run.pid(), pids);
    std::shuffle(pids.begin(), pids.end(), random_);
    for (const pid_t pid : pids) kill(pid, SIGKILL);
    EXPECT_THAT(run.Wait(kLong), IsOkAndHolds(128 + SIGKILL));
    EXPECT_TRUE(Becomes(
        [&] { return std::all_of(pids.begin(), pids.end(), HasEnded); }));
  }

  // Batches that were begun.
  int64_t Begun() const {
    std::error_code none;
    const auto size = std::filesystem::file_size(dir_.Path("batches"), none);
    return none ? 0 : static_cast<int64_t>(size);
  }

  TempDir dir_;
  std::mt19937 random_{static_cast<unsigned>(GetParam())};
};

TEST_P(PowerLoss, LosesAndDoublesNothingThatWasAcknowledged) {
  const int servers = 2 + GetParam() % 2;
  for (int time = 0; time < 3; ++time) {
    const auto run = Start(servers);
    const int64_t before = Begun();
    // The first time in the middle of pushes, then at any moment since it was
    // started again.
    if (time == 0 || random_() % 2 == 0) {
      const auto more = static_cast<int64_t>(1 + random_() % 200);
      ASSERT_TRUE(Becomes([&] { return Begun() >= before + more; }))
          << run->output();
    } else {
      absl::SleepFor(absl::Milliseconds(random_() % 5000));
    }
    Cut(*run);
    EXPECT_EQ(run->output().find("wanted"), std::string::npos) << run->output();
  }
  const auto run = Start(servers);
  const int64_t before = Begun();
  ASSERT_TRUE(Becomes([&] { return Begun() > before + 20; })) << run->output();
  WriteBytes(dir_.Path("end"), "");
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("counted "));
}

INSTANTIATE_TEST_SUITE_P(Seeds, PowerLoss, ::testing::Range(1, 5));

}  // namespace
}  // namespace weft::testing
