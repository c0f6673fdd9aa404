#include "weft/launch/stop_signal.h"

#include <signal.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace weft::launch {
namespace {

TEST(StopSignal, IsHandledOnTheStackThatAThreadHasForIt) {
  AwaitStopSignals();
  for (const int signal : {SIGTERM, SIGINT}) {
    struct sigaction action = {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_NE(action.sa_flags & SA_ONSTACK, 0);
  }
  // In a process of its own, as nobody takes the wish back.
  EXPECT_EXIT(
      {
        const bool before = AskedToStop();
        raise(SIGTERM);
        _exit(!before && AskedToStop() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft::launch
