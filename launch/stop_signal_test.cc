#include "weft/launch/stop_signal.h"

#include <signal.h>

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
  EXPECT_FALSE(AskedToStop());
  raise(SIGTERM);
  EXPECT_TRUE(AskedToStop());
}

}  // namespace
}  // namespace weft::launch
