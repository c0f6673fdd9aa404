#include "weft/net/accept_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft::net {
namespace {

constexpr uint64_t kWakeTag = ~uint64_t{0};
constexpr uint64_t kListenerBit = uint64_t{1} << 62;
constexpr int kAcceptsPerRound = 64;
constexpr int kEvictionsOnExhaustion = 8;

// The kinds of refusals: see Audit.
constexpr char kConnection[] = "connection";
constexpr char kMaxConnections[] = "max_connections";
constexpr char kMaxPerAddress[] = "max_connections_per_address";
constexpr char kHandshakeTimeout[] = "handshake_timeout";
constexpr char kDescriptors[] = "descriptors";

// While connections wait for a place among the handshakes, how often to look
// for one.
constexpr int kRetryMs = 20;

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

std::optional<ino_t> InodeOf(int fd) {
  struct stat found;
  if (fstat(fd, &found) != 0 || !S_ISSOCK(found.st_mode)) return std::nullopt;
  return found.st_ino;
}

// Host number and port of the other end; "unix" and nothing for a unix socket.
std::pair<std::string, std::string> PeerOf(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof name;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&name), &length) != 0)
    return {"", ""};
  if (name.ss_family == AF_UNIX) return {"unix", ""};
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

// Up to the version in a ClientHello (RFC 8446, 4.1.2 and 5.1).
constexpr size_t kHelloBytes = 11;

// Null if the first bytes may be those of TLS 1.2 or newer. TLS itself refuses
// what only turns out later.
const char* WhyNotTls(const uint8_t* first, size_t size) {
  constexpr uint8_t kHandshake = 22;
  constexpr int kTls12 = 0x0303;
  if (first[0] != kHandshake) return "plain text; TLS is wanted here";
  if (size < kHelloBytes) return nullptr;
  const int version = first[9] << 8 | first[10];
  return version < kTls12 ? "TLS 1.1 or older; TLS 1.2 is wanted" : nullptr;
}

// Half of the descriptors at most: gRPC and the job's files need the others.
int WithinDescriptorLimit(int connections) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return connections;
  return std::min<int64_t>(connections,
                           std::max<int64_t>(8, limit.rlim_cur / 2));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Create(
    AcceptLoopOptions options) {
  options.max_connections = WithinDescriptorLimit(options.max_connections);
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  const int reserve = OpenReserve();
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  if (epoll < 0 || wake < 0 || reserve < 0 ||
      epoll_ctl(epoll, EPOLL_CTL_ADD, wake, &event) != 0) {
    const absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("no descriptors for the accept loop: ", strerror(errno),
                     "; raise `ulimit -n`"));
    for (int fd : {epoll, wake, reserve}) {
      if (fd >= 0) close(fd);
    }
    return status;
  }
  std::unique_ptr<AcceptLoop> loop(
      new AcceptLoop(options, epoll, wake, reserve));
  loop->thread_ = std::thread([loop = loop.get()] { loop->Run(); });
  return loop;
}

AcceptLoop::AcceptLoop(AcceptLoopOptions options, int epoll, int wake,
                       int reserve)
    : options_(options), epoll_(epoll), wake_(wake), reserve_(reserve) {}

void AcceptLoop::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

AcceptLoop::~AcceptLoop() {
  Stop();
  MutexLock lock(mu_);
  for (const auto& [id, connection] : connections_) {
    if (connection.state == State::kSilent || connection.state == State::kReady)
      close(connection.fd);
  }
  if (reserve_ >= 0) close(reserve_);
  close(wake_);
  close(epoll_);
}

absl::Status AcceptLoop::Add(Listener listener, Speaks speaks,
                             Deliver deliver) {
  MutexLock lock(mu_);
  const int fd = listener.fd();
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kListenerBit | static_cast<uint64_t>(fd);
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::InternalError(absl::StrCat("epoll: ", strerror(errno)));
  }
  sources_.emplace(fd, Source{std::move(listener), speaks, std::move(deliver)});
  return absl::OkStatus();
}

// Deliver runs under the lock, so none is running once we have it.
void AcceptLoop::Remove(const Address& address) {
  MutexLock lock(mu_);
  for (auto source = sources_.begin(); source != sources_.end(); ++source) {
    if (source->second.listener.address().ToString() != address.ToString())
      continue;
    const int fd = source->first;
    std::vector<Id> waiting;
    for (const auto& [id, connection] : connections_) {
      const bool ours = connection.state == State::kSilent ||
                        connection.state == State::kReady;
      if (ours && connection.listener == fd) waiting.push_back(id);
    }
    for (Id id : waiting) Close(id);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    sources_.erase(source);
    return;
  }
}

void AcceptLoop::MarkServed(absl::string_view peer) {
  if (!any_unserved_.load(std::memory_order_acquire)) return;
  bool freed = false;
  {
    MutexLock lock(mu_);
    bool others = false;
    for (auto& [id, connection] : connections_) {
      if (connection.state != State::kDelivered) continue;
      if (connection.peer == peer) {
        connection.state = State::kServed;
        freed = true;
      } else {
        others = true;
      }
    }
    any_unserved_.store(others);
  }
  if (freed) Wake();
}

void AcceptLoop::Wake() {
  const uint64_t one = 1;
  // Full means that it will be woken anyway.
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

void AcceptLoop::Run() {
  int timeout_ms = -1;
  for (;;) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_, events, 64, timeout_ms);
    MutexLock lock(mu_);
    if (stopping_) return;
    for (int i = 0; i < count; ++i) {
      const uint64_t tag = events[i].data.u64;
      if (tag == kWakeTag) {
        uint64_t times;
        [[maybe_unused]] const ssize_t got = read(wake_, &times, sizeof times);
      } else if ((tag & kListenerBit) != 0) {
        Accept(static_cast<int>(tag & ~kListenerBit));
      } else {
        BecomeReady(static_cast<Id>(tag));
      }
    }
    ExpireSilent();
    DeliverReady();
    timeout_ms = RoundTimeoutMs();
  }
}

int AcceptLoop::RoundTimeoutMs() {
  for (const auto& [id, connection] : connections_) {
    if (connection.state == State::kReady) return kRetryMs;
  }
  for (const auto& [id, connection] : connections_) {
    if (connection.state != State::kSilent) continue;
    const absl::Duration left =
        connection.since + options_.handshake_timeout - SteadyClock().Now();
    return static_cast<int>(
               std::max<int64_t>(0, absl::ToInt64Milliseconds(left))) +
           1;
  }
  return -1;
}

void AcceptLoop::Accept(int listener) {
  // Removed in the same round.
  if (sources_.find(listener) == sources_.end()) return;
  for (int i = 0; i < kAcceptsPerRound && AcceptOne(listener); ++i) {
  }
}

bool AcceptLoop::AcceptOne(int listener) {
  const int fd =
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) {
    Admit(fd, listener);
    return true;
  }
  if (errno == EMFILE || errno == ENFILE) {
    SurviveExhaustion(listener);
    return false;  // the backlog is still readable: the next round goes on with
                   // it
  }
  return errno == EINTR || errno == ECONNABORTED;
}

// Frees descriptors of silent connections; with none to free, uses the reserve
// to take one connection off the backlog and close it, so that its peer learns
// at once.
void AcceptLoop::SurviveExhaustion(int listener) {
  Refuse({kDescriptors, "descriptors ran out; raise `ulimit -n`"}, "");
  bool freed = false;
  for (int i = 0; i < kEvictionsOnExhaustion && EvictOldestSilent(kDescriptors);
       ++i)
    freed = true;
  if (freed) return;
  if (reserve_ >= 0) close(reserve_);
  const int fd =
      accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0) close(fd);
  reserve_ = OpenReserve();
}

void AcceptLoop::Admit(int fd, int listener) {
  auto [address, port] = PeerOf(fd);
  const std::string peer = absl::StrContains(address, ':')
                               ? absl::StrCat("[", address, "]:", port)
                               : absl::StrCat(address, ":", port);
  const bool is_unix =
      sources_.at(listener).listener.address().kind == Address::Kind::kUnix;
  std::optional<Refusal> refusal = MakeRoomFor(fd, address, is_unix);
  const std::optional<ino_t> inode = InodeOf(fd);
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = static_cast<uint64_t>(next_id_);
  if (!refusal.has_value() &&
      (!inode.has_value() ||
       epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0)) {
    refusal = Refusal{kConnection, "the system refused"};
  }
  if (refusal.has_value()) {
    Refuse(*refusal, peer);
    close(fd);
    return;
  }
  connections_.emplace(next_id_++,
                       Connection{fd, *inode, address, peer, State::kSilent,
                                  SteadyClock().Now(), listener});
}

bool AcceptLoop::IsFull() {
  return static_cast<int>(connections_.size()) >= options_.max_connections;
}

bool AcceptLoop::IsFullAt(const std::string& address) {
  return CountOf(address) >= options_.max_connections_per_address;
}

// Closes others if it must; why the connection may not stay all the same.
std::optional<AcceptLoop::Refusal> AcceptLoop::MakeRoomFor(
    int fd, const std::string& address, bool is_unix) {
  if (is_unix && !IsSameUser(fd)) return Refusal{kConnection, "another user"};
  if (IsFull() || IsFullAt(address)) Sweep();
  while (IsFull() && EvictOldestSilent(kMaxConnections)) {
  }
  // A crowd at one address must not cost others their places.
  while (IsFullAt(address) && EvictOldestSilent(kMaxPerAddress, address)) {
  }
  if (IsFull()) {
    return Refusal{
        kMaxConnections,
        absl::StrCat(connections_.size(),
                     " connections are open, and max_connections is ",
                     options_.max_connections, "; raise it")};
  }
  if (IsFullAt(address)) {
    return Refusal{
        kMaxPerAddress,
        absl::StrCat(CountOf(address), " connections of its address are open, ",
                     "and max_connections_per_address is ",
                     options_.max_connections_per_address, "; raise it")};
  }
  return std::nullopt;
}

// Its first bytes came, or its end.
void AcceptLoop::BecomeReady(Id id) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  uint8_t first[kHelloBytes];
  const ssize_t seen =
      recv(connection.fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
  if (seen < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (seen <= 0) {
    Close(id);
    return;
  }
  const char* unfit = sources_.at(connection.listener).speaks == Speaks::kTls
                          ? WhyNotTls(first, static_cast<size_t>(seen))
                          : nullptr;
  if (unfit != nullptr) {
    Refuse({kConnection, unfit}, connection.peer);
    Close(id);
    return;
  }
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.fd, nullptr);
  connection.state = State::kReady;
  connection.since = SteadyClock().Now();
}

void AcceptLoop::DeliverReady() {
  int handshakes = -1;  // counted only if needed
  for (auto& [id, connection] : connections_) {
    if (connection.state != State::kReady) continue;
    const bool is_unix = connection.address == "unix";
    if (handshakes < 0) {
      Sweep();
      handshakes = Handshakes();
    }
    if (!is_unix && handshakes >= options_.max_handshakes) continue;
    auto source = sources_.find(connection.listener);
    connection.state = is_unix ? State::kServed : State::kDelivered;
    connection.since = SteadyClock().Now();
    if (!is_unix) {
      ++handshakes;
      any_unserved_.store(true);
    }
    source->second.deliver(connection.fd);
  }
}

// Forgets the connections that gRPC has closed.
void AcceptLoop::Sweep() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    const Connection& connection = it->second;
    const bool handed_over = connection.state == State::kDelivered ||
                             connection.state == State::kServed;
    const bool gone = handed_over && InodeOf(connection.fd) != connection.inode;
    it = gone ? connections_.erase(it) : std::next(it);
  }
}

void AcceptLoop::ExpireSilent() {
  const Instant latest = SteadyClock().Now() - options_.handshake_timeout;
  std::vector<Id> expired;
  for (const auto& [id, connection] : connections_) {
    if (connection.state == State::kSilent && connection.since <= latest)
      expired.push_back(id);
  }
  for (Id id : expired) {
    Refuse({kHandshakeTimeout,
            absl::StrCat("silent for ",
                         absl::FormatDuration(options_.handshake_timeout),
                         ", which is handshake_timeout")},
           connections_.at(id).peer);
    Close(id);
  }
}

bool AcceptLoop::EvictOldestSilent(const char* limit,
                                   std::optional<absl::string_view> address) {
  for (const auto& [id, connection] : connections_) {
    if (connection.state != State::kSilent) continue;
    if (address.has_value() && connection.address != *address) continue;
    Refuse({limit, "silent, and its place was needed"}, connection.peer);
    Close(id);
    return true;
  }
  return false;
}

void AcceptLoop::Close(Id id) {
  auto found = connections_.find(id);
  close(found->second.fd);  // leaves the epoll set by itself
  connections_.erase(found);
}

void AcceptLoop::Refuse(const Refusal& refusal, const std::string& peer) {
  if (options_.audit != nullptr)
    options_.audit->Refused(refusal.kind, peer, "to connect", refusal.why);
}

int AcceptLoop::CountOf(const std::string& address) {
  return std::count_if(
      connections_.begin(), connections_.end(),
      [&](const auto& entry) { return entry.second.address == address; });
}

// After the time-out gRPC has closed it, or it has shaken hands and merely
// makes no calls.
int AcceptLoop::Handshakes() {
  const Instant latest = SteadyClock().Now() - options_.handshake_timeout;
  return std::count_if(connections_.begin(), connections_.end(),
                       [&](const auto& entry) {
                         return entry.second.state == State::kDelivered &&
                                entry.second.since > latest;
                       });
}

}  // namespace weft::net
