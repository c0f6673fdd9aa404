#include "weft/launch/run/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/launch/run/run_directory.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr char kCoordinator[] = "unix:/j/coordinator.sock";

class RunLockTest : public ::testing::Test {
 protected:
  ~RunLockTest() override { End(); }

  absl::StatusOr<std::unique_ptr<RunLock>> Take(
      const std::string& coordinator = kCoordinator) const {
    const auto make_directory = [this]() -> absl::StatusOr<std::string> {
      fs::create_directories(job_);
      return job_;
    };
    return RunLock::Take(make_directory, "mnist", coordinator);
  }
  // Another process, which has taken the lock.
  void StartHolder() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) abort();
    holder_ = fork();
    if (holder_ == 0) {
      const auto lock = Take();
      const char is_ok = lock.ok() ? 1 : 0;
      (void)!write(fds[1], &is_ok, 1);
      for (;;) pause();
    }
    char is_ok = 0;
    if (read(fds[0], &is_ok, 1) != 1) abort();
    close(fds[0]);
    close(fds[1]);
    EXPECT_EQ(is_ok, 1);
  }
  void End() {
    if (holder_ <= 0) return;
    kill(holder_, SIGKILL);
    waitpid(holder_, nullptr, 0);
    holder_ = -1;
  }

  const testing::TempDir dir_;
  const std::string job_ = dir_.Path("mnist");
  pid_t holder_ = -1;
};

TEST_F(RunLockTest, OneProcessHasItUntilItEnds) {
  StartHolder();
  const absl::Status why = Take().status();
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kFailedPrecondition,
                            "job mnist runs already on this host"));
  for (const std::string& said :
       {absl::StrCat("process ", holder_, ","), std::string(kCoordinator),
        std::string("--job of its own")}) {
    EXPECT_THAT(std::string(why.message()), HasSubstr(said));
  }
  EXPECT_THAT(Take("127.0.0.1:7000"), IsOk());
  End();
  EXPECT_THAT(Take(), IsOk());
}

TEST_F(RunLockTest, WhatAProcessForksDoesNotHaveIt) {
  const auto lock = Take();
  ASSERT_THAT(lock, IsOk());
  const pid_t child = fork();
  if (child == 0) _exit(Take().ok() ? 1 : 0);
  int ended = -1;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
}

TEST_F(RunLockTest, IsSweptOnceNobodyHasIt) {
  StartHolder();
  const std::string mine = job_ + "/mine.lock";
  std::ofstream(mine) << "mine";
  SweepJobDirectory(job_);
  EXPECT_FALSE(Take().ok());
  End();
  SweepJobDirectory(job_);
  EXPECT_TRUE(fs::exists(mine));
  fs::remove(mine);
  SweepJobDirectory(job_);
  EXPECT_FALSE(fs::exists(job_));
}

TEST_F(RunLockTest, WithoutADirectoryThereIsNone) {
  const auto lock = RunLock::Take(
      [] { return absl::StatusOr<std::string>(""); }, "mnist", kCoordinator);
  ASSERT_THAT(lock, IsOk());
  EXPECT_EQ(*lock, nullptr);
  EXPECT_THAT(RunLock::Take(
                  [] {
                    return absl::StatusOr<std::string>(
                        absl::PermissionDeniedError("not yours"));
                  },
                  "mnist", kCoordinator),
              StatusIs(absl::StatusCode::kPermissionDenied, "not yours"));
}

}  // namespace
}  // namespace weft::launch
