#include "weft/net/edge/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/descriptor.h"
#include "weft/net/edge/socket_directory.h"
#include "weft/net/edge/socket_file.h"

namespace weft::net {
namespace {

constexpr int kBacklog = 1024;
// Others hold it for microseconds, unless they were stopped.
constexpr absl::Duration kLockTime = absl::Seconds(5);

absl::Status CannotListen(const Address& address, int error) {
  if (error == EADDRINUSE) {
    return absl::UnavailableError(
        absl::StrCat("wanted to listen on ", address.ToString(),
                     "; it is in use by another process"));
  }
  return absl::UnavailableError(
      absl::StrCat("wanted to listen on ", address.ToString(), ": ",
                   strerror(error), "; wanted an address of this host"));
}

sockaddr_un UnixName(const Address& address) {
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  memcpy(name.sun_path, address.path.data(),
         address.path.size());  // ParseAddress bounds it
  return name;
}

// Held from the look at a file until its place is taken and answers: two that
// find the same abandoned file would take it from each other.
absl::StatusOr<Descriptor> LockDirectory(const std::string& directory,
                                         const Address& address) {
  Descriptor fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return CannotListen(address, errno);
  const Instant deadline = SteadyClock().Now() + kLockTime;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;  // none to be had there
    if (SteadyClock().Now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(
          "wanted to listen on ", address.ToString(), "; another process has ",
          "held the lock of ", directory, " for ",
          absl::FormatDuration(kLockTime), "; see which with lslocks"));
    }
    usleep(1000);
  }
  return fd;
}

absl::StatusOr<int> ListenUnix(const Address& address) {
  std::string directory = address.path.substr(0, address.path.rfind('/'));
  if (directory.empty()) directory = "/";
  WEFT_RETURN_IF_ERROR(CheckSocketDirectory(directory));
  const sockaddr_un name = UnixName(address);
  Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return CannotListen(address, errno);
  WEFT_ASSIGN_OR_RETURN(const Descriptor lock,
                        LockDirectory(directory, address));
  const auto take = [&] {
    return bind(fd.get(), reinterpret_cast<const sockaddr*>(&name),
                sizeof name);
  };
  int bound = take();
  if (bound != 0 && errno == EADDRINUSE) {
    const absl::Status removed =
        RemoveAbandonedSocket(address.path, SOCK_STREAM);
    if (absl::IsUnavailable(removed)) return CannotListen(address, EADDRINUSE);
    WEFT_RETURN_IF_ERROR(removed);
    bound = take();
  }
  if (bound != 0 || listen(fd.get(), kBacklog) != 0)
    return CannotListen(address, errno);
  return fd.Release();
}

// Accepted sockets inherit the listener's options: gRPC, which does not accept
// them, sets none.
void TuneTcp(int fd) {
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // A pacing default (bbr) halves what loopback carries: docs/performance.md.
  if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) != 0) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
  }
}

absl::StatusOr<int> ListenTcp(const Address& address) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("wanted to listen on ", address.ToString(), ": host ",
                     address.host, ": ", gai_strerror(error)));
  }
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  const int fd =
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return CannotListen(address, errno);
  TuneTcp(fd);
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 ||
      listen(fd, kBacklog) != 0) {
    const int why = errno;
    close(fd);
    return CannotListen(address, why);
  }
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length);
  return ntohs(name.ss_family == AF_INET6
                   ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                   : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
}

}  // namespace

absl::StatusOr<Listener> Listener::Open(const Address& address) {
  if (address.kind == Address::Kind::kUnix) {
    WEFT_ASSIGN_OR_RETURN(const int fd, ListenUnix(address));
    Listener listener(fd, address);
    listener.file_ = FileIdOf(address.path);
    return listener;
  }
  WEFT_ASSIGN_OR_RETURN(const int fd, ListenTcp(address));
  Address real = address;
  real.port = PortOf(fd);
  return Listener(fd, real);
}

Listener::~Listener() {
  if (fd_ < 0) return;
  RemoveIfSame(address_.path, file_);
  close(fd_);
}

}  // namespace weft::net
