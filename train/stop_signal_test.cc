#include "weft/train/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace weft::train {
namespace {

TEST(StopSignal, IsHandledOnTheStackThatAThreadHasForIt) {
  AwaitStopSignals();
  for (const int signal : {SIGTERM, SIGINT}) {
    struct sigaction action = {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_NE(action.sa_flags & SA_ONSTACK, 0);
  }
  // In a process of its own, since a wish to stop cannot be taken back.
  EXPECT_EXIT(
      {
        const bool before = AskedToStop();
        raise(SIGTERM);
        _exit(!before && AskedToStop() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(StopSignal, AHangUpCountsUnlessItWasIgnored) {
  for (const bool ignored : {false, true}) {
    EXPECT_EXIT(
        {
          signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL);
          AwaitStopSignals();
          raise(SIGHUP);
          _exit(AskedToStop() == !ignored ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "");
  }
}

TEST(StopSignal, RunsWhatIsToStopOnceAndNothingWithoutASignal) {
  EXPECT_EXIT(
      {
        AwaitStopSignals();
        int stops = 0;
        {
          const OnStopSignal unheard([&] { ++stops; });
        }
        const bool is_quiet = stops == 0;
        absl::Notification stopped;
        {
          const OnStopSignal heard([&] {
            ++stops;
            stopped.Notify();
          });
          raise(SIGTERM);
          stopped.WaitForNotification();
        }
        _exit(is_quiet && stops == 1 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft::train
