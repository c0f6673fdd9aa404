// weft run: its flags, and what it puts into the environment of the ranks. How
// ranks are started, watched and ended is in run/launcher_test.cc.

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/launch/commands/commands.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"
#include "weft/worker/exit_code.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

using Words = std::vector<std::string>;

// The error of `weft run` with these arguments, which starts no rank.
absl::Status Refused(Words arguments) {
  arguments.insert(arguments.begin(), "run");
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  return RunCommand(static_cast<int>(argv.size()), argv.data()).status();
}

std::unique_ptr<testing::Process> WeftRun(const Words& arguments,
                                          const Words& environment = {}) {
  testing::Command command;
  command.argv = {testing::RunfilePath("launch/weft"), "run", "--no-prefix"};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  command.env = environment;
  auto process = testing::Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return process.ok() ? *std::move(process) : nullptr;
}

// What `echo` with this text says in the only rank of a job.
std::string Echo(const std::string& text, Words flags = {},
                 const Words& environment = {}) {
  for (const char* word : {"sh", "-c"}) flags.push_back(word);
  flags.push_back(absl::StrCat("echo ", text));
  const auto run = WeftRun(flags, environment);
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  std::string output = run->output();
  // On few cores it warns of ranks that share them.
  if (absl::StartsWith(output, "weft: warning: ")) {
    output.erase(0, output.find('\n') + 1);
  }
  return output.substr(0, output.find('\n'));
}

TEST(RunCommand, FlagsThatDoNotFitAreUsageErrors) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{}, "nothing to run; give --role"},
      {{"--nproc-per-node=2"}, "--nproc-per-node wants a program after it"},
      {{"--role=ps=1:true", "true"}, "give either --role or --nproc-per-node"},
      {{"--rolle=ps=1:x"}, "did you mean --role?"},
      {{"--role=ps"}, "ROLE=COUNT"},
      {{"--nproc-per-node=0", "true"}, "--nproc-per-node=0: wanted a number"},
      {{"--nproc-per-node=gpu", "true"}, "from 1 to 1024, auto or cpu"},
      {{"--nproc-per-node=1025", "true"}, "from 1 to 1024, auto or cpu"},
      {{"--nnodes=2:1", "true"}, "--nnodes=2:1: wanted the number of hosts"},
      {{"--nnodes=0:2", "true"}, "--nnodes=0:2: wanted the number of hosts"},
      {{"--nnodes=1:2:3", "true"}, "wanted the number of hosts"},
      {{"--nnodes=1:2", "--elastic=1:2", "true"}, "wanted one of them"},
      {{"--elastic=1:2", "--role=ps=2:true", "--role=trainer=1:true"},
       "with --replicas=2 the role ps; found role ps and --replicas=1"},
      {{"--elastic=1:2", "--replicas=2", "--role=ps=2:true"},
       "wanted trainers, found none"},
      {{"--elastic=1:2", "--replicas=2", "--role=boss=2:true"},
       "found role boss"},
      {{"--nnodes=1:2", "--replicas=2", "--role=ps=2:true",
        "--role=trainer=1:true"},
       "wanted --nnodes=N and --elastic=MIN:MAX with role ps"},
      {{"--nnodes=1:2", "--max-restarts=1", "true"},
       "on one host alone, found --nnodes=1:2"},
      {{"--elastic=1:2", "--allow-trainer-exits=1", "true"},
       "goes without --allow-trainer-exits"},
      {{"--nnodes=1:2", "--role", "ps=1:true"},
       "with role ps, whose number is fixed"},
      {{"--nnodes=1:2", "true"},
       "--nnodes=1:2: wanted --coordinator=HOST:PORT"},
      {{"--nnodes=2", "--node-rank=2", "true"}, "--node-rank=2: wanted 0 to 1"},
      {{"--nnodes=1:3", "--node-rank=3", "true"},
       "--node-rank=3: wanted 0 to 2 of --nnodes=1:3"},
      {{"--nnodes=1:3", "--coordinator=h:1", "true"},
       "--nnodes=1:3: wanted --job=NAME"},
      {{"--node-rank=-1", "true"}, "--node-rank=-1: wanted 0 to 0"},
      {{"--nnodes=2", "--node-rank=1", "true"},
       "--coordinator=HOST:PORT, the same on all nodes"},
      {{"--nnodes=2", "--coordinator=unix:/a/b", "true"},
       "--coordinator=HOST:PORT, the same on all nodes"},
      {{"--nnodes=2", "--coordinator=h:1", "true"},
       "wanted --job=NAME, the same on all nodes"},
      {{"--max-restarts=-1", "true"}, "--max-restarts=-1: wanted a number"},
      {{"--replicas=0", "true"}, "--replicas=0: wanted 1 or 2"},
      {{"--replicas=3", "--role=ps=3:true"}, "--replicas=3: wanted 1 or 2"},
      {{"--replicas=2", "--role=ps=1:true"},
       "--replicas=2 wants at least 2 servers, found 1"},
      {{"--master-port=99999", "true"}, "wanted a port from 1 to 65535"},
      {{"--init=env://", "--coordinator=h:1", "true"},
       "give either --init or --coordinator"},
      {{"--certs=c", "--insecure", "true"}, "--certs=c"},
      {{"--certs=c", "true"}, "--certs=c is of one job: give its name by"},
      {{"--job=Not A Job", "true"}, "--job: "},
  };
  for (const auto& [arguments, message] : cases) {
    const absl::Status refused = Refused(arguments);
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, message));
    EXPECT_EQ(worker::ExitCodeFor(refused), worker::ExitCode::kUsage)
        << message;
  }
}

TEST(RunCommand, ProgramThatIsNotThereIsConfiguration) {
  const auto run = WeftRun({"--role=ps=1:/nowhere/server"});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(3));
  EXPECT_THAT(run->output(), HasSubstr("ps0: cannot run /nowhere/server"));
}

TEST(RunCommand, LogDirThatCannotBeMadeIsConfiguration) {
  const testing::TempDir dir;
  std::ofstream(dir.Path("file")) << "mine";
  const absl::Status refused =
      Refused({"--log-dir=" + dir.Path("file/logs"), "true"});
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition,
                                "wanted a directory to write in"));
  EXPECT_EQ(worker::ExitCodeFor(refused), worker::ExitCode::kConfig);
}

TEST(RunCommand, ExitCodeIsThatOfTheRank) {
  for (const int code : {0, 1, 7, 14}) {
    const auto run = WeftRun({"sh", "-c", absl::StrCat("exit ", code)});
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(code));
  }
}

TEST(RunCommand, NprocPerNodeIsTheNumberOfRanks) {
  for (const auto& [processes, wanted] :
       std::vector<std::pair<std::string, std::string>>{
           {"3", "3"},
           {"auto",
            absl::StrCat(std::max(1u, std::thread::hardware_concurrency()))}}) {
    EXPECT_EQ(Echo("$WORLD_SIZE", {"--nproc-per-node=" + processes}), wanted);
  }
  EXPECT_EQ(Echo("$WORLD_SIZE", {}, {"PET_NPROC_PER_NODE=2"}), "2");
}

TEST(RunCommand, JobWithoutANameIsItsOwnAndLeavesNothing) {
  const std::string first = Echo("$WEFT_JOB $WEFT_COORDINATOR");
  const std::string second = Echo("$WEFT_JOB $WEFT_COORDINATOR");
  EXPECT_NE(first, second);
  for (const std::string& line : {first, second}) {
    EXPECT_THAT(line, AllOf(StartsWith("run-"), HasSubstr(" unix:/")));
    const size_t at = line.find("unix:") + 5;
    const std::filesystem::path socket = line.substr(at);
    EXPECT_FALSE(std::filesystem::exists(socket.parent_path())) << socket;
  }
}

TEST(RunCommand, MasterPortIsAFreeOneUnlessItIsGiven) {
  const std::vector<std::string> words =
      absl::StrSplit(Echo("$MASTER_ADDR $MASTER_PORT"), ' ');
  ASSERT_EQ(words.size(), 2u);
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(words[1], &port)) << words[1];
  EXPECT_EQ(words[0], "127.0.0.1");
  EXPECT_GT(port, 0);
  EXPECT_EQ(Echo("$MASTER_ADDR $MASTER_PORT",
                 {"--master-addr=node1", "--master-port=7000"}),
            "node1 7000");
}

TEST(RunCommand, RanksFindTheMeetingPlaceAndTrustInTheirEnvironment) {
  EXPECT_EQ(Echo("$WEFT_JOB $WEFT_COORDINATOR $WEFT_INSECURE",
                 {"--job=mnist", "--coordinator=127.0.0.1:1", "--insecure",
                  "--no-own-coordinator"}),
            "mnist 127.0.0.1:1 true");
  // torchrun's names.
  EXPECT_EQ(Echo("$WEFT_JOB $WEFT_COORDINATOR",
                 {"--rdzv-id=mnist", "--rdzv-endpoint=127.0.0.1:1",
                  "--no-own-coordinator"}),
            "mnist 127.0.0.1:1");
  EXPECT_EQ(Echo("$WEFT_INIT,$WEFT_COORDINATOR", {"--init=file:///x/y"}),
            "file:///x/y,");
  EXPECT_EQ(
      Echo("$WEFT_CERTS", {"--certs=/c", "--job=mnist", "--init=file:///x/y"}),
      "/c");
}

TEST(RunCommand, RanksFindWhoHostsTheCoordinator) {
  EXPECT_EQ(Echo("host:$WEFT_COORDINATOR_HOST"), "host:coordinator0");
  for (const char* by_rank : {"--no-own-coordinator", "--init=file:///x/y"}) {
    EXPECT_EQ(Echo("host:$WEFT_COORDINATOR_HOST", {by_rank}), "host:");
  }
}

// Such a coordinator would keep the ranks from meeting, or from knowing whom
// they meet.
TEST(RunCommand, CoordinatorThatCannotBeIsConfiguration) {
  const testing::TempDir dir;
  const absl::Status uncertified =
      Refused({"--job=mnist", "--certs=" + dir.Path(""), "true"});
  EXPECT_THAT(uncertified, StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "weft certs init"));
  EXPECT_EQ(worker::ExitCodeFor(uncertified), worker::ExitCode::kAuth);
  const auto run =
      WeftRun({"--coordinator=unix:/nowhere/c.sock", "sleep", "9"});
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(3));
  EXPECT_THAT(run->output(), HasSubstr("coordinator0 failed first"));
  EXPECT_THAT(run->output(), HasSubstr("/nowhere"));
}

TEST(RunCommand, SeveralNodesMeetBesideTheMasterPort) {
  EXPECT_EQ(Echo("$WEFT_COORDINATOR $RANK $WORLD_SIZE",
                 {"--nnodes=2", "--node-rank=1", "--job=mnist",
                  "--master-addr=127.0.0.1", "--master-port=1", "--insecure"}),
            "127.0.0.1:2 1 2");
  EXPECT_EQ(Echo("$MASTER_ADDR $MASTER_PORT",
                 {"--nnodes=2", "--job=mnist", "--coordinator=127.0.0.1:1",
                  "--insecure", "--no-own-coordinator"}),
            "127.0.0.1 2");
}

}  // namespace
}  // namespace weft::launch
