#include "weft/device/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft::device {

absl::StatusOr<std::shared_ptr<PeerProcess>> PeerProcess::Open(pid_t pid) {
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    return absl::UnavailableError(absl::StrCat(
        "process ", pid, " of this host: pidfd_open: ", std::strerror(errno)));
  }
  return std::shared_ptr<PeerProcess>(new PeerProcess(pid, pidfd));
}

PeerProcess::~PeerProcess() { close(pidfd_); }

absl::StatusOr<int> PeerProcess::OpenDescriptor(int descriptor) const {
  const std::string path = absl::StrCat("/proc/", pid_, "/fd/", descriptor);
  const int opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened >= 0) return opened;
  return absl::UnavailableError(
      absl::StrCat("process ", pid_, " of this host: wanted its descriptor ",
                   descriptor, ", found: ", path, ": ", std::strerror(errno)));
}

bool PeerProcess::has_ended() const {
  pollfd asked = {pidfd_, POLLIN, 0};
  return poll(&asked, 1, 0) == 1;
}

}  // namespace weft::device
