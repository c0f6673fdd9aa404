#include "weft/rendezvous/process_watch.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "gtest/gtest.h"
#include "weft/tests/support/patience.h"

namespace weft::rendezvous {
namespace {

using ::weft::testing::Becomes;

// A child that waits to be killed, or runs until then, and says who it is.
class Child {
 public:
  explicit Child(bool is_busy = false) {
    int pipe_fds[2];
    EXPECT_EQ(pipe(pipe_fds), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const auto self = ThisProcess();
      const std::string bytes = self ? self->SerializeAsString() : "";
      (void)!write(pipe_fds[1], bytes.data(), bytes.size());
      for (;;) {
        if (!is_busy) pause();
      }
    }
    close(pipe_fds[1]);
    char bytes[4096];
    const ssize_t size = read(pipe_fds[0], bytes, sizeof bytes);
    close(pipe_fds[0]);
    EXPECT_TRUE(size > 0 && process_.ParseFromArray(bytes, size));
  }
  ~Child() {
    Kill();
    Reap();
  }
  void Kill() const { kill(pid_, SIGKILL); }
  // Returns once it runs no more.
  void Stop() const {
    kill(pid_, SIGSTOP);
    EXPECT_EQ(waitpid(pid_, nullptr, WUNTRACED), pid_);
  }
  void Reap() {
    if (!is_reaped_) waitpid(pid_, nullptr, 0);
    is_reaped_ = true;
  }
  const v1::Process& process() const { return process_; }

 private:
  pid_t pid_;
  bool is_reaped_ = false;
  v1::Process process_;
};

TEST(ProcessWatch, SeesTheExitOfAnUnreapedProcess) {
  const Child child;
  const auto watch = ProcessWatch::Of(child.process());
  ASSERT_TRUE(watch.has_value());
  EXPECT_FALSE(watch->HasEnded());
  child.Kill();
  EXPECT_TRUE(Becomes([&] { return watch->HasEnded(); }));
}

TEST(ProcessWatch, ReportsAProcessThatHadEndedBefore) {
  Child child;
  child.Kill();
  child.Reap();
  const auto watch = ProcessWatch::Of(child.process());
  ASSERT_TRUE(watch.has_value());
  EXPECT_TRUE(watch->HasEnded());
}

TEST(ProcessWatch, IsNotMisledByAPidThatIsUsedAgain) {
  const Child child;
  v1::Process earlier = child.process();
  earlier.set_started(earlier.started() - 1);
  const auto watch = ProcessWatch::Of(earlier);
  ASSERT_TRUE(watch.has_value());
  EXPECT_TRUE(watch->HasEnded());
}

TEST(ProcessWatch, SeesWhetherAProcessRuns) {
  const Child child(/*is_busy=*/true);
  auto watch = ProcessWatch::Of(child.process());
  ASSERT_TRUE(watch.has_value());
  EXPECT_TRUE(Becomes([&] { return watch->HasRun(); }));
  EXPECT_TRUE(Becomes([&] { return watch->HasRun(); }));
  child.Stop();
  // What it used before it stopped is seen once at most.
  EXPECT_TRUE(Becomes([&] { return !watch->HasRun(); }));
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(watch->HasRun());
  child.Kill();
  EXPECT_TRUE(Becomes([&] { return watch->HasEnded(); }));
  EXPECT_FALSE(watch->HasRun());
}

TEST(ExitWatch, SaysThatOneHasEndedAndSleepsOtherwise) {
  std::atomic<int> calls = 0;
  const auto exits = ExitWatch::Create([&] { ++calls; });
  ASSERT_NE(exits, nullptr);
  Child first, second;
  auto watch_of_first = ProcessWatch::Of(first.process());
  const auto watch_of_second = ProcessWatch::Of(second.process());
  ASSERT_TRUE(watch_of_first.has_value() && watch_of_second.has_value());
  EXPECT_TRUE(exits->Add(*watch_of_first));
  EXPECT_TRUE(exits->Add(*watch_of_second));
  EXPECT_EQ(calls, 0);
  first.Kill();
  EXPECT_TRUE(Becomes([&] { return calls == 1; }));
  EXPECT_TRUE(watch_of_first->HasEnded());
  EXPECT_FALSE(watch_of_second->HasEnded());
  second.Kill();
  EXPECT_TRUE(Becomes([&] { return calls == 2; }));
  // Both may still be held: what has been said is not said again.
  watch_of_first.reset();
  Child third;
  const auto watch_of_third = ProcessWatch::Of(third.process());
  ASSERT_TRUE(exits->Add(*watch_of_third));
  third.Kill();
  EXPECT_TRUE(Becomes([&] { return calls == 3; }));
}

TEST(ExitWatch, TakesNoneThatHadEndedBefore) {
  const auto exits = ExitWatch::Create([] {});
  ASSERT_NE(exits, nullptr);
  Child child;
  child.Kill();
  child.Reap();
  const auto watch = ProcessWatch::Of(child.process());
  ASSERT_TRUE(watch.has_value());
  EXPECT_FALSE(exits->Add(*watch));
}

TEST(ProcessWatch, LooksAtNoOtherHostNorAtItselfNorAtNonsense) {
  const Child child;
  v1::Process elsewhere = child.process();
  elsewhere.set_space("another boot");
  EXPECT_FALSE(ProcessWatch::Of(elsewhere).has_value());
  EXPECT_FALSE(ProcessWatch::Of(*ThisProcess()).has_value());
  EXPECT_FALSE(ProcessWatch::Of(v1::Process()).has_value());
  v1::Process negative = child.process();
  negative.set_pid(0xffffffff);
  EXPECT_FALSE(ProcessWatch::Of(negative).has_value());
}

}  // namespace
}  // namespace weft::rendezvous
