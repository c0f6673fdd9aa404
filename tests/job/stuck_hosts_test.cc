// What `weft run` says of a job of two nodes that is stuck. Both are on this
// machine, each with a directory of its own.

#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/job/job.h"
#include "weft/tests/support/etcd.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using ::testing::ContainsRegex;

class StuckHosts : public ::testing::Test {
 protected:
  // One rank of stuck_worker on each node.
  void Start(const std::string& how) {
    StartAt(absl::StrCat("--coordinator=127.0.0.1:", FreePort()), how);
  }
  // Where they meet as `meeting` says.
  void StartAt(const std::string& meeting, const std::string& how) {
    for (int node = 0; node < 2; ++node) {
      const std::string directory = dir_.Path(absl::StrCat("node", node));
      std::filesystem::create_directory(directory);
      std::filesystem::permissions(directory,
                                   std::filesystem::perms::owner_all);
      Command command;
      command.env = {"XDG_RUNTIME_DIR=" + directory,
                     absl::StrCat("WEFT_HOST_ID=node", node)};
      command.argv = {Program("weft"), "run", "--nnodes=2",
                      absl::StrCat("--node-rank=", node), "--nproc-per-node=1",
                      "--job=stuck", meeting, "--insecure",
                      // Who is stopped is not to be dead before it goes on.
                      "--silence=100s", "--events=" + Events(node),
                      RunfilePath("tests/job/stuck_worker"), how,
                      dir_.Path("go")};
      auto process = Process::Start(std::move(command));
      ASSERT_THAT(process, IsOk());
      runs_.push_back(*std::move(process));
    }
    EXPECT_THAT(runs_[0]->WaitForOutput("all are in", kLong), IsOk());
  }
  std::string Events(int node) const {
    return dir_.Path(absl::StrCat("events", node));
  }
  // The launcher of trainer0 says it, which runs on the other node.
  void ExpectToSay(const std::string& what) {
    EXPECT_THAT(runs_[0]->WaitForOutput("no progress: ", kLong), IsOk());
    EXPECT_TRUE(Becomes([&] {
      return ::testing::Matches(ContainsRegex(what))(runs_[0]->output());
    })) << runs_[0]->output()
        << runs_[1]->output();
  }
  void End() {
    WriteBytes(dir_.Path("go"), "go");
    for (const auto& run : runs_) {
      EXPECT_THAT(run->Wait(kLong), IsOkAndHolds(0)) << run->output();
    }
  }

  const TempDir dir_;
  std::vector<std::unique_ptr<Process>> runs_;
};

TEST_F(StuckHosts, RankOfTheOtherNodeThatSleepsIsNamedWithItsClass) {
  Start("sleep");
  const pid_t trainer = FindWorker(*runs_[1], "trainer", 1);
  ExpectToSay(absl::StrCat(
      "no progress: trainer0 waits in Barrier #10 of group trainer/world#[^ ]* "
      ".[0-9.]+ s. for trainer1 .pid ",
      trainer, " on [^ ]*, which runs and is not in that call: it "));
  End();
  EXPECT_THAT(ReadBytes(Events(0)),
              ContainsRegex(absl::StrCat(
                  R"("event":"stuck","class":"busy","ranks":"trainer1",)"
                  R"("waiting":"trainer0".*"pid":)",
                  trainer)));
}

TEST_F(StuckHosts, RankOfTheOtherNodeThatIsStoppedIsNamedWithItsClass) {
  Start("run");
  const pid_t trainer = FindWorker(*runs_[1], "trainer", 1);
  ASSERT_GT(trainer, 0);
  ASSERT_EQ(kill(trainer, SIGSTOP), 0);
  ExpectToSay(
      absl::StrCat("no progress: trainer0 waits in .* for trainer1 "
                   ".pid ",
                   trainer, " on [^ ]*, which is stopped"));
  ASSERT_EQ(kill(trainer, SIGCONT), 0);
  End();
}

// The launchers find the coordinator as the ranks do.
TEST_F(StuckHosts, WhereTheyMeetByEtcdRanksOfTheOtherNodeAreNamed) {
  if (!Etcd::IsInstalled()) GTEST_SKIP() << "etcd is not installed";
  const auto etcd = Etcd::Start(dir_.path());
  ASSERT_THAT(etcd, IsOk());
  StartAt("--init=" + (*etcd)->url(), "sleep");
  const pid_t trainer = FindWorker(*runs_[1], "trainer", 1);
  ExpectToSay(
      absl::StrCat("no progress: trainer0 waits in .* for trainer1 "
                   ".pid ",
                   trainer, " on [^ ]*, which runs and is not in that call"));
  End();
}

TEST_F(StuckHosts, WhereTheyMeetByAnAddressRanksOfTheOtherNodeAreNamed) {
  StartAt(absl::StrCat("--init=tcp://127.0.0.1:", FreePort()), "sleep");
  const pid_t trainer = FindWorker(*runs_[1], "trainer", 1);
  ExpectToSay(
      absl::StrCat("no progress: trainer0 waits in .* for trainer1 "
                   ".pid ",
                   trainer, " on [^ ]*, which runs and is not in that call"));
  End();
}

TEST_F(StuckHosts, RanksOfTwoNodesThatCalledDifferentThingsAreNamed) {
  Start("order");
  ExpectToSay("called different things");
  EXPECT_THAT(runs_[0]->output(),
              ContainsRegex("trainer1 is in AllReduce #0 of group "
                            "trainer/other#"));
  for (const auto& run : runs_) run->Signal(SIGTERM);
  for (const auto& run : runs_) EXPECT_THAT(run->Wait(kLong), IsOk());
}

}  // namespace
}  // namespace weft::testing
