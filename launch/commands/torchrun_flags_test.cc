#include "weft/launch/commands/torchrun_flags.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;

constexpr absl::Duration kLong = absl::Seconds(60);

using Words = std::vector<std::string>;
using Settings = std::map<std::string, std::string>;

// What torchrun tells a program, and so must `weft run`.
constexpr const char* kNames[] = {"RANK",
                                  "LOCAL_RANK",
                                  "WORLD_SIZE",
                                  "ROLE_RANK",
                                  "LOCAL_WORLD_SIZE",
                                  "ROLE_WORLD_SIZE",
                                  "GROUP_RANK",
                                  "GROUP_WORLD_SIZE",
                                  "ROLE_NAME",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "TORCHELASTIC_RESTART_COUNT",
                                  "OMP_NUM_THREADS",
                                  "TORCHELASTIC_MAX_RESTARTS",
                                  "TORCHELASTIC_RUN_ID",
                                  "TORCHELASTIC_USE_AGENT_STORE",
                                  "TORCH_NCCL_ASYNC_ERROR_HANDLING"};

// Runs a program that knows nothing of Weft: a shell script that prints its
// environment. The settings of each rank, by RANK.
class Torchrun : public ::testing::Test {
 protected:
  std::map<std::string, Settings> Run(const Words& flags,
                                      const Words& environment = {}) {
    const std::string script = dir_.Path("show.sh");
    std::ofstream(script) << "env | sed \"s/^/$RANK /\"\n";
    testing::Command command;
    command.argv = {testing::RunfilePath("launch/weft"), "run", "--no-prefix"};
    command.argv.insert(command.argv.end(), flags.begin(), flags.end());
    command.argv.push_back("sh");
    command.argv.push_back(script);
    command.env = environment;
    auto process = testing::Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    EXPECT_THAT((*process)->Wait(kLong), IsOkAndHolds(0))
        << (*process)->output();
    std::map<std::string, Settings> ranks;
    for (absl::string_view line : absl::StrSplit((*process)->output(), '\n')) {
      const std::pair<std::string, std::string> rank =
          absl::StrSplit(line, absl::MaxSplits(' ', 1));
      const std::pair<std::string, std::string> setting =
          absl::StrSplit(rank.second, absl::MaxSplits('=', 1));
      ranks[rank.first].insert(setting);
    }
    ranks.erase("");
    ranks.erase("weft:");  // on few cores it warns of ranks that share them
    return ranks;
  }

  const testing::TempDir dir_;
};

TEST_F(Torchrun, ProgramThatReadsItsEnvironmentFindsAllOfIt) {
  auto ranks =
      Run({"--nproc-per-node=3", "--max-restarts=2", "--rdzv-id=mine"});
  ASSERT_EQ(ranks.size(), 3u);
  for (const std::string rank : {"0", "1", "2"}) {
    Settings& found = ranks[rank];
    for (const char* name : kNames) {
      EXPECT_TRUE(found.count(name) > 0) << name << " of rank " << rank;
    }
    EXPECT_EQ(found["LOCAL_RANK"], rank);
    EXPECT_EQ(found["ROLE_RANK"], rank);
    EXPECT_EQ(found["WORLD_SIZE"], "3");
    EXPECT_EQ(found["LOCAL_WORLD_SIZE"], "3");
    EXPECT_EQ(found["GROUP_RANK"], "0");
    EXPECT_EQ(found["GROUP_WORLD_SIZE"], "1");
    EXPECT_EQ(found["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(found["MASTER_PORT"], ranks["0"]["MASTER_PORT"]);
    EXPECT_EQ(found["TORCHELASTIC_RUN_ID"], "mine");
    EXPECT_EQ(found["TORCHELASTIC_RESTART_COUNT"], "0");
    EXPECT_EQ(found["TORCHELASTIC_MAX_RESTARTS"], "2");
    // There is no store but that of rank 0.
    EXPECT_EQ(found["TORCHELASTIC_USE_AGENT_STORE"], "False");
  }
}

TEST_F(Torchrun, ItsVariablesAreFlagsToo) {
  auto ranks = Run({}, {"PET_NPROC_PER_NODE=2", "PET_MASTER_ADDR=node7",
                        "PET_MASTER_PORT=1234", "PET_MAX_RESTARTS=1",
                        "PET_RDZV_BACKEND=c10d", "PET_RDZV_ID=a",
                        "TORCH_NCCL_ASYNC_ERROR_HANDLING=0"});
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks["1"]["MASTER_ADDR"], "node7");
  EXPECT_EQ(ranks["1"]["MASTER_PORT"], "1234");
  EXPECT_EQ(ranks["1"]["TORCHELASTIC_MAX_RESTARTS"], "1");
  EXPECT_EQ(ranks["1"]["TORCHELASTIC_RUN_ID"], "a");
  EXPECT_EQ(ranks["1"]["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
}

// The second of two hosts, which starts no coordinator.
TEST_F(Torchrun, RanksOfALaterHostFollowAndMeetWhereTheyAreTold) {
  const Words common = {"--nnodes=2",           "--node-rank=1",
                        "--nproc_per_node=2",   "--insecure",
                        "--monitor-interval=5", "--start-method=spawn"};
  Words flags = common;
  flags.insert(flags.end(), {"--rdzv-id=a", "--master-addr=127.0.0.1",
                             "--master-port=7000"});
  auto ranks = Run(flags);
  ASSERT_EQ(ranks.size(), 2u);
  Settings found = ranks["3"];
  EXPECT_EQ(found["LOCAL_RANK"], "1");
  EXPECT_EQ(found["WORLD_SIZE"], "4");
  EXPECT_EQ(found["LOCAL_WORLD_SIZE"], "2");
  EXPECT_EQ(found["GROUP_RANK"], "1");
  EXPECT_EQ(found["GROUP_WORLD_SIZE"], "2");
  // Rank 0 of a program that is not Weft's listens there: the coordinator does
  // beside it.
  EXPECT_EQ(found["MASTER_PORT"], "7000");
  EXPECT_EQ(found["WEFT_COORDINATOR"], "127.0.0.1:7001");

  flags = common;
  flags.insert(flags.end(), {"--job=a", "--rdzv-endpoint=127.0.0.1:7000"});
  found = Run(flags)["3"];
  EXPECT_EQ(found["MASTER_ADDR"], "127.0.0.1");
  EXPECT_EQ(found["MASTER_PORT"], "7001");
  EXPECT_EQ(found["WEFT_COORDINATOR"], "127.0.0.1:7000");

  flags = common;
  flags.insert(flags.end(), {"--job=a", "--init=tcp://127.0.0.1:7000"});
  found = Run(flags)["3"];
  EXPECT_EQ(found["MASTER_ADDR"], "127.0.0.1");
  EXPECT_EQ(found["MASTER_PORT"], "7001");
}

TEST_F(Torchrun, ElasticJobOfHostsCountsTheMostRanks) {
  auto ranks =
      Run({"--nnodes=1:3", "--node-rank=0", "--nproc-per-node=2", "--job=a",
           "--coordinator=127.0.0.1:1", "--insecure", "--no-own-coordinator"});
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks["1"]["WEFT_WORKERS"], "2:6");
  EXPECT_EQ(ranks["1"]["WORLD_SIZE"], "6");
  EXPECT_EQ(ranks["1"]["GROUP_WORLD_SIZE"], "3");
}

TEST_F(Torchrun, SilenceReachesTheRanks) {
  EXPECT_EQ(Run({"--silence=3s"})["0"]["WEFT_SILENCE"], "3s");
}

TEST_F(Torchrun, ProgramOfPythonIsRunByItsInterpreter) {
  // Which is a script here, as the test wants no Python.
  const std::string python = dir_.Path("python");
  std::ofstream(python) << "#!/bin/sh\nexec echo by python: \"$@\"\n";
  ASSERT_EQ(chmod(python.c_str(), 0700), 0);
  testing::Command command;
  command.argv = {testing::RunfilePath("launch/weft"), "run", "train.py",
                  "--epochs=3"};
  command.env = {"PYTHON_EXEC=" + python};
  auto process = *testing::Process::Start(std::move(command));
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(0)) << process->output();
  EXPECT_THAT(process->output(),
              HasSubstr("by python: -u train.py --epochs=3"));
}

// What a user says goes before what is left in the environment.
TEST_F(Torchrun, CommandLineGoesBeforeItsVariables) {
  EXPECT_EQ(Run({"--job=a"}, {"PET_RDZV_ID=b"})["0"]["TORCHELASTIC_RUN_ID"],
            "a");
  EXPECT_EQ(Run({"--rdzv-id=b"}, {"WEFT_JOB=a"})["0"]["TORCHELASTIC_RUN_ID"],
            "b");
  EXPECT_EQ(Run({"--rdzv-id=a", "--job=a"}, {})["0"]["TORCHELASTIC_RUN_ID"],
            "a");
}

TEST(TorchrunFlags, ThatCannotBeAreRefused) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--job=a", "--rdzv-id=b", "true"}, "--job=a and --rdzv-id=b: wanted"},
      {{"--coordinator=h:1", "--rdzv-endpoint=h:2", "true"},
       "--coordinator=h:1 and --rdzv-endpoint=h:2: wanted"},
      {{"--rdzv-backend=etcd", "true"}, "--init=etcd://HOST:PORT"},
      {{"--silence=soon", "true"}, "wanted a duration from 1s to 1h"},
  };
  for (const auto& [arguments, message] : cases) {
    testing::Command command;
    command.argv = {testing::RunfilePath("launch/weft"), "run"};
    command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
    auto process = *testing::Process::Start(std::move(command));
    EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(2)) << process->output();
    EXPECT_THAT(process->output(), HasSubstr(message));
  }
}

// ---- The functions.

TEST(TorchrunFlags, PythonScriptsAreRunAsTheyAreWithNoPython) {
  LaunchOptions options;
  TorchrunFlags torchrun;
  torchrun.python = false;
  ASSERT_THAT(AddProgram(torchrun, {"train.py"}, options), IsOk());
  EXPECT_EQ(options.roles.front().argv, Words{"train.py"});
}

TEST(TorchrunFlags, PortBesideTheHighestIsTheOneBelow) {
  LaunchOptions options;
  options.nodes = 2;
  options.job = "j";
  options.coordinator = "node0:65535";
  options.master_port = 0;
  ASSERT_THAT(CompleteNodes("", options), IsOk());
  EXPECT_EQ(options.master_addr, "node0");
  EXPECT_EQ(options.master_port, 65534);
}

TEST(TorchrunFlags, MasterPortOfAMeetingWithoutAddressIsTheSameOnAllNodes) {
  LaunchOptions options;
  options.nodes = 2;
  options.job = "j";
  options.master_port = 0;
  ASSERT_THAT(CompleteNodes("etcd://node9:2379", options), IsOk());
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(options.coordinator, "");
}

}  // namespace
}  // namespace weft::launch
