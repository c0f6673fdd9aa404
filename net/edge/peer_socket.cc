// PeerOf and others: see the header.

#include "weft/net/edge/peer_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace weft::net {
namespace {

// A listener of all addresses sees ::ffff:10.0.0.7, gRPC calls it 10.0.0.7.
void ToIpv4IfMapped(sockaddr_storage* name, socklen_t* length) {
  const auto mapped = *reinterpret_cast<const sockaddr_in6*>(name);
  if (name->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&mapped.sin6_addr))
    return;
  sockaddr_in plain = {};
  plain.sin_family = AF_INET;
  plain.sin_port = mapped.sin6_port;
  memcpy(&plain.sin_addr, &mapped.sin6_addr.s6_addr[12], sizeof plain.sin_addr);
  memcpy(name, &plain, sizeof plain);
  *length = sizeof plain;
}

// Else bytes that came before the end would still be read and obeyed. Discards
// before the end too, as a peer whose buffer is full would not learn of it.
void EndAndDiscard(int fd) {
  const linger at_once = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  char unwanted[64 << 10];
  constexpr int kMost = 1 << 10;  // more than any buffer holds
  for (const bool is_ended : {false, true}) {
    if (is_ended) shutdown(fd, SHUT_RDWR);
    for (int i = 0; i < kMost; ++i) {
      if (recv(fd, unwanted, sizeof unwanted, MSG_DONTWAIT) <= 0) break;
    }
  }
}

}  // namespace

std::pair<std::string, std::string> PeerOf(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    return {"", ""};
  if (name.ss_family == AF_UNIX) return {kUnix, ""};
  ToIpv4IfMapped(&name, &length);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<sockaddr*>(&name), length, host, sizeof host,
                  port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {"", ""};
  }
  return {host, port};
}

bool IsSameUser(int fd) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == geteuid();
}

int64_t BytesHeard(int fd) {
  tcp_info info = {};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

std::optional<ino_t> InodeOf(int fd) {
  struct stat found;
  if (fstat(fd, &found) != 0 || !S_ISSOCK(found.st_mode)) return std::nullopt;
  return found.st_ino;
}

// gRPC may close its descriptor at any moment: a copy keeps what it names now,
// and for no longer than this, as gRPC's poller would see a copy's events too.
bool CutSocket(int fd, ino_t inode) {
  const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return errno == EBADF;  // closed
  if (InodeOf(copy) == inode) EndAndDiscard(copy);
  close(copy);
  return true;
}

}  // namespace weft::net
