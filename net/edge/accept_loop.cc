#include "weft/net/edge/accept_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/net/edge/client_hello_check.h"
#include "weft/net/edge/peer_socket.h"
#include "weft/net/edge/tls_frames.h"

namespace weft::net {
namespace {

constexpr uint64_t kWakeTag = ~uint64_t{0};
constexpr uint64_t kListenerBit = uint64_t{1} << 62;
constexpr int kAcceptsPerRound = 64;
constexpr int kEvictionsOnExhaustion = 8;

// The kinds of refusals: see RefusalLog.
constexpr char kConnection[] = "connection";
constexpr char kMaxConnections[] = "max_connections";
constexpr char kMaxPerAddress[] = "max_connections_per_address";
constexpr char kMaxHandshakes[] = "max_handshakes";
constexpr char kHandshakeTimeout[] = "handshake_timeout";
constexpr char kMaxCalls[] = "max_calls_per_connection";
constexpr char kDescriptors[] = "descriptors";
constexpr char kFrames[] = "http2_frames";

// While connections wait for a place among the handshakes, how often to look
// for one. And of those that gRPC has closed, how often to look for all while
// every place is taken.
constexpr int kRetryMs = 20;
constexpr absl::Duration kSweepEvery = absl::Milliseconds(kRetryMs);

// How long an address waits whose peer was cut off: a flood that comes back at
// once would cost others as much as one that was not cut.
constexpr absl::Duration kHeldBack = absl::Seconds(1);
// The bytes that came before the flood was noticed take a second or more to
// discard.
constexpr absl::Duration kFloodHeldBack = absl::Seconds(4);
// How often to look for floods, and from how many bytes on: a call takes 20 to
// some hundred.
constexpr absl::Duration kWatchEvery = absl::Milliseconds(100);
constexpr int64_t kMuch = 16 << 10;
constexpr int64_t kBodies = 1 << 20;
constexpr int kWatchesOfBodies = 5;
// How often to look which connections are gone, if nothing else asks.
constexpr absl::Duration kForgetEvery = absl::Seconds(5);

// The metric of floods has so many peers of its own; others count together.
constexpr size_t kMostFlooders = 64;

// Advice to an operator about a limit; `kind` is its name.
std::string RaiseBy(const char* kind) {
  return absl::StrCat("; raise it by --limits=", kind, "=VALUE");
}

void WakeBy(int eventfd) {
  const uint64_t one = 1;
  // Full means that it will be woken anyway.
  [[maybe_unused]] const ssize_t written = write(eventfd, &one, sizeof one);
}

int OpenReserve() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Half of the descriptors at most: gRPC and the job's files need the others.
int WithinDescriptorLimit(int connections) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return connections;
  return std::min<int64_t>(connections,
                           std::max<int64_t>(8, limit.rlim_cur / 2));
}

}  // namespace

// Outlives the loop where gRPC still has connections. Its lock is taken last:
// who finds a flood may hold locks of gRPC.
class AcceptLoop::Floods {
 public:
  struct Flood {
    Id id;
    std::string why;
  };

  explicit Floods(int wake) : wake_(wake) {}

  void Add(Flood flood) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (wake_ < 0) return;
    found_.push_back(std::move(flood));
    WakeBy(wake_);
  }
  std::vector<Flood> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return std::exchange(found_, {});
  }
  void End() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    wake_ = -1;
  }

 private:
  Mutex mu_;
  int wake_ ABSL_GUARDED_BY(mu_);
  std::vector<Flood> found_ ABSL_GUARDED_BY(mu_);
};

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
  WEFT_ASSIGN_OR_RETURN(
      loop->thread_,
      StartThread("the accept loop", [loop = loop.get()] { loop->Run(); }));
  return loop;
}

AcceptLoop::AcceptLoop(const AcceptLoopOptions& options, int epoll, int wake,
                       int reserve)
    : options_(options),
      clock_(options.clock != nullptr ? *options.clock : SteadyClock()),
      epoll_(epoll),
      wake_(wake),
      telemetry_(telemetry::OrSilent(options.telemetry)),
      floods_(std::make_shared<Floods>(wake)),
      reserve_(reserve),
      pending_(options.max_handshakes, options.handshake_timeout) {}

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
  floods_->End();
  MutexLock lock(mu_);
  for (const auto& [id, connection] : connections_) {
    if (!connection.handed_over) close(connection.fd);
  }
  if (reserve_ >= 0) close(reserve_);
  close(wake_);
  close(epoll_);
}

absl::Status AcceptLoop::Add(Listener listener, Speaks speaks, Deliver deliver,
                             Deliver deliver_local) {
  MutexLock lock(mu_);
  const int fd = listener.fd();
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = kListenerBit | static_cast<uint64_t>(fd);
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::InternalError(absl::StrCat("epoll: ", strerror(errno)));
  }
  sources_.emplace(fd, Source{std::move(listener), speaks, std::move(deliver),
                              std::move(deliver_local)});
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
      if (!connection.handed_over && connection.listener == fd)
        waiting.push_back(id);
    }
    for (Id id : waiting) Close(id);
    epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
    sources_.erase(source);
    return;
  }
}

int AcceptLoop::connections() {
  MutexLock lock(mu_);
  Sweep();
  return static_cast<int>(connections_.size());
}

void AcceptLoop::NoteHandshake(const std::string& peer) {
  MutexLock lock(shaking_mu_);
  shaking_[peer] = Now();
}

std::vector<std::string> AcceptLoop::Handshaking() {
  std::set<std::string> addresses;
  MutexLock lock(shaking_mu_);
  for (auto it = shaking_.begin(); it != shaking_.end();) {
    if (Now() - it->second > options_.handshake_timeout) {
      it = shaking_.erase(it);
    } else {
      const std::string& peer = it->first;
      addresses.insert(peer.substr(0, peer.rfind(':')));
      ++it;
    }
  }
  return {addresses.begin(), addresses.end()};
}

void AcceptLoop::MarkServed(absl::string_view peer) {
  if (!any_pending_.load(std::memory_order_acquire)) return;
  {
    MutexLock lock(shaking_mu_);
    shaking_.erase(std::string(peer));
  }
  {
    MutexLock lock(mu_);
    pending_.Settle(Now());
    std::optional<Id> served;
    for (const auto& [since, id] : pending_.handshakes()) {
      if (connections_.at(id).peer == peer) served = id;
    }
    if (served.has_value()) pending_.Remove(*served);
    any_pending_.store(!pending_.handshakes().empty());
    if (!served.has_value() || !pending_.any_ready()) return;
  }
  Wake();
}

void AcceptLoop::CutOff(absl::string_view peer, absl::string_view limit,
                        const std::string& why) {
  MutexLock lock(mu_);
  for (auto& [id, connection] : connections_) {
    if (connection.peer == peer && IsWatched(connection))
      CutOff(connection, {std::string(limit), why}, kHeldBack);
  }
}

bool AcceptLoop::IsHoldingBack() {
  MutexLock lock(mu_);
  return pending_.IsHoldingBack(Now());
}

void AcceptLoop::CutOff(Connection& connection, const Refusal& refusal,
                        absl::Duration held_back) {
  connection.cut_off = true;
  const std::string who =
      connection.frames != nullptr ? connection.frames->peer_name() : "";
  Refuse(refusal, who.empty() ? connection.peer
                              : absl::StrCat(who, " (", connection.peer, ")"));
  CountFlood(connection, who);
  CutSocket(connection.fd, connection.inode);
  // Other pending connections have time left for their handshakes.
  pending_.HoldBack(
      connection.address,
      Now() + std::min(held_back, options_.handshake_timeout * 4 / 5));
}

void AcceptLoop::CountFlood(const Connection& connection,
                            const std::string& who) {
  std::string host = who.empty()
                         ? connection.address
                         : absl::StrCat(who, " at ", connection.address);
  if (flooders_.size() >= kMostFlooders && flooders_.count(host) == 0)
    host = "others";
  flooders_.insert(host);
  telemetry_.metrics()
      .CounterFor("weft_net_floods_total", {{"peer", host}},
                  "Connections that were cut for a flood of calls or of HTTP/2 "
                  "frames, by the certificate and address of the peer")
      .Increment();
}

bool AcceptLoop::IsWatched(const Connection& connection) const {
  return connection.handed_over && connection.address != kUnix &&
         !connection.cut_off && !IsGone(connection);
}

// HTTP/2 bounds the calls only of a peer that has acknowledged our settings;
// and gRPC reads a connection for as long as bytes come, on the one thread that
// polls. A peer that begins calls without an end would delay all others.
void AcceptLoop::Watch() {
  std::set<std::string> suspects;
  {
    MutexLock lock(mu_);
    if (!IsWatching() || Now() < next_watch_) return;
    next_watch_ = Now() + kWatchEvery;
    if (Now() - swept_ >= kForgetEvery) Sweep();  // with the last it rests
    suspects = FindBusyPeers();
  }
  if (suspects.empty()) return;
  const std::map<std::string, int64_t> open = options_.open_streams(suspects);
  const int most = options_.max_calls_per_connection;
  MutexLock lock(mu_);
  for (auto& [id, connection] : connections_) {
    const auto found = open.find(connection.peer);
    if (found == open.end() || !IsWatched(connection)) continue;
    if (found->second <= int64_t{4} * most) continue;
    CutOff(connection,
           {kMaxCalls,
            absl::StrCat(found->second, " calls are open, and ", kMaxCalls,
                         " is ", most, ", as SETTINGS announced")},
           kFloodHeldBack);
  }
}

// Since the last check. Connections that send bodies are checked less often, as
// each check costs tens of microseconds.
std::set<std::string> AcceptLoop::FindBusyPeers() {
  const bool bodies_too = ++watches_ % kWatchesOfBodies == 0;
  std::set<std::string> peers;
  for (auto& [id, connection] : connections_) {
    if (connection.cut_off) {  // until gRPC has closed it
      CutSocket(connection.fd, connection.inode);
    }
    if (!IsWatched(connection)) continue;
    const int64_t heard = BytesHeard(connection.fd);
    const int64_t more = heard - std::exchange(connection.heard, heard);
    if (more >= kMuch && (more < kBodies || bodies_too))
      peers.insert(connection.peer);
  }
  return peers;
}

void AcceptLoop::Wake() { WakeBy(wake_); }

// gRPC ends these connections by itself; until it has, Watch() cuts them, and
// what they have sent is thrown away.
void AcceptLoop::EndFloods() {
  const std::vector<Floods::Flood> floods = floods_->Take();
  if (floods.empty()) return;
  MutexLock lock(mu_);
  for (const Floods::Flood& flood : floods) {
    const auto found = connections_.find(flood.id);
    if (found == connections_.end()) continue;
    Connection& connection = found->second;
    if (!connection.cut_off)
      CutOff(connection, {kFrames, flood.why}, kFloodHeldBack);
  }
}

void AcceptLoop::Run() {
  int timeout_ms = -1;
  for (;;) {
    epoll_event events[64];
    const int count = epoll_wait(epoll_, events, 64, timeout_ms);
    EndFloods();
    Watch();
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
        Hear(static_cast<Id>(tag), events[i].events);
      }
    }
    DeliverReady();  // first: this may be the first look after a long stop
    Expire();
    timeout_ms = RoundTimeoutMs();
  }
}

int AcceptLoop::RoundTimeoutMs() {
  if (pending_.any_ready()) return kRetryMs;
  Instant next = pending_.next_expiry();
  if (IsWatching()) next = std::min(next, next_watch_);
  if (next.is_infinite()) return -1;
  const absl::Duration left = next - Now();
  return static_cast<int>(
             std::max<int64_t>(0, absl::ToInt64Milliseconds(left))) +
         1;
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

// Frees descriptors of who has made no call; with none to free, uses the
// reserve to take one connection off the backlog and close it, so that its peer
// learns at once.
void AcceptLoop::SurviveExhaustion(int listener) {
  Refuse({kDescriptors, "descriptors ran out; raise `ulimit -n`"}, "");
  bool freed = false;
  for (int i = 0; i < kEvictionsOnExhaustion &&
                  Evict(pending_.ToEvict(Now()), kDescriptors);
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
  // By edges: a beginning that is not whole stays unread.
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
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
  connections_.emplace(next_id_,
                       Connection{fd, *inode, address, peer, listener});
  ++counts_[address];
  pending_.Add(next_id_, address, Now());
  // Bytes that came with it count before the next connection needs its place.
  Hear(next_id_++, 0);
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
  if ((IsFull() || IsFullAt(address)) && Now() - swept_ >= kSweepEvery) Sweep();
  EvictFor(address);
  if (IsFull() || IsFullAt(address)) {
    Sweep();
    EvictFor(address);
  }
  if (IsFull()) {
    return Refusal{
        kMaxConnections,
        absl::StrCat(connections_.size(),
                     " connections are open, and max_connections is ",
                     options_.max_connections, RaiseBy(kMaxConnections))};
  }
  if (IsFullAt(address)) {
    return Refusal{
        kMaxPerAddress,
        absl::StrCat(CountOf(address), " connections of its address are open, ",
                     "and max_connections_per_address is ",
                     options_.max_connections_per_address,
                     RaiseBy(kMaxPerAddress))};
  }
  return std::nullopt;
}

// A crowd at one address must not cost others their places.
void AcceptLoop::EvictFor(const std::string& address) {
  while (IsFullAt(address) &&
         Evict(pending_.ToEvictAt(address, Now()), kMaxPerAddress)) {
  }
  while (IsFull() &&
         Evict(pending_.ToEvictFor(address, Now()), kMaxConnections)) {
  }
}

// More of its beginning came, or its end.
void AcceptLoop::Hear(Id id, uint32_t events) {
  auto found = connections_.find(id);
  if (found == connections_.end() || found->second.handed_over) return;
  const Connection& connection = found->second;
  char first[kClientHelloCheckBytes];
  const ssize_t seen =
      recv(connection.fd, first, sizeof first, MSG_PEEK | MSG_DONTWAIT);
  int there = 0;
  if (seen < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (seen <= 0 || ioctl(connection.fd, FIONREAD, &there) != 0)
    return Close(id);
  const absl::string_view text(first, static_cast<size_t>(seen));
  const Source& source = sources_.at(connection.listener);
  const ClientHelloCheck said =
      source.speaks == Speaks::kTls
          ? CheckTlsHello(text, static_cast<size_t>(there))
      : source.deliver_local != nullptr ? CheckLocalPreface(text)
                                        : CheckHttp2Preface(text);
  if (said.unfit != nullptr) {
    Refuse({kConnection, said.unfit}, connection.peer);
    return Close(id);
  }
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) return Close(id);
  if (!said.is_whole) return pending_.BecomePartial(id);
  if (connection.address == kUnix) return HandOver(id, said.is_local);
  pending_.BecomeReady(id);
}

void AcceptLoop::HandOver(Id id, bool is_local) {
  Connection& connection = connections_.at(id);
  epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.fd, nullptr);
  connection.handed_over = true;
  if (connection.address == kUnix) {
    pending_.Remove(id);
  } else {
    pending_.BeginHandshake(id, Now());
    ++watched_;
    any_pending_.store(true);
    NoteHandshake(connection.peer);
  }
  const Source& source = sources_.at(connection.listener);
  if (is_local) return source.deliver_local(connection.fd);
  if (source.speaks == Speaks::kTls) return DeliverTls(id, source);
  source.deliver(connection.fd);
}

void AcceptLoop::DeliverTls(Id id, const Source& source) {
  auto frames = std::make_shared<TlsFrames>(
      options_.frames, [floods = floods_, id](const std::string& /*who*/,
                                              const std::string& why) {
        floods->Add({id, why});
      });
  connections_.at(id).frames = frames;
  WatchNewTls watch(std::move(frames));
  source.deliver(connections_.at(id).fd);
  if (watch.is_watched() || std::exchange(warned_of_tls_, true)) return;
  WEFT_LOG(telemetry_.logger(), Warning,
           "floods of HTTP/2 frames are not noticed: gRPC does not make its "
           "TLS as gRPC 1.51 of Debian 12 does, with OpenSSL");
}

void AcceptLoop::DeliverReady() {
  if (!pending_.any_ready()) return;
  SweepHandshakes();
  for (;;) {
    const std::optional<Id> next = pending_.NextReady(Now());
    if (next.has_value()) {
      HandOver(*next);
    } else if (!Evict(pending_.HandshakeToCut(Now()), kMaxHandshakes)) {
      return;
    }
  }
}

bool AcceptLoop::IsGone(const Connection& connection) const {
  return connection.handed_over && InodeOf(connection.fd) != connection.inode;
}

// Forgets the connections that gRPC has closed.
void AcceptLoop::Sweep() {
  swept_ = Now();
  std::vector<Id> gone;
  for (const auto& [id, connection] : connections_) {
    if (IsGone(connection)) gone.push_back(id);
  }
  for (Id id : gone) Forget(id);
}

void AcceptLoop::SweepHandshakes() {
  pending_.Settle(Now());
  std::vector<Id> gone;
  for (const auto& [since, id] : pending_.handshakes()) {
    if (IsGone(connections_.at(id))) gone.push_back(id);
  }
  for (Id id : gone) Forget(id);
}

void AcceptLoop::Expire() {
  while (const std::optional<Id> id = pending_.Expired(Now())) {
    const std::string waited = absl::FormatDuration(options_.handshake_timeout);
    const std::string& peer = connections_.at(*id).peer;
    if (pending_.IsReady(*id)) {
      Refuse(
          {kMaxHandshakes, absl::StrCat("waited ", waited, " for one of ",
                                        options_.max_handshakes, " handshakes",
                                        RaiseBy(kMaxHandshakes))},
          peer);
    } else {
      Refuse({kHandshakeTimeout, absl::StrCat("said too little for ", waited,
                                              ", which is handshake_timeout")},
             peer);
    }
    Close(*id);
  }
}

bool AcceptLoop::Evict(std::optional<Id> victim, const char* limit) {
  if (!victim.has_value()) return false;
  const Connection& connection = connections_.at(*victim);
  if (connection.handed_over && !CutSocket(connection.fd, connection.inode))
    return false;
  Refuse({limit, "made no call yet, and its place was needed"},
         connection.peer);
  if (connection.handed_over) {
    Forget(*victim);
  } else {
    Close(*victim);
  }
  return true;
}

void AcceptLoop::Close(Id id) {
  close(connections_.at(id).fd);  // leaves the epoll set by itself
  Forget(id);
}

void AcceptLoop::Forget(Id id) {
  const auto found = connections_.find(id);
  if (found->second.handed_over && found->second.address != kUnix) --watched_;
  {
    MutexLock lock(shaking_mu_);
    shaking_.erase(found->second.peer);
  }
  const auto count = counts_.find(found->second.address);
  if (--count->second == 0) counts_.erase(count);
  connections_.erase(found);
  pending_.Remove(id);
}

void AcceptLoop::Refuse(const Refusal& refusal, const std::string& peer) {
  if (options_.refusal_log != nullptr)
    options_.refusal_log->Refused(refusal.kind, peer, "to connect",
                                  refusal.why);
}

int AcceptLoop::CountOf(const std::string& address) {
  const auto found = counts_.find(address);
  return found == counts_.end() ? 0 : found->second;
}

}  // namespace weft::net
