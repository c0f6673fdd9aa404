#include "weft/launch/run/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "weft/launch/run/rank_mark.h"
#include "weft/launch/run/run_directory.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

namespace fs = std::filesystem;

// A process group with one `sleep`, marked as a rank of `launcher`.
pid_t Rank(const std::string& launcher) {
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    setenv(kRankMark, MarkOf(launcher, 0, "ps0").c_str(), 1);
    execlp("sleep", "sleep", "600", nullptr);
    _exit(127);
  }
  setpgid(pid, pid);
  return pid;
}

// Whether the process ends within a minute; a zombie has ended.
::testing::AssertionResult Ends(pid_t pid) {
  return testing::Becomes([&] {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    return !(stat >> number >> name >> state) || state == "Z";
  });
}

// Runs a launcher with one rank, and kills it; the rank's process.
pid_t RunAndKillLauncher(const std::string& run, bool forgets) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) abort();
  const std::string launcher = DrawLauncherId();
  const pid_t pid = fork();
  if (pid == 0) {
    auto keeper =
        Keeper::Start(launcher, [&] { SweepRunDirectory(run); }).value();
    const pid_t rank = Rank(forgets ? "somebody else" : launcher);
    keeper->Watch(rank);
    if (forgets) keeper->Forget(rank);
    (void)!write(pipe_fds[1], &rank, sizeof rank);
    for (;;) pause();
  }
  pid_t rank = 0;
  if (read(pipe_fds[0], &rank, sizeof rank) != sizeof rank) abort();
  close(pipe_fds[0]);
  close(pipe_fds[1]);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return rank;
}

TEST(Keeper, RanksOfAKilledLauncherEndAndItsDirectoryIsSwept) {
  testing::TempDir directory;
  const std::string run = directory.path() + "/run";
  fs::create_directories(run);
  std::ofstream(run + "/coordinator.sock") << "";
  const pid_t rank = RunAndKillLauncher(run, /*forgets=*/false);
  EXPECT_TRUE(Ends(rank));
  EXPECT_TRUE(testing::Becomes([&] { return !fs::exists(run); }));
}

TEST(Keeper, GroupThatWasReapedIsLeftAlone) {
  testing::TempDir directory;
  const std::string run = directory.path() + "/run";
  fs::create_directories(run);
  const pid_t rank = RunAndKillLauncher(run, /*forgets=*/true);
  // The keeper does that last.
  EXPECT_TRUE(testing::Becomes([&] { return !fs::exists(run); }));
  EXPECT_EQ(kill(rank, 0), 0);
  kill(rank, SIGKILL);
}

}  // namespace
}  // namespace weft::launch
