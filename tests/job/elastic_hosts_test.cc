// An elastic training on three hosts: a `weft run --nnodes=1:3` for each, over
// TCP with mTLS. A host is lost with all that runs on it, and comes back. All
// three are on this machine; --host-id and directories of their own keep them
// from sharing memory.

#include <signal.h>

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

constexpr int kNodes = 3;

Flags Trainer(const Job& job, const std::string& saved) {
  return {Program("trainer"),
          "--strategy=ddp",
          "--virtual-shards=4",
          "--data=" + job.data,
          "--batch-size=4",
          "--lr=0.001",
          "--epochs=80",
          "--checkpoint-dir=" + saved,
          "--dump-dir=" + job.Path("")};
}

std::string ModelOf(const std::string& saved) {
  return ReadBytes(
      absl::StrCat(saved, "/", NewestName(saved), "/shard-00000.safetensors"));
}

class Hosts {
 public:
  explicit Hosts(const Job& job)
      : job_(job), meet_(absl::StrCat("--coordinator=127.0.0.1:", FreePort())) {
    const auto init = StartProcess({Program("weft"), "certs", "init",
                                    "--dir=" + job.Path("certs"), "--job=hosts",
                                    absl::StrCat("--trainers=", kNodes)});
    EXPECT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
  }

  // `weft run` of a host, of one trainer.
  std::unique_ptr<Process> Start(int node, const std::string& saved,
                                 const Flags& more = {}) const {
    const std::string directory = DirectoryOf(node);
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + directory,
                   absl::StrCat("WEFT_HOST_ID=node", node),
                   "OMP_NUM_THREADS=1"};
    command.argv = {Program("weft"),
                    "run",
                    absl::StrCat("--nnodes=1:", kNodes),
                    absl::StrCat("--node-rank=", node),
                    "--nproc-per-node=1",
                    "--job=hosts",
                    meet_,
                    "--certs=" + job_.Path("certs")};
    for (const std::string& word : Trainer(job_, saved)) {
      command.argv.push_back(word);
    }
    for (const std::string& word : more) command.argv.push_back(word);
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }

  std::string DirectoryOf(int node) const {
    return job_.Path(absl::StrCat("node", node));
  }

 private:
  const Job& job_;
  const std::string meet_;
};

std::string UndisturbedModel(const Job& job) {
  const std::string saved = job.Path("undisturbed");
  Flags argv = {Program("weft"), "run", "--nproc-per-node=1"};
  for (const std::string& word : Trainer(job, saved)) argv.push_back(word);
  const auto run = StartProcess(std::move(argv));
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  return ModelOf(saved);
}

void AwaitNextCheckpoint(const Process& run, const std::string& saved) {
  const auto before = Checkpoints(saved);
  ASSERT_TRUE(Becomes([&] { return Checkpoints(saved) != before; }))
      << run.output();
}

// All but the host of the coordinator.
TEST(ElasticHosts, HostThatIsLostComesBackAndTheBitsStay) {
  const Job job;
  const Hosts hosts(job);
  const std::string saved = job.Path("saved");
  std::vector<std::unique_ptr<Process>> runs;
  for (int node = 0; node < kNodes; ++node) {
    runs.push_back(hosts.Start(node, saved));
  }
  for (const int lost : {1, 2}) {
    AwaitNextCheckpoint(*runs[0], saved);
    runs[lost]->Signal(SIGKILL);
    EXPECT_TRUE(runs[lost]->Wait(kLong).ok());
    AwaitNextCheckpoint(*runs[0], saved);
    runs[lost] = hosts.Start(lost, saved, {"--resume"});
  }
  for (int node = 0; node < kNodes; ++node) {
    EXPECT_THAT(runs[node]->Wait(kLong), IsOkAndHolds(0))
        << runs[node]->output() << runs[0]->output();
  }
  EXPECT_EQ(ModelOf(saved) == UndisturbedModel(job), true) << runs[0]->output();
  for (int node = 0; node < kNodes; ++node) {
    ExpectNothingLeft(hosts.DirectoryOf(node));
  }
}

// As before it is taken away: `weft run` is asked to end, and the others go on.
TEST(ElasticHosts, HostThatIsGivenBackLeavesTheOthersAtWork) {
  const Job job;
  const Hosts hosts(job);
  const std::string saved = job.Path("saved");
  std::vector<std::unique_ptr<Process>> runs;
  for (int node = 0; node < kNodes; ++node) {
    runs.push_back(hosts.Start(node, saved));
  }
  AwaitNextCheckpoint(*runs[0], saved);
  runs[2]->Signal(SIGTERM);
  EXPECT_THAT(runs[2]->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
      << runs[2]->output();
  EXPECT_THAT(runs[2]->output(), HasSubstr("the others go on"));
  for (const int node : {0, 1}) {
    EXPECT_THAT(runs[node]->Wait(kLong), IsOkAndHolds(0))
        << runs[node]->output();
  }
  EXPECT_EQ(ModelOf(saved) == UndisturbedModel(job), true) << runs[0]->output();
}

}  // namespace
}  // namespace weft::testing
