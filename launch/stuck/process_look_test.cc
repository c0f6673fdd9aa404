#include "weft/launch/stuck/process_look.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"

namespace weft::launch {
namespace {

TEST(ProcessLook, ReadsStateAndCpuTime) {
  const auto look = ParseProcessStat(
      "12 (a ) S (b) R 1 12 12 0 -1 4194560 1 0 0 0 150 50 7 7 20 0 1 0 5 6 7",
      100);
  ASSERT_TRUE(look.has_value());
  EXPECT_EQ(look->state, 'R');
  EXPECT_EQ(look->cpu, absl::Seconds(2));
  EXPECT_FALSE(look->is_stopped());
}

TEST(ProcessLook, IsNothingOfOtherText) {
  for (const char* const text : {"", "12", "12 (a)", "12 (a) S 1 2",
                                 "12 (a) SS 1 2 3 4 5 6 7 8 9 10 11 12",
                                 "12 (a) S 1 2 3 4 5 6 7 8 9 10 x 12 13",
                                 "12 (a) S 1 2 3 4 5 6 7 8 9 10 "
                                 "-1 12 13"}) {
    EXPECT_FALSE(ParseProcessStat(text, 100).has_value()) << text;
  }
  EXPECT_FALSE(
      ParseProcessStat("12 (a) S 1 2 3 4 5 6 7 8 9 10 1 12 13", 0).has_value());
  EXPECT_FALSE(LookAt(-1).has_value());
}

TEST(ProcessLook, SeesAProcessThatIsStopped) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  ASSERT_GT(child, 0);
  kill(child, SIGSTOP);
  EXPECT_TRUE(testing::Becomes([&] {
    const auto look = LookAt(child);
    return look.has_value() && look->is_stopped() && look->pid == child;
  }));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(LookAt(child).has_value());
}

// The process is a shell that waits for the program that it has started.
TEST(ProcessLook, SeesTheProgramOfAShellThatIsStopped) {
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  const pid_t shell = fork();
  if (shell == 0) {
    const pid_t program = fork();
    if (program == 0) {
      for (;;) pause();
    }
    (void)!write(pipe_fds[1], &program, sizeof(program));
    waitpid(program, nullptr, 0);
    _exit(0);
  }
  pid_t program = -1;
  ASSERT_EQ(read(pipe_fds[0], &program, sizeof(program)),
            static_cast<ssize_t>(sizeof(program)));
  kill(program, SIGSTOP);
  EXPECT_TRUE(testing::Becomes([&] {
    const auto look = LookAt(shell);
    return look.has_value() && look->is_stopped() && look->pid == program;
  }));
  kill(program, SIGKILL);
  waitpid(shell, nullptr, 0);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

}  // namespace
}  // namespace weft::launch
