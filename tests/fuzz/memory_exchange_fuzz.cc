// memory_exchange: no datagram, whatever descriptors come with it, makes this
// process share what it must not, or keep a descriptor.
//
// The input is datagrams: a byte says which descriptors come, and by its
// highest bit that the sender hangs up at once; another how many bytes, which
// follow. The first eight are the token.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/memory/segment.h"
#include "weft/net/edge/descriptor.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/fuzz/fuzz_target.h"
#include "weft/transport/shm/memory_exchange.h"

namespace weft::testing {
namespace {

constexpr int64_t kBytes = transport::SharedRings::kBytes;
constexpr uint64_t kToken = 0x6e656b6f74;
constexpr char kHangsUp = '\x80';

// What a hostile process of the same user may send. Made once.
struct Descriptors {
  memory::Segment rings = *memory::Segment::Create(kBytes);
  memory::Segment small = *memory::Segment::Create(4096);
  int unsealed = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  int waiting_event_fd = eventfd(0, EFD_CLOEXEC);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
};

// Sets of them, as the byte chooses; the first are what honest ones send.
std::vector<std::vector<int>> Sets(const Descriptors& d) {
  const int rings = d.rings.fd();
  return {{rings, d.event_fd, d.event_fd},
          {rings},
          {},
          {d.small.fd()},
          {d.unsealed},
          {d.small.fd(), d.event_fd, d.event_fd},
          {d.unsealed, d.event_fd, d.event_fd},
          {rings, d.null, d.event_fd},
          {rings, d.event_fd, d.waiting_event_fd},
          {d.event_fd, rings, d.event_fd},
          {rings, d.event_fd},
          {rings, d.event_fd, d.event_fd, d.event_fd},
          std::vector<int>(40, d.null)};
}

// A folder with a socket, whose name is that of the exchange's.
class Sender {
 public:
  Sender() {
    std::string path = "/tmp/weft-fuzz-XXXXXX";  // a socket's name is short
    Hold(mkdtemp(path.data()) != nullptr);
    address_ = absl::StrCat("unix:", path, "/s");
    name_.sun_family = AF_UNIX;
    std::strcpy(name_.sun_path, absl::StrCat(path, "/s.mem").c_str());
  }
  ~Sender() { rmdir(address_.substr(5, address_.rfind('/') - 5).c_str()); }
  const std::string& address() const { return address_; }

  // Returns the connection, which is the offer.
  net::Descriptor Send(absl::string_view body, const std::vector<int>& fds) {
    iovec bytes = {const_cast<char*>(body.data()), body.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(64 * sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* const c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    net::Descriptor fd(
        socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // A backlog that is full refuses it, as the kernel does one too many.
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name_),
                sizeof name_) == 0) {
      (void)sendmsg(fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    return fd;
  }

 private:
  std::string address_;
  sockaddr_un name_ = {};
};

std::string Datagram(char set, uint64_t token, const std::string& more = "") {
  std::string body(sizeof token, '\0');
  std::memcpy(body.data(), &token, sizeof token);
  body += more;
  return std::string({set, static_cast<char>(body.size())}) + body;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (char set = 0; set < 13; ++set) {
    seeds.push_back(Datagram(set, kToken) + Datagram(0, 1));
  }
  seeds.push_back(Datagram(0, kToken) + Datagram(0, kToken) +
                  Datagram(1, kToken));
  seeds.push_back(Datagram(0, kToken, "longer"));
  seeds.push_back(Datagram(kHangsUp, kToken) + Datagram(0, kToken) +
                  Datagram(kHangsUp | 2, 1) + Datagram(kHangsUp, 1));
  return seeds;
}

std::vector<std::string> Words() {
  return {Datagram(0, kToken), Datagram(1, kToken), Datagram(12, 2)};
}

int LowestFree() {
  const int fd = dup(STDERR_FILENO);
  close(fd);
  return fd;
}

void TakeAll(transport::MemoryExchange& exchange) {
  for (;;) {
    // One may be had at a time: a second one is refused, and must not stay.
    const auto rings = exchange.TakeRings(kToken);
    const auto second = exchange.TakeRings(kToken);
    Hold(!rings.ok() || !second.ok());
    Hold(!rings.ok() || rings->memory->size_bytes() == kBytes);
    if (absl::IsNotFound(second.status())) return;
  }
}

// Maps like a process group: all of the memory, of the size that it expects.
void MapWhole(const Descriptors& d, uint8_t chosen) {
  const int fds[] = {d.rings.fd(), d.small.fd(), d.unsealed, d.event_fd,
                     d.null};
  const int64_t sizes[] = {4096, kBytes, 0, -1, kBytes + 1};
  const int64_t size = sizes[chosen / 5 % 5];
  const auto segment = memory::Segment::FromFd(dup(fds[chosen % 5]), size);
  Hold(!segment.ok() || segment->size_bytes() == size);
}

void Run(absl::string_view input) {
  static Sender sender;
  static const Descriptors descriptors;
  static const std::vector<std::vector<int>> sets = Sets(descriptors);
  const int lowest_free = LowestFree();
  if (!input.empty()) MapWhole(descriptors, static_cast<uint8_t>(input[0]));
  {
    const auto exchange =
        std::make_shared<transport::MemoryExchange>(telemetry::Silent(), 1, "");
    exchange->Open(sender.address(), "");
    Hold(exchange->is_open());
    std::vector<net::Descriptor> offers;
    while (input.size() >= 2) {
      const auto chosen = static_cast<uint8_t>(input[0]);
      const absl::string_view body =
          input.substr(2, static_cast<uint8_t>(input[1]));
      auto offer = sender.Send(body, sets[(chosen & 0x7f) % sets.size()]);
      if (chosen < 0x80) offers.push_back(std::move(offer));
      if (chosen == 0x7f) exchange->DropAbandoned();
      input.remove_prefix(2 + body.size());
    }
    TakeAll(*exchange);
    offers.clear();
    exchange->DropAbandoned();
    // Whatever was offered has been taken or dropped.
    Hold(absl::IsNotFound(exchange->TakeRings(kToken).status()));
  }
  Hold(LowestFree() == lowest_free);
}

WEFT_FUZZ_TARGET(memory_exchange, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
