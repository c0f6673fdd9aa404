// The parameter_server program as a process: its flags and exit codes
// (docs/cli.md). Jobs of several processes are in //tests/job.

#include <signal.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;

constexpr absl::Duration kLong = absl::Seconds(100);
constexpr int kUsage = 2;
constexpr int kTimeout = 11;

using Words = std::vector<std::string>;

class ParameterServerProgramTest : public ::testing::Test {
 protected:
  std::unique_ptr<testing::Process> Start(const Words& flags) {
    testing::Command command;
    command.argv = {testing::RunfilePath("launch/parameter_server")};
    command.argv.insert(command.argv.end(), flags.begin(), flags.end());
    auto process = testing::Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return process.ok() ? *std::move(process) : nullptr;
  }

  // The flags of the only server of a job with one trainer.
  Words OfAJob(const Words& more) const {
    Words flags = {"--servers=1", "--trainers=1",
                   "--coordinator=unix:" + dir_.Path("ps0.sock"),
                   "--dump-dir=" + dir_.path()};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  testing::TempDir dir_;
};

TEST_F(ParameterServerProgramTest, HelpListsItsFlagsAndEndsWithZero) {
  const auto server = Start({"--help"});
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(0));
  EXPECT_THAT(server->output(),
              AllOf(HasSubstr("Usage: parameter_server"), HasSubstr("--grace"),
                    HasSubstr("of trainers; taken and not used")));
}

TEST_F(ParameterServerProgramTest, InvalidFlagsAreUsageErrors) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--servers=1", "--trainers=0"}, "wanted --trainers=N of at least 1"},
      {{"--workers=1:2"}, "--workers=1:2 (or WEFT_WORKERS)"},
      {{"--trainers=1", "--grace=soon"}, "--grace=soon: wanted a duration"},
      {{"--trainers=1", "--grace=-3s"}, "wanted no negative duration"},
      {{"--trainers=1", "--gracee=3s"}, "did you mean --grace?"},
      {{"--trainers=1", "word"}, "found the word \"word\""},
  };
  for (const auto& [flags, message] : cases) {
    const auto server = Start(flags);
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(kUsage)) << message;
    EXPECT_THAT(server->output(),
                AllOf(HasSubstr("error: "), HasSubstr(message)));
  }
}

TEST_F(ParameterServerProgramTest, TrainersFlagsAreTakenAndTheMissingNamed) {
  const auto server = Start(
      OfAJob({"--async", "--resume", "--keep-best", "--allow-non-finite",
              "--data=/nowhere", "--epochs=3", "--batch-size=many", "--lr=nan",
              "--checkpoint-dir=/nowhere", "--keep=0", "--keep-as=x",
              "--loss-every=1", "--strategy=ps", "--join-timeout=300ms"}));
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(kTimeout)) << server->output();
  EXPECT_THAT(server->output(), HasSubstr("1/2 joined, missing trainer0"));
}

// Nobody depends on it before all have joined.
TEST_F(ParameterServerProgramTest, SignalBeforeTheTrainersJoinEndsItAtOnce) {
  const auto server = Start(OfAJob({"--join-timeout=5m", "--grace=5m"}));
  ASSERT_THAT(server->WaitForOutput("ps0 joined", kLong), IsOk());
  server->Signal(SIGTERM);
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(128 + SIGTERM));
  EXPECT_THAT(server->output(), Not(HasSubstr("error: ")));
}

}  // namespace
}  // namespace weft::launch
