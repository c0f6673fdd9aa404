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

  // Whether what was sent here can be taken after its sender has hung up.
  enum class Senders {
    kMayLeave,  // it can: by Send()
    kStay,      // not for long: by Offer(), what nobody takes is dropped then
  };

  // Binds `path`, which nobody else uses; a file left there by a process that
  // ended is replaced. kFailedPrecondition: the directory is open to others.
  // kInvalidArgument: too long a path.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Bind(
      const std::string& path, Senders senders = Senders::kMayLeave);
  ~LocalSocket();  // removes the file, unless it is another's by now

  // Hands copies of `fds` to whoever has bound `path`, under `token`. Never
  // waits. kUnavailable: nobody there, or it has not taken what came before.
  // REQUIRES: 1 to kMaxDescriptors of them.
  static absl::Status Send(const std::string& path, uint64_t token,
                           absl::Span<const int> fds);
  // Likewise, to who has bound it with Senders::kStay: keep what it returns
  // until they are taken. A process that ends takes its offers back.
  static absl::StatusOr<Descriptor> Offer(const std::string& path,
                                          uint64_t token,
                                          absl::Span<const int> fds);

  // What a process of this user sent under `token`: 1 to kMaxDescriptors. Never
  // waits. kNotFound: nothing was. Where senders stay, drops what others of
  // those received sent that have hung up.
  absl::StatusOr<std::vector<Descriptor>> Take(uint64_t token)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Where senders stay: drops all that was sent by who has hung up, also what
  // no Take has received. Never waits.
  void DropAbandoned() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Delivery {
    uint64_t token;
    std::vector<Descriptor> descriptors;
    Descriptor sender;  // its connection, where senders stay
  };

  LocalSocket(Descriptor fd, std::string path, Senders senders)
      : fd_(std::move(fd)), path_(std::move(path)), senders_(senders) {}

  // Receives the next message that waits; false and errno: none does.
  bool ReceiveNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return untaken_.size() < kMaxUntaken && silent_.size() < kMaxUntaken;
  }
  void ReceiveSilent() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropHungUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Moves the delivery under `token` to `taken`, if it has been received.
  bool TakeReceived(uint64_t token, std::vector<Descriptor>* taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Receive(Descriptor connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Descriptor fd_;
  const std::string path_;
  const Senders senders_;
  std::optional<FileId> file_;  // as it was bound
  Mutex mu_;
  std::deque<Delivery> untaken_ ABSL_GUARDED_BY(mu_);
  // Their senders are between connect and sendmsg.
  std::deque<Descriptor> silent_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_LOCAL_SOCKET_H_
