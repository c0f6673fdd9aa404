#include "weft/launch/standard_streams.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace weft::launch {
namespace {

bool IsNull(int fd) {
  struct stat found = {};
  struct stat null = {};
  return fstat(fd, &found) == 0 && stat("/dev/null", &null) == 0 &&
         found.st_rdev == null.st_rdev;
}

TEST(StandardStreams, ClosedOnesAreOpenedToDevNull) {
  EXPECT_EXIT(
      {
        close(STDIN_FILENO);
        close(STDOUT_FILENO);
        OpenStandardStreams();
        const bool are_open = IsNull(STDIN_FILENO) && IsNull(STDOUT_FILENO);
        _exit(are_open && !IsNull(STDERR_FILENO) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weft::launch
