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

// A datagram socket in a directory of mode 0700. What was sent to it waits in
// the kernel until it is asked for, so it needs no thread: who tells the owner,
// by another way, that a descriptor was sent, tells it after that.
//
// Thread-safety: thread-safe.
class LocalSocket {
 public:
  // Of one message.
  static constexpr size_t kMaxDescriptors = 3;
  // Messages received and not taken yet; beyond it the oldest is dropped.
  static constexpr size_t kMaxUntaken = 64;
  // Of a path, in bytes.
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

  void ReceiveAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ReceiveOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Descriptor fd_;
  const std::string path_;
  std::optional<FileId> file_;  // as it was bound
  Mutex mu_;
  std::deque<Delivery> untaken_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_LOCAL_SOCKET_H_
