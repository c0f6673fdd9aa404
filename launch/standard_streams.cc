// OpenStandardStreams: see the header.

#include "weft/launch/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "weft/worker/exit_code.h"

namespace weft::launch {

void OpenStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    // The lowest that is free, which is `fd`.
    if (open("/dev/null", O_RDWR) != fd) return;
  }
}

absl::Status FlushOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
    return absl::OkStatus();
  }
  return worker::WithExitCode(
      absl::ErrnoToStatus(errno != 0 ? errno : EIO,
                          "the result cannot be written to standard output"),
      worker::ExitCode::kResource);
}

}  // namespace weft::launch
