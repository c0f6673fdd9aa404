// An elastic training on three hosts: a `weft run --nnodes=1:3` for each, over
// TCP with mTLS, or where they meet by etcd over sockets. A host is lost with
// all that runs on it, and comes back. All three are on this machine; --host-id
// and directories of their own keep them from sharing memory.

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
#include "weft/tests/support/etcd.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kNodes = 3;
// 256 images, 4 shards of 4 a step.
constexpr int64_t kSteps = 16;

// It lasts until the test stops it: see kForLong in job.h.
Flags Trainer(const Job& job, const std::string& saved,
              const std::string& epochs = kForLong) {
  return {Program("trainer"),
          "--strategy=ddp",
          "--virtual-shards=4",
          "--data=" + job.data,
          "--batch-size=4",
          "--lr=0.001",
          epochs,
          kKeepSome,
          "--checkpoint-dir=" + saved,
          "--dump-dir=" + job.Path("")};
}

std::string ModelIn(const std::string& checkpoint) {
  return ReadBytes(checkpoint + "/shard-00000.safetensors");
}

class Hosts {
 public:
  explicit Hosts(const Job& job)
      : job_(job),
        meet_({absl::StrCat("--coordinator=127.0.0.1:", FreePort()),
               "--certs=" + job.Path("certs")}) {
    const auto init = StartProcess({Program("weft"), "certs", "init",
                                    "--dir=" + job.Path("certs"), "--job=hosts",
                                    absl::StrCat("--trainers=", kNodes)});
    EXPECT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
  }

  Hosts(const Job& job, const Etcd& etcd)
      : job_(job), meet_({"--init=" + etcd.url(), "--silence=3s"}) {}

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
                    "--job=hosts"};
    for (const std::string& word : meet_) command.argv.push_back(word);
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
  const Flags meet_;
};

// The training, which was stopped, has the bits of one that nobody touched.
void ExpectUndisturbed(const Job& job, const std::string& saved) {
  const Epochs trained = WholeEpochs(saved, kSteps);
  ASSERT_GT(trained.count, 0);
  const std::string undisturbed = job.Path("undisturbed");
  Flags argv = {Program("weft"), "run", "--nproc-per-node=1"};
  for (const std::string& word : Trainer(job, undisturbed, trained.flag())) {
    argv.push_back(word);
  }
  const auto run = StartProcess(std::move(argv));
  EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
  EXPECT_EQ(ModelIn(trained.checkpoint) ==
                ModelIn(undisturbed + "/" + NewestName(undisturbed)),
            true)
      << trained.checkpoint;
}

// The host of the coordinator last: without it the others would fail.
void StopAll(const std::vector<Process*>& runs) {
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    (*run)->Signal(SIGTERM);
  }
  for (Process* run : runs) {
    EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
        << run->output() << runs[0]->output();
  }
}

void AwaitNextCheckpoint(const Process& run, const std::string& saved) {
  const auto before = Checkpoints(saved);
  ASSERT_TRUE(Becomes([&] { return Checkpoints(saved) != before; }))
      << run.output();
}

// Each host but that of the coordinator is lost once.
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
    EXPECT_THAT(runs[lost]->WaitForOutput("taking part", kLong), IsOk());
  }
  AwaitWholeEpoch(*runs[0], saved, kSteps);
  StopAll({runs[0].get(), runs[1].get(), runs[2].get()});
  ExpectUndisturbed(job, saved);
  for (int node = 0; node < kNodes; ++node) {
    ExpectNothingLeft(hosts.DirectoryOf(node));
  }
}

// Of each host, one after another, that of the coordinator among them: another
// goes on in its place.
TEST(ElasticHosts, AnyHostMayBeLostWhereTheyMeetByEtcd) {
  if (!Etcd::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
  const Job job;
  const TempDir etcd_dir;
  const auto etcd = Etcd::Start(etcd_dir.path());
  ASSERT_THAT(etcd, IsOk());
  const Hosts hosts(job, **etcd);
  const std::string saved = job.Path("saved");
  std::vector<std::unique_ptr<Process>> runs;
  for (int node = 0; node < kNodes; ++node) {
    runs.push_back(hosts.Start(node, saved));
  }
  for (int lost = 0; lost < kNodes; ++lost) {
    const Process& other = *runs[(lost + 1) % kNodes];
    AwaitNextCheckpoint(other, saved);
    runs[lost]->Signal(SIGKILL);
    EXPECT_TRUE(runs[lost]->Wait(kLong).ok());
    AwaitNextCheckpoint(other, saved);
    runs[lost] = hosts.Start(lost, saved, {"--resume"});
    EXPECT_THAT(runs[lost]->WaitForOutput("taking part", kLong), IsOk())
        << runs[lost]->output();
  }
  AwaitWholeEpoch(*runs[0], saved, kSteps);
  StopAll({runs[0].get(), runs[1].get(), runs[2].get()});
  ExpectUndisturbed(job, saved);
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
  for (const int node : {0, 1}) runs.push_back(hosts.Start(node, saved));
  AwaitNextCheckpoint(*runs[0], saved);
  runs.push_back(hosts.Start(2, saved, {"--resume"}));
  ASSERT_THAT(runs[2]->WaitForOutput("taking part", kLong), IsOk());
  runs[2]->Signal(SIGTERM);
  EXPECT_THAT(runs[2]->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
      << runs[2]->output();
  EXPECT_THAT(runs[2]->output(), HasSubstr("the others go on"));
  AwaitWholeEpoch(*runs[0], saved, kSteps);
  StopAll({runs[0].get(), runs[1].get()});
  ExpectUndisturbed(job, saved);
}

}  // namespace
}  // namespace weft::testing
