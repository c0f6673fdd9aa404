// LocalSocket: where one process hands open descriptors to another of the same
// user on the same host.

#ifndef WEFT_NET_EDGE_LOCAL_SOCKET_H_
#define WEFT_NET_EDGE_LOCAL_SOCKET_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/socket_file.h"

namespace weft::net {

// A listening socket (SOCK_SEQPACKET) in a directory of mode 0700. Each message
// is a connection of its own, which waits in the kernel until the owner calls
// Take, so no thread is needed: a sender notifies the owner by other means, and
// only after Send. As many can wait as the backlog holds (net.core.somaxconn,
// 4096 by default); a datagram socket would hold 11.
//
// Thread-safety: thread-safe.
class LocalSocket {
 public:
  // One message carries no more.
  static constexpr size_t kMaxDescriptors = 3;
  // Messages received and not taken yet, and connections without a message;
  // beyond it the oldest is dropped.
  static constexpr size_t kMaxUntaken = 128;
  // The most bytes of a path.
  static constexpr size_t kMaxPath = 107;

  // Binds `path`, which nobody else uses; a file left there by a process that
  // ended is replaced. kFailedPrecondition: the directory is open to others.
  // kInvalidArgument: too long a path.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Bind(
      const std::string& path);
  ~LocalSocket();  // removes the file, unless it is another's by now

  // Hands copies of `fds` to whoever has bound `path`, under `token`. Never
  // waits. kUnavailable: nobody there, or it has not taken what came before.
  // REQUIRES: 1 to kMaxDescriptors of them.
  static absl::Status Send(const std::string& path, uint64_t token,
                           absl::Span<const int> fds);

  // What a process of this user sent under `token`: 1 to kMaxDescriptors. Never
  // waits. kNotFound: nothing was.
  absl::StatusOr<std::vector<Descriptor>> Take(uint64_t token)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Delivery {
    uint64_t token;
    std::vector<Descriptor> descriptors;
  };

  LocalSocket(Descriptor fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)) {}

  // Moves the delivery under `token` to `taken`, if it has been received.
  bool TakeReceived(uint64_t token, std::vector<Descriptor>* taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Receive(Descriptor connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Descriptor fd_;
  const std::string path_;
  std::optional<FileId> file_;  // as it was bound
  Mutex mu_;
  std::deque<Delivery> untaken_ ABSL_GUARDED_BY(mu_);
  // Their senders are between connect and sendmsg.
  std::deque<Descriptor> silent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_LOCAL_SOCKET_H_
