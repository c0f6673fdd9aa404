// Data-parallel training on two hosts: a `weft run` for each, over TCP with
// mTLS. Both are on this machine; --host-id and directories of their own keep
// them from sharing memory.

#include <signal.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/checkpoint/checkpoint_directory.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kPeerLost = 10;
constexpr int kNodes = 2;
constexpr int kRanksOfNode = 2;
// Sums are of another order than in the memory of one host.
constexpr double kTolerance = 1e-5;

// A job of two hosts with two trainers each.
class Hosts {
 public:
  explicit Hosts(const Job& job) : job_(job) {
    const auto init = StartProcess(
        {Program("weft"), "certs", "init", "--dir=" + job.Path("certs"),
         "--job=hosts", absl::StrCat("--trainers=", kNodes * kRanksOfNode)});
    EXPECT_THAT(init->Wait(kLong), IsOkAndHolds(0)) << init->output();
    coordinator_ = absl::StrCat("127.0.0.1:", FreePort());
  }

  // `weft run` of a host; each rank writes its process number to PidOf(rank).
  std::unique_ptr<Process> Start(int node, const Flags& trainer,
                                 const Flags& run = {}) const {
    const std::string directory = job_.Path(absl::StrCat("node", node));
    std::filesystem::create_directory(directory);
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all);
    Command command;
    command.env = {"XDG_RUNTIME_DIR=" + directory,
                   absl::StrCat("WEFT_HOST_ID=node", node),
                   "OMP_NUM_THREADS=1"};
    command.argv = {Program("weft"),
                    "run",
                    absl::StrCat("--nnodes=", kNodes),
                    absl::StrCat("--node-rank=", node),
                    absl::StrCat("--nproc-per-node=", kRanksOfNode),
                    "--job=hosts",
                    "--coordinator=" + coordinator_,
                    "--certs=" + job_.Path("certs")};
    const auto append = [&](const Flags& words) {
      command.argv.insert(command.argv.end(), words.begin(), words.end());
    };
    append(run);
    append({"sh", "-c", "echo $$ >" + job_.Path("pid") + "$RANK; exec \"$@\"",
            "sh", Program("trainer"), "--strategy=ddp", "--data=" + job_.data,
            "--batch-size=8", "--lr=0.001", "--dump-dir=" + job_.Path("")});
    append(trainer);
    auto process = Process::Start(std::move(command));
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }

  pid_t PidOf(int rank) const {
    int pid = 0;
    const std::string text = ReadBytes(absl::StrCat(job_.Path("pid"), rank));
    EXPECT_TRUE(absl::SimpleAtoi(absl::StripSuffix(text, "\n"), &pid)) << text;
    return pid;
  }

 private:
  const Job& job_;
  std::string coordinator_;
};

checkpoint::NamedTensors Newest(const std::string& saved) {
  checkpoint::CheckpointDirectory::Options options;
  options.path = saved;
  const auto directory = checkpoint::CheckpointDirectory::Open(options);
  EXPECT_THAT(directory, IsOk());
  const auto loaded = (*directory)->LoadLatest();
  EXPECT_THAT(loaded, IsOk());
  if (!loaded.ok()) return {};
  return loaded->tensors;
}

TEST(DataParallelHosts, TwoHostsEndWithTheWeightsOfOne) {
  const Job job;
  const auto one = StartProcess(
      {Program("weft"), "run", "--nproc-per-node=4", Program("trainer"),
       "--strategy=ddp", "--data=" + job.data, "--batch-size=8", "--lr=0.001",
       "--epochs=2", "--checkpoint-dir=" + job.Path("one")});
  EXPECT_THAT(one->Wait(kLong), IsOkAndHolds(0)) << one->output();

  const Hosts hosts(job);
  const Flags flags = {"--epochs=2", "--checkpoint-dir=" + job.Path("two")};
  const auto second = hosts.Start(1, flags);
  const auto first = hosts.Start(0, flags);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(0)) << first->output();
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(0)) << second->output();
  EXPECT_THAT(first->output(), HasSubstr("[trainer0] test accuracy"));

  const auto wanted = Newest(job.Path("one"));
  const auto found = Newest(job.Path("two"));
  ASSERT_TRUE(wanted.contains("conv1.weight"));
  for (const auto& [name, tensor] : wanted) {
    if (name.rfind("optimizer/", 0) == 0) continue;
    ASSERT_TRUE(found.contains(name)) << name;
    const auto a = tensor.ToVector<float>();
    const auto b = found.at(name).ToVector<float>();
    ASSERT_EQ(a.size(), b.size()) << name;
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], kTolerance) << name << " " << i;
    }
  }
}

// Starts training, gives rank 3 `signal`, and awaits the end of the others.
void ExpectRankNamedAfter(int signal, const Flags& more,
                          const std::string& reason) {
  const Job job;
  const Hosts hosts(job);
  const std::string saved = job.Path("saved");
  Flags flags = {"--epochs=100000", "--checkpoint-dir=" + saved};
  flags.insert(flags.end(), more.begin(), more.end());
  const auto first = hosts.Start(0, flags);
  const auto second = hosts.Start(1, flags);
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << first->output() << second->output();
  const pid_t pid = hosts.PidOf(3);
  ASSERT_EQ(kill(pid, signal), 0);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(kPeerLost)) << first->output();
  EXPECT_THAT(first->output(), ContainsRegex(reason));
  (void)kill(pid, SIGKILL);  // one that was stopped
  EXPECT_TRUE(second->Wait(kLong).ok()) << second->output();
}

TEST(DataParallelHosts, RankThatIsKilledIsNamedOnTheOtherHost) {
  ExpectRankNamedAfter(SIGKILL, {},
                       "rank 3 (has ended|is gone).* it last called");
}

// Each host's `weft run` starts its own ranks again.
TEST(DataParallelHosts, JobGoesOnFromItsCheckpointAfterARankWasKilled) {
  const Job job;
  const Hosts hosts(job);
  const std::string saved = job.Path("saved");
  const Flags flags = {"--epochs=200", "--keep=1", "--checkpoint-dir=" + saved};
  const auto first = hosts.Start(0, flags, {"--max-restarts=3"});
  const auto second = hosts.Start(1, flags, {"--max-restarts=3"});
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << first->output() << second->output();
  ASSERT_EQ(kill(hosts.PidOf(3), SIGKILL), 0);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(0)) << first->output();
  EXPECT_THAT(second->Wait(kLong), IsOkAndHolds(0)) << second->output();
  EXPECT_THAT(first->output(), HasSubstr("resuming"));
  EXPECT_THAT(first->output(), HasSubstr("[trainer0] test accuracy"));
}

TEST(DataParallelHosts, RankThatIsSilentIsNamedOnTheOtherHost) {
  ExpectRankNamedAfter(SIGSTOP, {"--limits=suspect_after=1s,dead_after=3s"},
                       "rank 3 is gone .silent for 3s.; it last called");
}

}  // namespace
}  // namespace weft::testing
