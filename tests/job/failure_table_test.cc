// What `weft run` says of a training whose trainers fail: the root cause first,
// its victims behind it.

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
using ::testing::Not;

// Three trainers without servers, each with these flags beside its own.
std::unique_ptr<Process> StartRun(const Job& job, const Flags& flags,
                                  const Flags& of_trainers) {
  std::filesystem::create_directory(job.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  command.argv = {Program("weft"), "run", "--nproc-per-node=3",
                  "--log-dir=" + job.Path("logs")};
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  for (const std::string& word :
       {Program("trainer"), std::string("--strategy=ddp"), "--data=" + job.data,
        std::string("--batch-size=4")}) {
    command.argv.push_back(word);
  }
  command.argv.insert(command.argv.end(), of_trainers.begin(),
                      of_trainers.end());
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

class FailureTable : public ::testing::TestWithParam<int> {};

// Whatever of the four ends is heard of first.
TEST_P(FailureTable, TrainerOfThreeThatIsKilledIsTheCauseAndTheOthersVictims) {
  const Job job;
  const auto run = StartRun(job, {}, {kForLong});
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  const pid_t victim = FindWorker(*run, "trainer", 1);
  ASSERT_GT(victim, 0);
  ASSERT_EQ(kill(victim, GetParam()), 0);
  EXPECT_THAT(run->Wait(kLong), IsOk()) << run->output();
  const std::string output = run->output();
  EXPECT_THAT(output, HasSubstr("---- trainer1 failed first"));
  EXPECT_THAT(output, ContainsRegex("trainer1 .*killed by SIG[A-Z]+ .*killed "
                                    "by a signal"));
  // Each other rank is its victim, or had not noticed when it was asked to end.
  for (const char* other : {"trainer0", "trainer2"}) {
    EXPECT_THAT(output,
                ContainsRegex(std::string(other) +
                              " .*(victim of trainer1|ended by weft run)"));
  }
  EXPECT_THAT(output,
              HasSubstr("all of its output: " + job.Path("logs/trainer1.log")));
}

INSTANTIATE_TEST_SUITE_P(Signals, FailureTable,
                         ::testing::Values(SIGKILL, SIGSEGV, SIGABRT));

TEST(FailureTableOfTrainers, FlagThatThereIsNotIsRefusedInput) {
  const Job job;
  const auto run = StartRun(job, {}, {"--no-such-flag=1"});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(2)) << run->output();
  EXPECT_THAT(run->output(),
              ContainsRegex("trainer[012] .*exit code 2 .usage. .*refused its "
                            "input"));
  EXPECT_THAT(run->output(), HasSubstr("no-such-flag"));
}

TEST(FailureTableOfTrainers, ElasticTrainingThatShrinksSaysWhyAndGoesOn) {
  const Job job;
  const auto run =
      StartRun(job, {"--elastic=2:3", "--events=" + job.Path("events")},
               {kForLong, "--virtual-shards=8",
                "--checkpoint-dir=" + job.Path("saved")});
  ASSERT_THAT(run->WaitForOutput("[trainer0] training ", kLong), IsOk());
  // It may not take part yet; once it is back it does, and is missed.
  for (const int times : {1, 2}) {
    KillWorker(*run, "trainer", 1);
    if (HasFatalFailure()) return;
    AwaitBack(*run, "trainer1", times);
  }
  EXPECT_THAT(run->output(),
              HasSubstr("---- trainer1 failed; 2 of this node go on"));
  EXPECT_THAT(run->output(), Not(HasSubstr("failed first")));
  Stop(*run);
  const std::string events = ReadBytes(job.Path("events"));
  EXPECT_THAT(events, HasSubstr(R"("event":"failure","rank":"trainer1")"));
  EXPECT_THAT(events, ContainsRegex(R"("event":"step_repeated","rank":"train)"
                                    R"(er[02]","step":[0-9]+)"));
  EXPECT_THAT(events, ContainsRegex(R"("event":"rank_joined","rank":"trainer)"
                                    R"(1","step":[0-9]+,"ranks":3)"));
}

}  // namespace
}  // namespace weft::testing
