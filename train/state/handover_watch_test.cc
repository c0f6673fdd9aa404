#include "weft/train/state/handover_watch.h"

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/mutex.h"
#include "weft/base/steady_deadline.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

class HandoverWatchTest : public ::testing::Test {
 protected:
  std::unique_ptr<HandoverWatch> Start(absl::Duration patience) {
    auto watch =
        HandoverWatch::Start(patience, [this](const std::string& what) {
          MutexLock lock(mu_);
          hung_ = what;
          ++hangs_;
          changed_.NotifyAll();
        });
    WEFT_EXPECT_OK(watch);
    return *std::move(watch);
  }
  // What it hangs in, once it does.
  std::string AwaitHang() {
    const auto until = SteadyDeadline(absl::Seconds(60));
    MutexLock lock(mu_);
    while (hangs_ == 0 && changed_.WaitUntil(mu_, until)) {
    }
    return hung_;
  }
  int hangs() {
    MutexLock lock(mu_);
    return hangs_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::string hung_ ABSL_GUARDED_BY(mu_);
  int hangs_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(HandoverWatchTest, TellsOnceWhatLastsTooLong) {
  auto watch = Start(absl::Milliseconds(20));
  watch->Works("comparing");
  EXPECT_EQ(AwaitHang(), "comparing");
  watch->Works("hashing");
  watch = nullptr;
  EXPECT_EQ(hangs(), 1);
}

TEST_F(HandoverWatchTest, WhoWaitsForOthersDoesNotHang) {
  // Longer than this thread may need until it awaits others.
  const auto waits = Start(absl::Seconds(4));
  waits->Works("comparing");
  waits->AwaitsOthers();
  const auto works = Start(absl::Seconds(5));
  works->Works("a longer time");
  EXPECT_EQ(AwaitHang(), "a longer time");
  EXPECT_EQ(hangs(), 1);
  waits->Works("hashing");
  EXPECT_TRUE(testing::Becomes([&] { return hangs() == 2; }));
}

// However long all of it takes: whoever works on is not told.
TEST_F(HandoverWatchTest, WhatGoesOnDoesNotHang) {
  const auto watch = Start(absl::Seconds(60));
  for (int i = 0; i < 1000; ++i) watch->Works("comparing");
  EXPECT_EQ(hangs(), 0);
}

}  // namespace
}  // namespace weft::train
