// Data-parallel training on two hosts: a `weft run` for each, over TCP with
// mTLS. Both are on this machine; --host-id and directories of their own keep
// them from sharing memory.

#include <signal.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/aftermath.h"
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
// 256 images, 4 ranks with 8 a step.
constexpr int64_t kSteps = 8;
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
    const std::string directory = DirectoryOf(node);
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

  Processes StartBoth(const Flags& trainer, const Flags& run) const {
    Processes runs;
    for (int node = 0; node < kNodes; ++node) {
      runs.push_back(Start(node, trainer, run));
    }
    return runs;
  }

  // 0: it has not written it yet.
  pid_t PidOf(int rank) const {
    const std::string path = absl::StrCat(job_.Path("pid"), rank);
    int pid = 0;
    std::error_code none_yet;
    if (!std::filesystem::exists(path, none_yet) ||
        !absl::SimpleAtoi(absl::StripSuffix(ReadBytes(path), "\n"), &pid)) {
      return 0;
    }
    return pid;
  }

  // The directory of a host's sockets.
  std::string DirectoryOf(int node) const {
    return job_.Path(absl::StrCat("node", node));
  }

 private:
  const Job& job_;
  std::string coordinator_;
};

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

  const auto wanted = LoadNewest(job.Path("one"));
  const auto found = LoadNewest(job.Path("two"));
  ASSERT_THAT(wanted, IsOk());
  ASSERT_THAT(found, IsOk());
  ASSERT_TRUE(wanted->tensors.contains("conv1.weight"));
  ExpectNear(wanted->tensors, found->tensors, kTolerance);
}

// Starts training, gives rank 3 `signal`, and awaits the end of the others:
// what those of the other host have said.
void EndedAfter(int signal, const Flags& more, std::string* output) {
  const Job job;
  const Hosts hosts(job);
  const std::string saved = job.Path("saved");
  Flags flags = {kForLong, "--checkpoint-dir=" + saved};
  flags.insert(flags.end(), more.begin(), more.end());
  const auto first = hosts.Start(0, flags);
  const auto second = hosts.Start(1, flags);
  ASSERT_TRUE(Becomes([&] { return !Checkpoints(saved).empty(); }))
      << first->output() << second->output();
  const pid_t pid = hosts.PidOf(3);
  ASSERT_EQ(kill(pid, signal), 0);
  EXPECT_THAT(first->Wait(kLong), IsOkAndHolds(kPeerLost)) << first->output();
  *output = first->output();
  (void)kill(pid, SIGKILL);  // one that was stopped
  EXPECT_TRUE(second->Wait(kLong).ok()) << second->output();
}

TEST(DataParallelHosts, RankThatIsKilledIsNamedOnTheOtherHost) {
  std::string output;
  EndedAfter(SIGKILL, {}, &output);
  EXPECT_THAT(output,
              ContainsRegex("rank 3 (has ended|is gone).* it last called"));
}

// The parameter is the number of kills.
class KillInALoop : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(DataParallelHosts, KillInALoop, ::testing::Values(2));
// tests/run.sh --long
INSTANTIATE_TEST_SUITE_P(DISABLED_ManyTimes, KillInALoop,
                         ::testing::Values(20));

// kill -9 of one rank after another, on either host, each time after another
// checkpoint of the restarted job: each host's `weft run` starts its own ranks
// again, and what is left must be what a job without any has. The training
// lasts until the last kill: see kForLong in job.h.
TEST_P(KillInALoop, KilledRanksAreRestartedFromTheLastCheckpoint) {
  const int rounds = GetParam();
  const Job quiet_job, job;
  const Hosts quiet_hosts(quiet_job), hosts(job);
  const auto flags = [&](const Job& of, const std::string& epochs) {
    return Flags{epochs, kKeepSome, "--checkpoint-dir=" + of.Path("saved")};
  };
  const Flags restarts = {absl::StrCat("--max-restarts=", rounds)};
  const Processes runs = hosts.StartBoth(flags(job, kForLong), restarts);
  const std::string saved = job.Path("saved");
  std::set<pid_t> seen = {0};
  for (int round = 0; round < rounds; ++round) {
    const int rank = (3 + round) % (kNodes * kRanksOfNode);
    const Process& run = *runs[rank / kRanksOfNode];
    const std::string before = NewestName(saved);
    ASSERT_TRUE(Becomes([&] {
      return NewestName(saved) > before && seen.count(hosts.PidOf(rank)) == 0;
    })) << runs[0]->output()
        << runs[1]->output();
    for (int each = 0; each < kNodes * kRanksOfNode; ++each) {
      seen.insert(hosts.PidOf(each));
    }
    ASSERT_EQ(kill(hosts.PidOf(rank), SIGKILL), 0);
    for (const auto& each : runs) {
      ASSERT_THAT(each->WaitForOutput(
                      absl::StrCat("restart ", round + 1, " of "), kLong),
                  IsOk());
    }
    EXPECT_THAT(
        run.output(),
        HasSubstr(absl::StrCat("trainer", rank, " failed: killed by SIGKILL")));
  }
  AwaitWholeEpoch(*runs[0], saved, kSteps);
  for (const auto& each : runs) each->Signal(SIGTERM);
  for (const auto& each : runs) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(128 + SIGTERM))
        << each->output();
  }
  EXPECT_THAT(runs[0]->output(), HasSubstr("resuming"));
  for (int node = 0; node < kNodes; ++node) {
    ExpectNothingLeft(hosts.DirectoryOf(node));
  }

  // What was stopped goes on to an end.
  const std::string epochs =
      absl::StrCat("--epochs=", StepOf(NewestName(saved)) / kSteps + 2);
  Flags resume = flags(job, epochs);
  resume.push_back("--resume");
  const Processes resumed = hosts.StartBoth(resume, {});
  for (const auto& each : resumed) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(0)) << each->output();
  }
  EXPECT_THAT(resumed[0]->output(), HasSubstr("[trainer0] test accuracy"));
  for (const auto& each : quiet_hosts.StartBoth(flags(quiet_job, epochs), {})) {
    EXPECT_THAT(each->Wait(kLong), IsOkAndHolds(0)) << each->output();
  }
  const auto wanted = LoadNewest(quiet_job.Path("saved"));
  const auto found = LoadNewest(saved);
  ASSERT_THAT(wanted, IsOk());
  ASSERT_THAT(found, IsOk());
  EXPECT_EQ(found->manifest.step, wanted->manifest.step);
  ExpectNear(wanted->tensors, found->tensors, 0);
}

TEST(DataParallelHosts, RankThatIsSilentIsNamedOnTheOtherHost) {
  std::string output;
  EndedAfter(SIGSTOP, {"--limits=suspect_after=2s,dead_after=6s"}, &output);
  EXPECT_THAT(
      output,
      ContainsRegex("rank 3 is gone .silent for [0-9]+s.; it last called"));
}

}  // namespace
}  // namespace weft::testing
