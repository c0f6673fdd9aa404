#include "weft/rpc/grpc_transport.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/memory/segment.h"
#include "weft/net/address.h"
#include "weft/net/channel.h"
#include "weft/net/local_socket.h"
#include "weft/net/loop_core.h"
#include "weft/net/stream.h"
#include "weft/telemetry/telemetry.h"

namespace weft::rpc {
namespace {

constexpr char kConnect[] = "/weft.rpc.v1.Worker/Connect";

// How processes of this host share memory with this one: by a LocalSocket
// beside the endpoint's. Shared by all connections, and bounded.
class MemoryExchange : public std::enable_shared_from_this<MemoryExchange> {
 public:
  MemoryExchange(telemetry::Telemetry& telemetry, int max_memories)
      : telemetry_(telemetry), max_memories_(max_memories) {}

  // Lets those that call `address` share memory.
  void Open(const std::string& address) {
    const std::optional<std::string> path = PathBeside(address);
    if (!path.has_value()) return;
    absl::StatusOr<std::unique_ptr<net::LocalSocket>> socket =
        net::LocalSocket::Bind(*path);
    if (socket.ok()) {
      socket_ = *std::move(socket);
    } else {
      (void)Note(socket.status());
    }
  }
  bool is_open() const { return socket_ != nullptr; }
  // Whether one that listens at `address` may be offered memory.
  bool MayOffer(const std::string& address) const {
    return max_memories_ > 0 && PathBeside(address).has_value();
  }

  absl::StatusOr<SharedMemory> Offer(const std::string& address,
                                     int64_t bytes) {
    const std::optional<std::string> path = PathBeside(address);
    if (!path.has_value()) return NotHere();
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<void> place, Reserve());
    absl::StatusOr<memory::Segment> segment =
        memory::Segment::Create(bytes, "weft-rpc");
    if (!segment.ok()) return Note(segment.status());
    const uint64_t token = NewToken();
    const absl::Status sent =
        net::LocalSocket::Send(*path, token, segment->fd());
    if (!sent.ok()) return Note(sent);
    return Wrap(token, *std::move(segment), std::move(place));
  }

  absl::StatusOr<SharedMemory> Take(uint64_t token, int64_t bytes) {
    if (!is_open()) return NotHere();
    WEFT_ASSIGN_OR_RETURN(std::shared_ptr<void> place, Reserve());
    const absl::StatusOr<int> fd = socket_->Take(token);
    if (!fd.ok()) return Note(fd.status());
    absl::StatusOr<memory::Segment> segment =
        memory::Segment::FromFd(*fd, bytes);
    if (!segment.ok()) return Note(segment.status());
    return Wrap(token, *std::move(segment), std::move(place));
  }

 private:
  // Null: not a unix socket, or there is no room for another name.
  static std::optional<std::string> PathBeside(const std::string& address) {
    const absl::StatusOr<net::Address> parsed = net::ParseAddress(address);
    if (!parsed.ok() || parsed->kind != net::Address::Kind::kUnix) {
      return std::nullopt;
    }
    const std::string path = absl::StrCat(parsed->path, ".mem");
    if (path.size() > net::LocalSocket::kMaxPath) return std::nullopt;
    return path;
  }

  static absl::Status NotHere() {
    return absl::UnimplementedError("this connection shares no memory");
  }

  // Guessed by nobody: it ties what came over the socket to a connection.
  static uint64_t NewToken() {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }

  // A place among the memories, given back when the last handle goes.
  absl::StatusOr<std::shared_ptr<void>> Reserve() {
    if (memories_.fetch_add(1) >= max_memories_) {
      memories_.fetch_sub(1);
      return Note(absl::ResourceExhaustedError(
          absl::StrCat(max_memories_,
                       " connections have shared memory already; more with "
                       "--shared-memories")));
    }
    return std::shared_ptr<void>(
        nullptr, [self = shared_from_this()](void*) { --self->memories_; });
  }

  static SharedMemory Wrap(uint64_t token, memory::Segment segment,
                           std::shared_ptr<void> place) {
    struct Placed {
      memory::Segment segment;
      std::shared_ptr<void> place;
    };
    auto placed =
        std::make_shared<Placed>(Placed{std::move(segment), std::move(place)});
    return {token, std::shared_ptr<memory::Segment>(placed, &placed->segment)};
  }

  // Said once: without shared memory all goes on, only slower.
  absl::Status Note(absl::Status status) {
    if (!noted_.exchange(true)) {
      WEFT_LOG(telemetry_.logger(), Warning,
               "large messages within the host go without shared memory: ")
          << status.message();
    }
    return status;
  }

  telemetry::Telemetry& telemetry_;
  const int max_memories_;
  std::unique_ptr<net::LocalSocket> socket_;  // set before anything runs
  std::atomic<int> memories_{0};
  std::atomic<bool> noted_{false};
};

// One end: a stream, once there is one.
class GrpcConnection final : public Connection {
 public:
  // `address` is where the peer listens; empty: it called.
  GrpcConnection(std::shared_ptr<net::Stream> stream,
                 std::shared_ptr<MemoryExchange> memories, std::string address)
      : stream_(std::move(stream)),
        memories_(std::move(memories)),
        address_(std::move(address)) {}

  bool Write(Slices message) override {
    return stream_->Write(std::move(message));
  }
  void Close(absl::Status status) override {
    // At the calling end only an error ends a stream at once.
    stream_->Close(status.ok() ? absl::CancelledError("closed")
                               : std::move(status));
  }
  MemoryRole memory_role() const override {
    if (!address_.empty()) {
      return memories_->MayOffer(address_) ? MemoryRole::kOffers
                                           : MemoryRole::kNone;
    }
    return memories_->is_open() && stream_->peer().is_local ? MemoryRole::kTakes
                                                            : MemoryRole::kNone;
  }
  absl::StatusOr<SharedMemory> OfferMemory(int64_t bytes) override {
    return memories_->Offer(address_, bytes);
  }
  absl::StatusOr<SharedMemory> TakeMemory(uint64_t token,
                                          int64_t bytes) override {
    return memories_->Take(token, bytes);
  }
  std::string ProvenName() const override {
    const auto& identity = stream_->peer().identity;
    return identity.has_value() ? identity->Name() : "";
  }
  std::string ProvenRole() const override {
    const auto& identity = stream_->peer().identity;
    return identity.has_value() ? identity->role : "";
  }

 private:
  const std::shared_ptr<net::Stream> stream_;
  const std::shared_ptr<MemoryExchange> memories_;
  const std::string address_;
};

// What a stream hears goes to the connection's observer.
class StreamEars final : public net::StreamObserver {
 public:
  explicit StreamEars(std::shared_ptr<ConnectionObserver> observer)
      : observer_(std::move(observer)) {}

  void OnMessage(Slices message) override {
    observer_->OnMessage(std::move(message));
  }
  void OnWritten() override { observer_->OnWritten(); }
  void OnClosed(absl::Status status) override {
    if (status.ok()) status = absl::UnavailableError("the peer hung up");
    observer_->OnClosed(std::move(status));
  }

 private:
  const std::shared_ptr<ConnectionObserver> observer_;
};

// The acceptor, which the endpoint's handler shares with the transport.
class Door {
 public:
  explicit Door(std::shared_ptr<MemoryExchange> memories)
      : memories_(std::move(memories)) {}

  void Set(Transport::Acceptor acceptor) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    acceptor_ = std::move(acceptor);
  }

  absl::StatusOr<std::shared_ptr<net::StreamObserver>> Enter(
      std::shared_ptr<net::Stream> stream) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);  // Set waits for who is entering
    if (acceptor_ == nullptr) {
      return absl::UnavailableError("no agent accepts calls here now");
    }
    auto observer = acceptor_(
        std::make_shared<GrpcConnection>(std::move(stream), memories_, ""));
    if (!observer.ok()) return observer.status();
    return std::make_shared<StreamEars>(*std::move(observer));
  }

 private:
  const std::shared_ptr<MemoryExchange> memories_;
  Mutex mu_;
  Transport::Acceptor acceptor_ ABSL_GUARDED_BY(mu_);
};

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(net::Loop& loop, net::Endpoint* endpoint,
                const GrpcTransportOptions& options)
      : loop_(loop),
        memories_(std::make_shared<MemoryExchange>(
            loop.core()->telemetry(), options.max_shared_memories)),
        door_(std::make_shared<Door>(memories_)) {
    if (endpoint == nullptr) return;
    if (options.max_shared_memories > 0) memories_->Open(endpoint->address());
    endpoint->RegisterStream(
        kConnect,
        [door = door_](std::shared_ptr<net::Stream> stream) {
          return door->Enter(std::move(stream));
        },
        // Whom a function is for, the agent knows.
        net::Roles::Any());
  }

  Driver& driver() override { return loop_.driver(); }
  void Accept(Acceptor acceptor) override { door_->Set(std::move(acceptor)); }

  std::shared_ptr<Connection> Connect(
      const Worker& worker,
      std::shared_ptr<ConnectionObserver> observer) override {
    absl::StatusOr<std::shared_ptr<net::Channel>> channel = ChannelTo(worker);
    if (!channel.ok()) return Fail(channel.status(), std::move(observer));
    return std::make_shared<GrpcConnection>(
        (*channel)->OpenStream(
            kConnect, std::make_shared<StreamEars>(std::move(observer))),
        memories_, worker.address);
  }

  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return loop_.RunAt(when, std::move(fn));
  }
  bool CancelTimer(TimerId id) override { return loop_.CancelTimer(id); }

 private:
  // Never opens.
  class NoConnection final : public Connection {
   public:
    bool Write(Slices) override { return false; }
    void Close(absl::Status) override {}
  };

  std::shared_ptr<Connection> Fail(
      absl::Status status, std::shared_ptr<ConnectionObserver> observer) {
    loop_.Post([observer = std::move(observer), status = std::move(status)] {
      observer->OnClosed(status);
    });
    return std::make_shared<NoConnection>();
  }

  // One channel for each address; gRPC keeps its connection.
  absl::StatusOr<std::shared_ptr<net::Channel>> ChannelTo(const Worker& worker)
      ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    std::shared_ptr<net::Channel>& channel =
        channels_[{worker.name, worker.address}];
    if (channel == nullptr) {
      net::ChannelOptions options;
      options.name = worker.name;
      auto made = net::Channel::Create(loop_, worker.address, options);
      if (!made.ok()) return made.status();
      channel = *std::move(made);
    }
    return channel;
  }

  net::Loop& loop_;
  const std::shared_ptr<MemoryExchange> memories_;
  const std::shared_ptr<Door> door_;
  Mutex mu_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<net::Channel>>
      channels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop,
                                             net::Endpoint& endpoint,
                                             GrpcTransportOptions options) {
  return std::make_unique<GrpcTransport>(loop, &endpoint, options);
}

std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop,
                                             GrpcTransportOptions options) {
  return std::make_unique<GrpcTransport>(loop, nullptr, options);
}

}  // namespace weft::rpc
