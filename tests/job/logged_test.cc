// kill -9 of all servers of a job at once, whose table is logged: `weft run`
// starts them again, and what was acknowledged is there once.

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/aftermath.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

// The last number that the trainer has told.
int64_t Pushed(const Process& run) {
  const std::string output = run.output();
  const size_t at = output.rfind("pushed ");
  return at == output.npos ? 0 : std::atoll(output.c_str() + at + 7);
}

void KillAllServers(const Process& run, int servers) {
  std::vector<pid_t> pids;
  for (int i = 0; i < servers; ++i) {
    pid_t pid = -1;
    EXPECT_TRUE(Becomes([&] {
      pid = FindWorker(run, "ps", i);
      return pid > 0;
    })) << run.output();
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) kill(pid, SIGKILL);
}

// Trainers count while all servers are killed, twice.
void CountThroughDeathsOfAllServers(int servers, int trainers,
                                    const std::string& staleness) {
  const Job job;
  std::filesystem::create_directory(job.Path("run"));
  const std::string end = job.Path("end");
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  command.argv = {
      Program("weft"),
      "run",
      "--replicas=2",
      "--table-log-dir=" + job.Path("logs"),
      "--role",
      absl::StrCat("ps=", servers, ":", Program("parameter_server")),
      "--role",
      absl::StrCat("trainer=", trainers, ":",
                   RunfilePath("tests/job/counting_worker"), " ", end, " ",
                   staleness)};
  auto started = Process::Start(std::move(command));
  ASSERT_THAT(started, IsOk());
  Process& run = **started;
  for (int time = 0; time < 2; ++time) {
    const int64_t before = Pushed(run);
    ASSERT_TRUE(Becomes([&] { return Pushed(run) > before; })) << run.output();
    KillAllServers(run, servers);
  }
  const int64_t before = Pushed(run);
  ASSERT_TRUE(Becomes([&] { return Pushed(run) > before; })) << run.output();
  WriteBytes(end, "");
  EXPECT_THAT(run.Wait(kLong), IsOkAndHolds(0)) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("counted "));
  EXPECT_THAT(run.output(), HasSubstr("read the log of tables"));
  ExpectNothingLeft(job.Path("run"));
}

TEST(Logged, KillOfAllServersLosesAndDoublesNoAcknowledgedPush) {
  for (const int servers : {2, 3}) {
    CountThroughDeathsOfAllServers(servers, 1, "");
  }
}

// The clocks are there again: the bound holds, and nobody waits for ever.
TEST(Logged, KillOfAllServersKeepsTheClocksOfATableWithAStaleness) {
  CountThroughDeathsOfAllServers(2, 2, "1");
}

}  // namespace
}  // namespace weft::testing
