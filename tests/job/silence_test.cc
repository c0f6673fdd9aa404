// How long silence is borne, by one flag of `weft run`.

#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

std::unique_ptr<Process> StartRun(const Job& job, const Flags& flags,
                                  const Flags& of_trainers) {
  std::filesystem::create_directory(job.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  command.argv = {Program("weft"), "run", "--nproc-per-node=3"};
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  for (const std::string& word :
       {Program("trainer"), std::string("--strategy=ddp"), "--data=" + job.data,
        std::string("--batch-size=4"), std::string("--virtual-shards=8"),
        "--checkpoint-dir=" + job.Path("saved"), std::string(kForLong)}) {
    command.argv.push_back(word);
  }
  command.argv.insert(command.argv.end(), of_trainers.begin(),
                      of_trainers.end());
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

// The flag reaches the coordinator, whose limit it is, and the trainers, which
// say more often that they live.
TEST(SilenceOfAJob, StoppedTrainerIsGoneAfterTheTimeOfTheFlag) {
  const Job job;
  const auto run = StartRun(job, {"--elastic=2:3", "--silence=4s"}, {});
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  // It may not be in the job yet; once it is back it is.
  KillWorker(*run, "trainer", 1);
  if (HasFatalFailure()) return;
  AwaitBack(*run, "trainer1");
  const pid_t stopped = FindWorker(*run, "trainer", 1);
  ASSERT_GT(stopped, 0);
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  EXPECT_THAT(run->WaitForOutput("trainer1 is gone: silent", kLong), IsOk());
  // Without the flag it is 10 s.
  EXPECT_THAT(run->output(), ContainsRegex("is gone: silent for [4-9]s"));
  kill(stopped, SIGCONT);
  AwaitBack(*run, "trainer1", 2);
  Stop(*run);
}

TEST(SilenceOfAJob, OrderOfTimesThatCannotWorkEndsItAtTheStart) {
  const Job job;
  const auto run = StartRun(job, {"--silence=30s"}, {"--rpc-timeout=20s"});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(3)) << run->output();
  EXPECT_THAT(run->output(), HasSubstr("--rpc-timeout=20s and --silence=30s"));
  EXPECT_THAT(run->output(), HasSubstr("refused its input"));
}

}  // namespace
}  // namespace weft::testing
