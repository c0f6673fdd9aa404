#include "weft/net/edge/local_socket.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/net/edge/socket_file.h"

namespace weft::net {
namespace {

// More than the backlog holds.
constexpr int kMostWaiting = 1 << 13;

constexpr size_t kControlBytes =
    CMSG_SPACE(LocalSocket::kMaxDescriptors * sizeof(int));

absl::StatusOr<sockaddr_un> NameOf(const std::string& path) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  static_assert(LocalSocket::kMaxPath < sizeof name.sun_path);
  if (path.empty() || path[0] != '/' || path.size() > LocalSocket::kMaxPath) {
    return absl::InvalidArgumentError(
        absl::StrCat("local socket ", path, ": wanted an absolute path of at ",
                     "most ", LocalSocket::kMaxPath, " bytes"));
  }
  memcpy(name.sun_path, path.data(), path.size());
  const size_t slash = path.rfind('/');
  WEFT_RETURN_IF_ERROR(
      CheckSocketDirectory(slash == 0 ? "/" : path.substr(0, slash)));
  return name;
}

absl::Status Failed(const std::string& path, const char* what, int error) {
  return absl::UnavailableError(
      absl::StrCat("local socket ", path, ": ", what, ": ", strerror(error)));
}

absl::StatusOr<Descriptor> MakeSocket(const std::string& path) {
  Descriptor fd(
      socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return Failed(path, "socket", errno);
  return fd;
}

std::vector<Descriptor> DescriptorsOf(msghdr* message) {
  std::vector<Descriptor> descriptors;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr;
       c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t size = c->cmsg_len - CMSG_LEN(0);
    for (size_t at = 0; at + sizeof(int) <= size; at += sizeof(int)) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

// As the kernel noted when the sender connected.
bool IsOfSameUser(int connection) {
  ucred sender = {};
  socklen_t size = sizeof sender;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &sender, &size) == 0 &&
         sender.uid == geteuid();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Bind(
    const std::string& path, Senders senders) {
  WEFT_ASSIGN_OR_RETURN(const sockaddr_un name, NameOf(path));
  WEFT_ASSIGN_OR_RETURN(Descriptor socket, MakeSocket(path));
  const int fd = socket.get();
  // Owns fd, and the file once it is there.
  std::unique_ptr<LocalSocket> local(
      new LocalSocket(std::move(socket), path, senders));
  WEFT_RETURN_IF_ERROR(RemoveAbandonedSocket(path, SOCK_SEQPACKET));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return Failed(path, "bind", errno);
  }
  local->file_ = FileIdOf(path);
  if (listen(fd, SOMAXCONN) != 0) return Failed(path, "listen", errno);
  return local;
}

LocalSocket::~LocalSocket() { RemoveIfSame(path_, file_); }

absl::Status LocalSocket::Send(const std::string& path, uint64_t token,
                               absl::Span<const int> fds) {
  return Offer(path, token, fds).status();
}

absl::StatusOr<Descriptor> LocalSocket::Offer(const std::string& path,
                                              uint64_t token,
                                              absl::Span<const int> fds) {
  WEFT_CHECK(!fds.empty() && fds.size() <= kMaxDescriptors);
  WEFT_ASSIGN_OR_RETURN(sockaddr_un name, NameOf(path));
  WEFT_ASSIGN_OR_RETURN(Descriptor socket, MakeSocket(path));
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name),
              sizeof name) != 0) {
    return Failed(path, "connect", errno);
  }
  iovec body = {&token, sizeof token};
  const size_t bytes = fds.size() * sizeof(int);
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(bytes);
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(bytes);
  memcpy(CMSG_DATA(c), fds.data(), bytes);
  ssize_t sent;
  do {
    sent = sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Failed(path, "cannot hand over a descriptor", errno);
  return socket;
}

absl::StatusOr<std::vector<Descriptor>> LocalSocket::Take(uint64_t token) {
  MutexLock lock(mu_);
  std::vector<Descriptor> taken;
  ReceiveSilent();
  bool is_there = TakeReceived(token, &taken);
  while (!is_there && ReceiveNext()) is_there = TakeReceived(token, &taken);
  const int error = errno;
  DropHungUp();
  if (is_there) return taken;
  return absl::NotFoundError(absl::StrCat(
      "local socket ", path_, ": no descriptor came under this token",
      error == EAGAIN ? "" : absl::StrCat(": ", strerror(error))));
}

void LocalSocket::DropAbandoned() {
  MutexLock lock(mu_);
  ReceiveSilent();
  DropHungUp();
  // What there is no room for stays in the kernel, until the next time.
  for (int i = 0; i < kMostWaiting && HasRoom() && ReceiveNext(); ++i) {
    if (!HasRoom()) DropHungUp();
  }
  DropHungUp();
}

bool LocalSocket::ReceiveNext() {
  for (;;) {
    Descriptor connection(
        accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection.get() >= 0) {
      Receive(std::move(connection));
      return true;
    }
    if (errno != EINTR && errno != ECONNABORTED) return false;
  }
}

void LocalSocket::ReceiveSilent() {
  for (Descriptor& connection : std::exchange(silent_, {})) {
    Receive(std::move(connection));
  }
}

void LocalSocket::DropHungUp() {
  if (senders_ == Senders::kMayLeave || untaken_.empty()) return;
  std::vector<pollfd> senders;
  senders.reserve(untaken_.size());
  for (const Delivery& delivery : untaken_) {
    senders.push_back({delivery.sender.get(), 0, 0});
  }
  if (poll(senders.data(), senders.size(), 0) <= 0) return;
  std::deque<Delivery> left;
  for (size_t i = 0; i < senders.size(); ++i) {
    if ((senders[i].revents & POLLHUP) == 0) {
      left.push_back(std::move(untaken_[i]));
    }
  }
  untaken_ = std::move(left);
}

bool LocalSocket::TakeReceived(uint64_t token, std::vector<Descriptor>* taken) {
  const auto it =
      std::find_if(untaken_.begin(), untaken_.end(),
                   [token](const Delivery& d) { return d.token == token; });
  if (it == untaken_.end()) return false;
  *taken = std::move(it->descriptors);
  untaken_.erase(it);
  return true;
}

void LocalSocket::Receive(Descriptor connection) {
  uint64_t token = 0;
  iovec body = {&token, sizeof token};
  alignas(cmsghdr) char space[kControlBytes];
  msghdr message = {};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  ssize_t size;
  do {
    size = recvmsg(connection.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) {
    silent_.push_back(std::move(connection));
    if (silent_.size() > kMaxUntaken) silent_.pop_front();
    return;
  }
  if (size < 0) return;
  std::vector<Descriptor> descriptors = DescriptorsOf(&message);
  const bool is_whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (descriptors.empty() || !is_whole || size != sizeof token ||
      !IsOfSameUser(connection.get())) {
    return;
  }
  if (senders_ == Senders::kMayLeave) connection = Descriptor();
  untaken_.push_back(
      Delivery{token, std::move(descriptors), std::move(connection)});
  if (untaken_.size() > kMaxUntaken) DropHungUp();
  if (untaken_.size() > kMaxUntaken) untaken_.pop_front();
}

}  // namespace weft::net
