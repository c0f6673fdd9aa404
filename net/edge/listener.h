// Listener: a socket that waits for connections on one address.

#ifndef WEFT_NET_EDGE_LISTENER_H_
#define WEFT_NET_EDGE_LISTENER_H_

#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "weft/net/address.h"
#include "weft/net/edge/socket_file.h"

namespace weft::net {

// Owns the descriptor; a unix socket's file goes with it.
//
// Thread-safety: one thread at a time.
class Listener {
 public:
  // kUnavailable: in use, or not an address of this host. kFailedPrecondition:
  // the directory of a unix socket is open to others. kAlreadyExists: another
  // kind of file is at its path, which stays as it is.
  static absl::StatusOr<Listener> Open(const Address& address);

  Listener(Listener&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        address_(std::move(other.address_)),
        file_(other.file_) {}
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const { return fd_; }
  const Address& address() const { return address_; }  // with the real port

 private:
  Listener(int fd, Address address) : fd_(fd), address_(std::move(address)) {}

  int fd_;
  Address address_;
  std::optional<FileId> file_;  // of a unix socket
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_LISTENER_H_
