#include "weft/net/local_socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/net/socket_directory.h"

namespace weft::net {
namespace {

// Room for one descriptor and for who sent it.
constexpr size_t kControlBytes =
    CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred));

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

absl::StatusOr<int> MakeSocket(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Failed(path, "socket", errno);
  return fd;
}

// What came along with a message. A sender may put several descriptors there;
// those that nobody asked for are closed.
struct Control {
  int fd = -1;
  bool is_same_user = false;
};

Control ReadControl(msghdr* message) {
  Control control;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr;
       c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    const size_t size = c->cmsg_len - CMSG_LEN(0);
    if (c->cmsg_type == SCM_CREDENTIALS && size >= sizeof(ucred)) {
      ucred sender;
      memcpy(&sender, CMSG_DATA(c), sizeof sender);
      control.is_same_user = sender.uid == geteuid();
    } else if (c->cmsg_type == SCM_RIGHTS) {
      for (size_t at = 0; at + sizeof(int) <= size; at += sizeof(int)) {
        int fd;
        memcpy(&fd, CMSG_DATA(c) + at, sizeof fd);
        std::swap(fd, control.fd);
        if (fd >= 0) close(fd);
      }
    }
  }
  return control;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Bind(
    const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const sockaddr_un name, NameOf(path));
  WEFT_ASSIGN_OR_RETURN(const int fd, MakeSocket(path));
  // Owns fd and, from here on, the file.
  std::unique_ptr<LocalSocket> local(new LocalSocket(fd, path));
  // Before anybody can send: from now on the kernel says who did.
  const int on = 1;
  if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0) {
    return Failed(path, "setsockopt", errno);
  }
  unlink(path.c_str());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return Failed(path, "bind", errno);
  }
  return local;
}

LocalSocket::~LocalSocket() {
  unlink(path_.c_str());
  close(fd_);
  for (const Delivery& delivery : untaken_) close(delivery.fd);
}

absl::Status LocalSocket::Send(const std::string& path, uint64_t token,
                               int fd) {
  WEFT_ASSIGN_OR_RETURN(sockaddr_un name, NameOf(path));
  WEFT_ASSIGN_OR_RETURN(const int socket, MakeSocket(path));
  const absl::Cleanup close_socket = [socket] { close(socket); };
  iovec body = {&token, sizeof token};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Failed(path, "cannot hand over a descriptor", errno);
  return absl::OkStatus();
}

absl::StatusOr<int> LocalSocket::Take(uint64_t token) {
  MutexLock lock(mu_);
  ReceiveAll();
  const auto it =
      std::find_if(untaken_.begin(), untaken_.end(),
                   [token](const Delivery& d) { return d.token == token; });
  if (it == untaken_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "local socket ", path_, ": no descriptor came under this token"));
  }
  const int fd = it->fd;
  untaken_.erase(it);
  return fd;
}

void LocalSocket::ReceiveAll() {
  while (ReceiveOne()) {
    if (untaken_.size() <= kMaxUntaken) continue;
    close(untaken_.front().fd);
    untaken_.pop_front();
  }
}

// False if nothing waits.
bool LocalSocket::ReceiveOne() {
  uint64_t token = 0;
  iovec body = {&token, sizeof token};
  alignas(cmsghdr) char space[kControlBytes];
  msghdr message = {};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  const ssize_t size = recvmsg(fd_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return errno == EINTR;
  const Control control = ReadControl(&message);
  if (control.fd < 0) return true;
  if (control.is_same_user && size == sizeof token) {
    untaken_.push_back(Delivery{token, control.fd});
  } else {
    close(control.fd);
  }
  return true;
}

}  // namespace weft::net
