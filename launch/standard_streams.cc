// OpenStandardStreams: see the header.

#include "weft/launch/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace weft::launch {

void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The lowest that is free, which is `fd`.
    if (open("/dev/null", O_RDWR) != fd) return;
  }
}

}  // namespace weft::launch
