// Parameter servers that are killed while trainers train, with two replicas:
// `weft run` starts them again, nobody else ends, and the model has the bits of
// an undisturbed training.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
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

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kServers = 3;
constexpr int kPeerLost = 10;

// `weft run` of 3 servers and 2 trainers that save in `saved`.
std::unique_ptr<Process> StartRun(const Job& job, const std::string& saved,
                                  const Flags& trainer) {
  std::filesystem::create_directory(job.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  std::string train = absl::StrCat(Program("trainer"), " --data=", job.data,
                                   " --batch-size=", Job::kBatch, " --lr=0.001",
                                   " --checkpoint-dir=", saved);
  for (const std::string& flag : trainer) absl::StrAppend(&train, " ", flag);
  command.argv = {
      Program("weft"),
      "run",
      "--replicas=2",
      "--role",
      absl::StrCat("ps=", kServers, ":", Program("parameter_server"),
                   " --checkpoint-dir=", saved),
      "--role",
      absl::StrCat("trainer=2:", train)};
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

std::string ModelOf(const std::string& saved) {
  return ReadBytes(
      absl::StrCat(saved, "/", NewestName(saved), "/shard-99999.safetensors"));
}

// How often a server's partitions were all on two servers again.
int TimesReplicated(const std::string& output) {
  int times = 0;
  for (size_t at = 0;
       (at = output.find("partition map: ", at)) != std::string::npos; ++at) {
    const std::string line = output.substr(at, output.find('\n', at) - at);
    times += absl::StrContains(line, "0 silent or gone") &&
                     absl::StrContains(line, " 0 without a backup in sync")
                 ? 1
                 : 0;
  }
  return times;
}

// kill -9 of each server in turn, each once its predecessor's partitions are on
// two servers again.
TEST(Failover, KillOfEachServerLeavesTheBitsOfAnUndisturbedTraining) {
  const Job job;
  const auto whole = StartRun(job, job.Path("whole"), {"--epochs=150"});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  const std::string saved = job.Path("killed");
  const auto run = StartRun(job, saved, {"--epochs=150"});
  for (int victim = 0; victim < kServers; ++victim) {
    const auto before = Checkpoints(saved);
    ASSERT_TRUE(Becomes([&] { return Checkpoints(saved) != before; }))
        << run->output();
    const pid_t server = FindWorker(*run, "ps", victim);
    ASSERT_GT(server, 0) << run->output();
    const int times = TimesReplicated(run->output());
    kill(server, SIGKILL);
    ASSERT_THAT(
        run->WaitForOutput(absl::StrCat("ps", victim, " has ended"), kLong),
        IsOk());
    ASSERT_TRUE(Becomes([&] { return TimesReplicated(run->output()) > times; }))
        << run->output();
  }
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_EQ(ModelOf(saved), ModelOf(job.Path("whole")));
  ExpectNothingLeft(job.Path("run"));
}

// It trains on from what two trainers and three servers had saved, a server of
// which had died.
TEST(Failover, CheckpointAfterAKillIsResumed) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto first = StartRun(job, saved, {"--epochs=100"});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << first->output();
  const pid_t server = FindWorker(*first, "ps", 1);
  ASSERT_GT(server, 0);
  kill(server, SIGKILL);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(0)) << first->output();
  const auto second = StartRun(job, saved, {"--epochs=120", "--resume"});
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(0)) << second->output();
  EXPECT_THAT(second->output(), HasSubstr("resuming"));
  const auto whole = StartRun(job, job.Path("whole"), {"--epochs=120"});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  EXPECT_EQ(ModelOf(saved), ModelOf(job.Path("whole")));
}

// A server and a trainer: the other takes the trainer's part over.
TEST(Failover, KillOfAServerAndOfATrainerLeavesTheBits) {
  const Job job;
  const auto whole = StartRun(job, job.Path("whole"), {"--epochs=60"});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  const std::string saved = job.Path("killed");
  std::filesystem::create_directory(job.Path("run"));
  Job started = Job();
  started.servers = kServers;
  started.flags = {"--replicas=2"};
  const Processes servers = started.StartServers({"--checkpoint-dir=" + saved});
  const Processes trainers = started.StartTrainers(
      {"--epochs=60", "--lr=0.001", "--checkpoint-dir=" + saved,
       absl::StrCat("--batch-size=", Job::kBatch)});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << trainers[0]->output();
  servers[2]->Signal(SIGKILL);
  trainers[1]->Signal(SIGKILL);
  EXPECT_THAT(trainers[0]->Wait(kLong), IsOkAndHolds(0))
      << trainers[0]->output();
  EXPECT_EQ(ModelOf(saved), ModelOf(job.Path("whole")));
}

// `weft servers WORDS` on a job, until it has ended well: what it says.
std::string Servers(const Job& job, const Flags& words) {
  Flags command = {Program("weft"), "servers"};
  command.insert(command.end(), words.begin(), words.end());
  command.push_back("--coordinator=" + job.coordinator);
  command.push_back("--job=" + job.name);
  const auto process = StartProcess(command);
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(0)) << process->output();
  return process->output();
}

// Then another process takes its name and its part.
TEST(Failover, DrainedServerIsStoppedAndTheTrainingEndsWithTheBits) {
  const Job job;
  const auto whole = StartRun(job, job.Path("whole"), {"--epochs=150"});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  const std::string saved = job.Path("moved");
  Job started = Job();
  started.servers = kServers;
  started.flags = {"--replicas=2"};
  const Flags serve = {"--checkpoint-dir=" + saved};
  Processes servers = started.StartServers(serve);
  const Processes trainers = started.StartTrainers(
      {"--epochs=150", "--lr=0.001", "--checkpoint-dir=" + saved,
       absl::StrCat("--batch-size=", Job::kBatch)});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << trainers[0]->output();
  EXPECT_THAT(Servers(started, {"drain", "ps1", "--wait=60s"}),
              HasSubstr("ps1 has nothing: it may be stopped"));
  EXPECT_THAT(Servers(started, {"list"}),
              HasSubstr("drained: it may be stopped"));
  servers[1]->Signal(SIGTERM);  // it has nothing, so it does not serve on
  EXPECT_THAT(servers[1]->Wait(kLong), IsOk()) << servers[1]->output();
  EXPECT_THAT(Servers(started, {"list", "--json"}),
              AllOf(HasSubstr("\"single\":0"), HasSubstr("\"lost\":0")));
  servers[1] = started.StartServer(1, serve);
  EXPECT_THAT(Servers(started, {"add", "ps1"}), HasSubstr("takes part again"));
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(0)) << trainer->output();
  }
  EXPECT_EQ(ModelOf(saved), ModelOf(job.Path("whole")));
}

// Both copies of some partitions are lost: all end, and say why.
TEST(Failover, DeathOfTwoServersAtOnceEndsTheJobWithTheReason) {
  Job job;
  job.servers = 2;
  job.flags = {"--replicas=2"};
  const Processes servers = job.StartServers();
  const Processes trainers = job.StartTrainers({"--epochs=100000"});
  ASSERT_THAT(trainers[0]->WaitForOutput("training ", kLong), IsOk());
  servers[1]->Signal(SIGKILL);
  // Of one copy nothing is lost, and the training goes on by it.
  ASSERT_THAT(trainers[0]->WaitForOutput("a parameter server died", kLong),
              IsOk());
  servers[0]->Signal(SIGKILL);  // it hosts the coordinator, too
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kPeerLost))
        << trainer->output();
  }
}

}  // namespace
}  // namespace weft::testing
