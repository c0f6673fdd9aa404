#include "weft/launch/run/rank_mark.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"

namespace weft::launch {
namespace {

// A process in a session of its own with this mark; ended by the test's end.
pid_t Marked(const std::string& mark) {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) abort();
  const pid_t pid = fork();
  if (pid == 0) {
    setsid();
    setenv(kRankMark, mark.c_str(), 1);
    execlp("sleep", "sleep", "600", nullptr);
    _exit(127);
  }
  close(ready[1]);
  char byte;
  (void)!read(ready[0], &byte, 1);  // ends once sleep is about to run
  close(ready[0]);
  EXPECT_TRUE(testing::Becomes([&] {
    std::ifstream file(absl::StrCat("/proc/", pid, "/environ"));
    const std::string variables{std::istreambuf_iterator<char>(file), {}};
    return absl::StrContains(variables, absl::StrCat(kRankMark, "=", mark));
  }));
  return pid;
}

bool IsKilled(pid_t pid) {
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
         WTERMSIG(status) == SIGKILL;
}

TEST(RankMark, MarkOfARankIsNoPrefixOfAnother) {
  const std::string launcher = DrawLauncherId();
  EXPECT_NE(launcher, DrawLauncherId());
  const std::string one = MarkOf(launcher, 0, "trainer1");
  EXPECT_FALSE(absl::StartsWith(MarkOf(launcher, 0, "trainer10"), one));
  EXPECT_FALSE(absl::StartsWith(MarkOf(launcher, 1, "trainer1"), one));
  EXPECT_TRUE(absl::StartsWith(one, MarkOfAll(launcher)));
}

TEST(RankMark, OnlyProcessesWithTheMarkAreKilled) {
  const std::string launcher = DrawLauncherId();
  const pid_t mine = Marked(MarkOf(launcher, 0, "ps0"));
  const pid_t other = Marked(MarkOf(launcher, 0, "ps1"));
  const pid_t stranger = Marked(MarkOf(DrawLauncherId(), 0, "ps0"));
  KillMarked({MarkOf(launcher, 0, "ps0")});
  EXPECT_TRUE(IsKilled(mine));
  EXPECT_EQ(waitpid(other, nullptr, WNOHANG), 0);
  KillMarked({MarkOfAll(launcher)});
  EXPECT_TRUE(IsKilled(other));
  EXPECT_EQ(waitpid(stranger, nullptr, WNOHANG), 0);
  kill(stranger, SIGKILL);
  EXPECT_TRUE(IsKilled(stranger));
}

}  // namespace
}  // namespace weft::launch
