// Parameter servers that are killed while trainers train, with two replicas:
// `weft run` starts them again, nobody else ends, and the model has the bits of
// an undisturbed training. Trainings last until the test stops them: see
// kForLong in job.h.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
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
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kServers = 3;
constexpr int kPeerLost = 10;
constexpr int kTerminated = 128 + SIGTERM;
// 256 images, 2 trainers with 16 a step.
constexpr int64_t kSteps = 8;

// `weft run` of 3 servers and 2 trainers that save in `saved`.
std::unique_ptr<Process> StartRun(const Job& job, const std::string& saved,
                                  const Flags& trainer,
                                  const Flags& more = {}) {
  std::filesystem::create_directory(job.Path("run"));
  Command command;
  command.env = {"XDG_RUNTIME_DIR=" + job.Path("run")};
  std::string train = absl::StrCat(Program("trainer"), " --data=", job.data,
                                   " --batch-size=", Job::kBatch, " --lr=0.001",
                                   " ", kKeepSome, " --checkpoint-dir=", saved);
  for (const std::string& flag : trainer) absl::StrAppend(&train, " ", flag);
  command.argv = {
      Program("weft"),
      "run",
      "--replicas=2",
      "--events=" + job.Path("events"),
      "--role",
      absl::StrCat("ps=", kServers, ":", Program("parameter_server"),
                   " --checkpoint-dir=", saved),
      "--role",
      absl::StrCat("trainer=2:", train)};
  command.argv.insert(command.argv.begin() + 2, more.begin(), more.end());
  auto process = Process::Start(std::move(command));
  EXPECT_THAT(process, IsOk());
  return *std::move(process);
}

std::string ModelIn(const std::string& checkpoint) {
  return ReadBytes(checkpoint + "/shard-99999.safetensors");
}

// The training, which was stopped, has the bits of one that nobody touched.
void ExpectUndisturbed(const Job& job, const std::string& saved) {
  const Epochs trained = WholeEpochs(saved, kSteps);
  ASSERT_GT(trained.count, 0);
  const std::string undisturbed = job.Path("undisturbed");
  const auto whole = StartRun(job, undisturbed, {trained.flag()});
  EXPECT_THAT(whole->Wait(kLong), IsOkAndHolds(0)) << whole->output();
  EXPECT_EQ(ModelIn(trained.checkpoint) ==
                ModelIn(undisturbed + "/" + NewestName(undisturbed)),
            true)
      << trained.checkpoint;
}

// Whether the newest of the partition maps that `output` tells from `begin` on
// has every partition on two servers that live; with `was_not`, after one that
// has not. Servers tell of them one after another, in any order.
bool IsReplicated(const std::string& output, size_t begin, bool was_not) {
  const std::string made = "partition map: made epoch ";
  std::map<int64_t, bool> by_epoch;
  for (size_t at = begin; (at = output.find(made, at)) != output.npos;) {
    at += made.size();
    const size_t end = output.find('\n', at);
    if (end == output.npos) break;
    const std::string line = output.substr(at, end - at);
    by_epoch[std::strtoll(line.c_str(), nullptr, 10)] =
        absl::StrContains(line, "(0 silent or gone)") &&
        absl::StrContains(line, " 0 without a backup in sync");
  }
  if (by_epoch.empty() || !by_epoch.rbegin()->second) return false;
  return !was_not || std::any_of(by_epoch.begin(), by_epoch.end(),
                                 [](const auto& map) { return !map.second; });
}

// kill -9 of each server in turn, each once its predecessor's partitions are on
// two servers again.
TEST(Failover, KillOfEachServerLeavesTheBitsOfAnUndisturbedTraining) {
  const Job job;
  const std::string saved = job.Path("killed");
  const auto run = StartRun(job, saved, {kForLong});
  for (int victim = 0; victim < kServers; ++victim) {
    const auto before = Checkpoints(saved);
    ASSERT_TRUE(Becomes([&] { return Checkpoints(saved) != before; }))
        << run->output();
    ASSERT_TRUE(Becomes([&] { return IsReplicated(run->output(), 0, false); }))
        << run->output();
    const size_t begin = run->output().size();
    KillWorker(*run, "ps", victim);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(Becomes([&] {
      return IsReplicated(run->output(), begin, true);
    })) << run->output();
  }
  AwaitWholeEpoch(*run, saved, kSteps);
  Stop(*run);
  EXPECT_THAT(ReadBytes(job.Path("events")),
              ContainsRegex(R"("event":"promoted","rank":"ps[0-2]",)"
                            R"("partitions":[1-9])"));
  ExpectUndisturbed(job, saved);
  ExpectNothingLeft(job.Path("run"));
}

// Of some partitions no copy is left. The trainers end as of a lost peer, which
// a restart of all ranks helps.
TEST(Failover, LossOfBothCopiesEndsTrainersWithPeerLostAndARestartGoesOn) {
  const Job job;
  const std::string saved = job.Path("lost");
  const auto run = StartRun(job, saved, {kForLong}, {"--max-restarts=1"});
  ASSERT_TRUE(Becomes([&] {
    return !Checkpoints(saved).empty() && IsReplicated(run->output(), 0, false);
  })) << run->output();
  const pid_t first = FindWorker(*run, "ps", 0);
  const pid_t second = FindWorker(*run, "ps", 1);
  ASSERT_GT(first, 0);
  ASSERT_GT(second, 0);
  // Copies nothing to another meanwhile, however long this process waits before
  // the second kill.
  kill(second, SIGSTOP);
  kill(first, SIGKILL);
  kill(second, SIGKILL);
  ASSERT_THAT(run->WaitForOutput("starting all ranks again, restart 1", kLong),
              IsOk());
  EXPECT_THAT(run->output(),
              ContainsRegex(absl::StrCat("weft: trainer[01] failed: exit code ",
                                         kPeerLost)));
  EXPECT_THAT(run->output(), HasSubstr("all servers that had partition "));
  EXPECT_THAT(run->WaitForOutput("resuming", kLong), IsOk());
  AwaitWholeEpoch(*run, saved, kSteps);
  Stop(*run);
  ExpectUndisturbed(job, saved);
}

// It trains on from what two trainers and three servers had saved, a server of
// which had died.
TEST(Failover, CheckpointAfterAKillIsResumed) {
  const Job job;
  const std::string saved = job.Path("saved");
  const auto first = StartRun(job, saved, {kForLong});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << first->output();
  KillWorker(*first, "ps", 1);
  if (HasFatalFailure()) return;
  AwaitWholeEpoch(*first, saved, kSteps);
  Stop(*first);
  const auto second = StartRun(job, saved, {kForLong, "--resume"});
  EXPECT_THAT(second->WaitForOutput("resuming", kLong), IsOk());
  AwaitWholeEpoch(*second, saved, kSteps);
  Stop(*second);
  ExpectUndisturbed(job, saved);
}

// A server and a trainer: the other takes the trainer's part over.
TEST(Failover, KillOfAServerAndOfATrainerLeavesTheBits) {
  const Job job;
  const std::string saved = job.Path("killed");
  Job started = Job();
  started.servers = kServers;
  started.flags = {"--replicas=2"};
  const Processes servers = started.StartServers({"--checkpoint-dir=" + saved});
  const Processes trainers = started.StartTrainers(
      {kForLong, kKeepSome, "--lr=0.001", "--checkpoint-dir=" + saved});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << trainers[0]->output();
  servers[2]->Signal(SIGKILL);
  trainers[1]->Signal(SIGKILL);
  ASSERT_THAT(trainers[0]->WaitForOutput("a trainer died", kLong), IsOk());
  AwaitWholeEpoch(*trainers[0], saved, kSteps);
  Stop(*trainers[0]);
  ExpectUndisturbed(job, saved);
}

// `weft servers WORDS` on a job, until it has ended.
std::unique_ptr<Process> RunServers(const Job& job, const Flags& words) {
  Flags command = {Program("weft"), "servers"};
  command.insert(command.end(), words.begin(), words.end());
  command.push_back("--coordinator=" + job.coordinator);
  command.push_back("--job=" + job.name);
  auto process = StartProcess(command);
  EXPECT_THAT(process->Wait(kLong), IsOk()) << process->output();
  return process;
}

// The same until it has ended well: what it says.
std::string Servers(const Job& job, const Flags& words) {
  const auto process = RunServers(job, words);
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(0)) << process->output();
  return process->output();
}

// Another process takes the name and the part of the drained server.
TEST(Failover, DrainedServerIsStoppedAndTheTrainingEndsWithTheBits) {
  const Job job;
  const std::string saved = job.Path("moved");
  Job started = Job();
  started.servers = kServers;
  started.flags = {"--replicas=2"};
  const Flags serve = {"--checkpoint-dir=" + saved};
  Processes servers = started.StartServers(serve);
  const Processes trainers = started.StartTrainers(
      {kForLong, kKeepSome, "--lr=0.001", "--checkpoint-dir=" + saved});
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
  AwaitWholeEpoch(*trainers[0], saved, kSteps);
  for (const auto& trainer : trainers) trainer->Signal(SIGTERM);
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kTerminated))
        << trainer->output();
  }
  ExpectUndisturbed(job, saved);
}

// Waits until the servers show that each partition has both its copies. Returns
// what they show then.
std::string AwaitTwoCopies(const Job& job) {
  std::string list;
  EXPECT_TRUE(Becomes([&] {
    list = Servers(job, {"list", "--json"});
    return absl::StrContains(list, "\"single\":0") &&
           absl::StrContains(list, "\"lost\":0");
  })) << list;
  return list;
}

// A server that has nothing gets its part of the work. It dies amid the first
// moves, and comes back.
TEST(Failover, ServerThatTakesPartAgainGetsItsPartOfTheWorkAndTheBitsStay) {
  const Job job;
  const std::string saved = job.Path("balanced");
  Job started = Job();
  started.servers = kServers;
  started.flags = {"--replicas=2"};
  const Flags serve = {"--checkpoint-dir=" + saved};
  Processes servers = started.StartServers(serve);
  const Processes trainers = started.StartTrainers(
      {kForLong, kKeepSome, "--lr=0.001", "--checkpoint-dir=" + saved});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << trainers[0]->output();
  Servers(started, {"drain", "ps1", "--wait=60s"});
  Servers(started, {"add", "ps1"});
  std::string said;
  for (const Flags& words : {Flags{"balance", "--dry-run"}, {"balance"}}) {
    // Once there is a load that can be measured.
    EXPECT_TRUE(Becomes([&] {
      said = Servers(started, words);
      return absl::StrContains(said, " to ps1");
    })) << said;
  }
  servers[1]->Signal(SIGKILL);
  EXPECT_THAT(servers[1]->Wait(kLong), IsOk());
  servers[1] = started.StartServer(1, serve);
  const auto has_nothing = ::testing::ContainsRegex(
      "\"backup\":0,[^}]*\"name\":\"ps1\",\"primary\":0,");
  EXPECT_TRUE(Becomes([&] {
    // Ends with an error until all know that the former server is gone.
    RunServers(started, {"balance"});
    return !::testing::Value(AwaitTwoCopies(started), has_nothing);
  })) << AwaitTwoCopies(started);
  AwaitWholeEpoch(*trainers[0], saved, kSteps);
  for (const auto& trainer : trainers) trainer->Signal(SIGTERM);
  for (const auto& trainer : trainers) {
    EXPECT_THAT(trainer->Wait(kLong), IsOkAndHolds(kTerminated))
        << trainer->output();
  }
  ExpectUndisturbed(job, saved);
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
  // One copy is left of everything, and the training goes on with it.
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
