#include <signal.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kSoon = absl::Seconds(20);

Command Shell(std::string script, std::vector<std::string> env = {}) {
  return {{"/bin/sh", "-c", std::move(script)}, std::move(env)};
}

TEST(RunRanks, KeepsStatusesInOrderOfRank) {
  const auto statuses = RunRanks(3, [](int rank) -> absl::Status {
    if (rank == 1) throw std::runtime_error("broken");
    if (rank == 2) return absl::NotFoundError("two");
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses[0], IsOk());
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kInternal, "broken"));
  EXPECT_THAT(statuses[2], StatusIs(absl::StatusCode::kNotFound, "two"));
}

TEST(StatusMatchers, TellTheDifference) {
  EXPECT_THAT(absl::StatusOr<int>(3), IsOkAndHolds(3));
  EXPECT_THAT(absl::StatusOr<int>(3), Not(IsOkAndHolds(4)));
  EXPECT_THAT(absl::NotFoundError("x"), Not(IsOk()));
  EXPECT_THAT(absl::NotFoundError("x"),
              Not(StatusIs(absl::StatusCode::kNotFound, "y")));
}

TEST(TempDir, IsGoneAfterItsScope) {
  std::string path;
  {
    TempDir dir;
    path = dir.path();
    ASSERT_TRUE(std::filesystem::create_directory(dir.Path("inside")));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Process, GathersOutputAndExitCode) {
  WEFT_ASSERT_OK_AND_ASSIGN(
      auto process, Process::Start(Shell("echo $GREETING; echo low >&2; exit 3",
                                         {"GREETING=hello"})));
  EXPECT_THAT(process->Wait(kSoon), IsOkAndHolds(3));
  EXPECT_EQ(process->output(), "hello\nlow\n");
}

TEST(Process, SaysThatAProgramIsMissing) {
  WEFT_ASSERT_OK_AND_ASSIGN(auto process,
                            Process::Start({{"/no/such/program"}, {}}));
  EXPECT_THAT(process->Wait(kSoon), IsOkAndHolds(127));
  EXPECT_THAT(process->output(), HasSubstr("cannot run /no/such/program"));
}

TEST(Process, EndsBySignal) {
  WEFT_ASSERT_OK_AND_ASSIGN(
      auto process,
      Process::Start(Shell("echo ready; exec tail -f /dev/null")));
  ASSERT_THAT(process->WaitForOutput("ready", kSoon), IsOk());
  EXPECT_THAT(process->Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "ready"));
  process->Signal(SIGTERM);
  EXPECT_THAT(process->Wait(kSoon), IsOkAndHolds(128 + SIGTERM));
}

TEST(Process, WaitForOutputEndsWithTheProcess) {
  WEFT_ASSERT_OK_AND_ASSIGN(auto process, Process::Start(Shell("echo no")));
  EXPECT_THAT(process->WaitForOutput("yes", kSoon),
              StatusIs(absl::StatusCode::kFailedPrecondition, "no"));
}

TEST(Process, EndsThoughItsChildHoldsItsOutput) {
  WEFT_ASSERT_OK_AND_ASSIGN(
      auto process,
      Process::Start(Shell("tail -f /dev/null & echo $!; exit 4")));
  EXPECT_THAT(process->Wait(kSoon), IsOkAndHolds(4));
  const pid_t orphan = std::stoi(process->output());
  EXPECT_EQ(kill(orphan, SIGKILL), 0);
}

TEST(SpawnWorkers, KillsThemAtTheEndOfScope) {
  pid_t pid = 0;
  {
    WEFT_ASSERT_OK_AND_ASSIGN(auto workers, SpawnWorkers(2, [](int rank) {
                                return Shell("echo rank " +
                                             std::to_string(rank) +
                                             "; exec tail -f /dev/null");
                              }));
    ASSERT_THAT(workers[1]->WaitForOutput("rank 1", kSoon), IsOk());
    pid = workers[1]->pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);  // reaped: no such process
}

}  // namespace
}  // namespace weft::testing
