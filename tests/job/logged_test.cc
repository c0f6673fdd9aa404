// kill -9 of all servers of a job at once, and of one after the other, whose
// table is logged: `weft run` starts them again, and what was acknowledged is
// there once.

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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/sim/random.h"
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

// Trainers that count until the file `end` is there.
std::unique_ptr<Process> StartCounting(const Job& job, int servers,
                                       int trainers,
                                       const std::string& staleness,
                                       const std::string& end) {
  std::filesystem::create_directory(job.Path("run"));
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
  EXPECT_THAT(started, IsOk());
  return *std::move(started);
}

// They go on, and what they have counted is there once.
void ExpectCounted(const Job& job, Process& run, const std::string& end) {
  const int64_t before = Pushed(run);
  ASSERT_TRUE(Becomes([&] { return Pushed(run) > before; })) << run.output();
  WriteBytes(end, "");
  EXPECT_THAT(run.Wait(kLong), IsOkAndHolds(0)) << run.output();
  EXPECT_THAT(run.output(), HasSubstr("counted "));
  EXPECT_THAT(run.output(), HasSubstr("read the log of tables"));
  ExpectNothingLeft(job.Path("run"));
}

// Trainers count while all servers are killed, twice.
void CountThroughDeathsOfAllServers(int servers, int trainers,
                                    const std::string& staleness) {
  const Job job;
  const std::string end = job.Path("end");
  const auto run = StartCounting(job, servers, trainers, staleness, end);
  for (int time = 0; time < 2; ++time) {
    const int64_t before = Pushed(*run);
    ASSERT_TRUE(Becomes([&] { return Pushed(*run) > before; }))
        << run->output();
    KillAllServers(*run, servers);
  }
  ExpectCounted(job, *run, end);
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

// Also before the last one has copies of all again. Nobody helps by hand.
TEST(Logged, RandomServerIsKilledEachFiveSecondsForLong) {
  const char* const set = std::getenv("WEFT_SOAK_SECONDS");
  const int kills = (set == nullptr ? 15 : std::atoi(set)) / 5;
  sim::Random random(/*seed=*/1);
  const Job job;
  const std::string end = job.Path("end");
  const auto run = StartCounting(job, 3, 1, "", end);
  ASSERT_TRUE(Becomes([&] { return Pushed(*run) > 0; })) << run->output();
  for (int i = 0; i < kills; ++i) {
    const int victim = static_cast<int>(random.Below(3));
    SCOPED_TRACE(absl::StrCat("kill ", i, " of ", kills, ": ps", victim));
    const int64_t before = Pushed(*run);
    pid_t pid = -1;
    ASSERT_TRUE(Becomes([&] {
      pid = FindWorker(*run, "ps", victim);
      return pid > 0;
    })) << run->output();
    kill(pid, SIGKILL);
    absl::SleepFor(absl::Seconds(5));  // what is tested is the pace
    ASSERT_TRUE(Becomes([&] { return Pushed(*run) > before; }))
        << run->output();
  }
  ExpectCounted(job, *run, end);
}

}  // namespace
}  // namespace weft::testing
