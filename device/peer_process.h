// PeerProcess: another process of this host and user: the descriptors that it
// has, and whether it has ended.

#ifndef WEFT_DEVICE_PEER_PROCESS_H_
#define WEFT_DEVICE_PEER_PROCESS_H_

#include <sys/types.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weft::device {

// Thread-safety: thread-safe.
class PeerProcess {
 public:
  // That has `pid` now: whoever is told a number compares what it finds with
  // something that it was told too. It may be this one. kUnavailable: there is
  // none, or the system does not tell.
  static absl::StatusOr<std::shared_ptr<PeerProcess>> Open(pid_t pid);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // A descriptor of this process, for the caller to close, of the file that is
  // `descriptor` there. kUnavailable: it has none, or has ended, or is of
  // another user.
  absl::StatusOr<int> OpenDescriptor(int descriptor) const;
  // Also of one that was killed, and that nobody has waited for.
  bool has_ended() const;

 private:
  PeerProcess(pid_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}

  const pid_t pid_;
  const int pidfd_;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_PEER_PROCESS_H_
