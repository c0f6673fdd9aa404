#include "weft/launch/failure/exit.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

TEST(Exit, IsNamedAsAReaderKnowsIt) {
  EXPECT_FALSE(Exit().is_failure());
  EXPECT_EQ((Exit{0, SIGKILL}).ToString(), "killed by SIGKILL");
  EXPECT_THAT((Exit{3, 0}).ToString(), ::testing::HasSubstr("exit code 3"));
}

TEST(Exit, ShellCodeIsTheCodeOr128AndTheSignal) {
  EXPECT_EQ(Exit().shell_code(), 0);
  EXPECT_EQ((Exit{3, 0}).shell_code(), 3);
  EXPECT_EQ((Exit{0, SIGKILL}).shell_code(), 137);
}

}  // namespace
}  // namespace weft::launch
