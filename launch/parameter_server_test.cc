// The parameter_server program as a process: its flags and exit codes
// (docs/cli.md). Jobs of several processes are in //tests/job.

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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
                    HasSubstr("--checkpoint-dir"),
                    HasSubstr("of trainers; taken and not used")));
}

TEST_F(ParameterServerProgramTest, InvalidFlagsAreUsageErrors) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--servers=1", "--trainers=0"}, "wanted --trainers=N of at least 1"},
      {{"--workers=1:2"}, "--workers=1:2 (or WEFT_WORKERS)"},
      {{"--workers=1:2", "--servers=2"}, "found --servers=2 and --replicas=1"},
      {{"--servers=1", "--trainers=1", "--role=trainer"},
       "--role=trainer (or WEFT_ROLE): this program is a parameter server"},
      {{"--servers=1", "--trainers=1", "--replicas=2"},
       "--replicas=2 wants at least 2 servers, found --servers=1"},
      {{"--trainers=1", "--grace=soon"}, "--grace=soon: wanted a duration"},
      {{"--trainers=1", "--grace=-3s"}, "wanted no negative duration"},
      {{"--trainers=1", "--gracee=3s"}, "did you mean --grace?"},
      {{"--servers=1", "--trainers=1", "--round-budget=0"},
       "wanted --round-budget of at least 1 byte, found 0"},
      {{"--servers=2", "--trainers=1", "--table-log-dir=logs"},
       "--table-log-dir (or WEFT_TABLE_LOG_DIR) wants --replicas=2"},
      {{"--servers=1", "--trainers=1", "--table-memory=-1"},
       "wanted --table-memory of at least 1 byte, or 0"},
      {{"--servers=1", "--trainers=1", "--snapshot-memory=0"},
       "wanted --snapshot-memory of at least 1 byte, found 0"},
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
  const auto server = Start(OfAJob({"--async",
                                    "--resume",
                                    "--keep-best",
                                    "--allow-non-finite",
                                    "--data=/nowhere",
                                    "--epochs=3",
                                    "--batch-size=many",
                                    "--lr=nan",
                                    "--optimizer=none",
                                    "--clip-value=1",
                                    "--clip-norm=1",
                                    "--push-dtype=none",
                                    "--pull-dtype=none",
                                    "--staleness=2",
                                    "--quorum=1",
                                    "--late=fold",
                                    "--checkpoint-dir=/nowhere",
                                    "--keep=0",
                                    "--keep-as=x",
                                    "--loss-every=1",
                                    "--strategy=ps",
                                    "--join-timeout=3s"}));
  EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(kTimeout)) << server->output();
  EXPECT_THAT(server->output(), HasSubstr("1/2 joined, missing trainer0"));
}

// Also of what the libraries write, and before the logger is there.
TEST_F(ParameterServerProgramTest, WithLogJsonEachLineIsOneObject) {
  const Words command = OfAJob({"--log=json", "--join-timeout=300ms"});
  const auto run = [&](const Words& before) {
    testing::Command all;
    all.argv = before;
    all.argv.push_back(testing::RunfilePath("launch/parameter_server"));
    all.argv.insert(all.argv.end(), command.begin(), command.end());
    auto process = testing::Process::Start(std::move(all));
    EXPECT_THAT(process, IsOk());
    EXPECT_THAT((*process)->Wait(kLong), IsOk());
    const std::string output = (*process)->output();
    for (const absl::string_view line :
         absl::StrSplit(output, '\n', absl::SkipEmpty())) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    }
    return output;
  };
  EXPECT_THAT(run({"/usr/bin/env", "GRPC_VERBOSITY=debug"}),
              HasSubstr("\"library\":\"gRPC\""));
#if !defined(__SANITIZE_ADDRESS__)  // which does not begin with so little
  EXPECT_THAT(run({"/bin/sh", "-c", "ulimit -v 300000; exec \"$0\" \"$@\""}),
              HasSubstr("wanted an address space"));
#endif
}

// A server may end at once before all have joined, since nobody depends on it.
// Only what later workers of the job use may stay in the job's directory.
TEST_F(ParameterServerProgramTest, SignalBeforeAllJoinLeavesNoSocketBehind) {
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", dir_.path().c_str(), 1), 0);
  const auto sockets = [&] {
    std::vector<std::string> found;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(dir_.path())) {
      if (entry.is_socket()) found.push_back(entry.path());
    }
    return found;
  };
  const Words wait = {"--join-timeout=5m", "--grace=5m"};
  struct Case {
    const char* rank;  // 0 hosts the coordinator, which 1 waits for
    const char* waits;
    int signal;
  };
  for (const Case& c : {Case{"--rank=0", "ps0 joined", SIGTERM},
                        Case{"--rank=0", "ps0 joined", SIGINT},
                        Case{"--rank=1", "no coordinator", SIGTERM}}) {
    Words flags = {"--servers=2", "--trainers=1", c.rank};
    flags.insert(flags.end(), wait.begin(), wait.end());
    const auto server = Start(flags);
    ASSERT_THAT(server->WaitForOutput(c.waits, kLong), IsOk());
    EXPECT_THAT(sockets(), Not(IsEmpty()));
    server->Signal(c.signal);
    EXPECT_THAT(server->Wait(kLong), IsOkAndHolds(128 + c.signal));
    EXPECT_THAT(server->output(),
                AllOf(Not(HasSubstr("error: ")),
                      HasSubstr("asked to stop before all workers")));
    EXPECT_THAT(sockets(), IsEmpty());
  }
}

}  // namespace
}  // namespace weft::launch
