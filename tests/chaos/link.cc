#include "weft/tests/chaos/link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <vector>

#include "weft/base/check.h"

namespace weft::testing {
namespace {

constexpr size_t kMostBytes = 64 << 10;  // of a way, that are held

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int Socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

void MakeReady(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool IsPassing() { return errno == EAGAIN || errno == EINTR; }

}  // namespace

Link::Link(int to_port) : to_port_(to_port) {
  listener_ = Socket();
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  WEFT_CHECK(bind(listener_, at, size) == 0 && listen(listener_, 64) == 0 &&
             getsockname(listener_, at, &size) == 0)
      << errno;
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

Link::~Link() {
  ends_ = true;
  const uint64_t one = 1;
  WEFT_CHECK_EQ(write(wake_, &one, sizeof(one)), ssize_t{sizeof(one)});
  thread_.join();
  for (const Connection& connection : connections_) {
    for (const Way& way : connection.ways) close(way.from);
  }
  close(listener_);
  close(wake_);
}

void Link::Cut(bool is_cut) {
  is_cut_ = is_cut;
  const uint64_t one = 1;
  WEFT_CHECK_EQ(write(wake_, &one, sizeof(one)), ssize_t{sizeof(one)});
}

void Link::Run() {
  while (!ends_) {
    std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
    const bool is_whole = !is_cut_;
    if (is_whole) {
      fds.push_back({listener_, POLLIN, 0});
      for (const Connection& connection : connections_) {
        for (int i = 0; i < 2; ++i) {
          const bool has_room = connection.ways[i].bytes.empty();
          const bool has_more = !connection.ways[1 - i].bytes.empty();
          fds.push_back({connection.ways[i].from,
                         static_cast<short>((has_room ? POLLIN : 0) |
                                            (has_more ? POLLOUT : 0)),
                         0});
        }
      }
    }
    if (poll(fds.data(), fds.size(), -1) < 0) continue;
    uint64_t count = 0;
    while (read(wake_, &count, sizeof(count)) > 0) continue;
    if (!is_whole || is_cut_) continue;
    size_t at = 2;
    for (auto one = connections_.begin(); one != connections_.end(); at += 2) {
      const short events[2] = {fds[at].revents, fds[at + 1].revents};
      for (int i = 0; i < 2; ++i) {
        Pass(events[i], events[1 - i], one->ways[i], *one);
      }
      if (one->is_open) {
        ++one;
        continue;
      }
      for (const Way& way : one->ways) close(way.from);
      one = connections_.erase(one);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void Link::Accept() {
  const int from = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (from < 0) return;
  const int to = Socket();
  const sockaddr_in address = Loopback(to_port_);
  if (connect(to, reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) != 0) {
    close(from);
    close(to);
    return;
  }
  MakeReady(from);
  MakeReady(to);
  Connection& connection = connections_.emplace_back();
  connection.ways[0] = {from, to, ""};
  connection.ways[1] = {to, from, ""};
}

// Whoever closes one end closes the other, once all has arrived there.
void Link::Pass(short events_from, short events_to, Way& way,
                Connection& connection) {
  if ((events_from & (POLLIN | POLLHUP | POLLERR)) != 0 && way.bytes.empty()) {
    way.bytes.resize(kMostBytes);
    const ssize_t got = recv(way.from, way.bytes.data(), kMostBytes, 0);
    way.bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    if (got == 0 || (got < 0 && !IsPassing())) connection.is_open = false;
    events_to |= POLLOUT;
  }
  if ((events_to & (POLLOUT | POLLHUP | POLLERR)) == 0 || way.bytes.empty()) {
    return;
  }
  const ssize_t sent =
      send(way.to, way.bytes.data(), way.bytes.size(), MSG_NOSIGNAL);
  if (sent > 0) way.bytes.erase(0, static_cast<size_t>(sent));
  if (sent < 0 && !IsPassing()) connection.is_open = false;
}

}  // namespace weft::testing
