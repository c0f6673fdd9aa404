#include "weft/transport/grpc_transport.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/net/call/local_stream.h"
#include "weft/net/channel.h"
#include "weft/net/loop/descriptor_limit.h"
#include "weft/net/loop/memory_queue.h"
#include "weft/net/stream.h"
#include "weft/transport/shm/memory_exchange.h"
#include "weft/transport/shm/ring_connection.h"

namespace weft::transport {
namespace {

// How long what runs on a Loop may keep the end of an agent waiting.
constexpr absl::Duration kTurnGrace = absl::Seconds(30);

// With what the caller opens a stream, if it offers rings with memory for
// bodies behind them. (weft-rings was for rings alone.)
constexpr char kRings[] = "weft-memory";

// What a connection that shares memory has open: its socket, the socket by
// which the memory is handed over, the memory and the two events that wake.
constexpr int kDescriptorsOfConnection = 5;

// How long memory that was offered in vain may stay.
constexpr absl::Duration kDropAbandonedEvery = absl::Seconds(5);

// For as long as `memories` lives. `loop` must outlive it.
void DropAbandonedLater(net::Loop& loop,
                        std::weak_ptr<MemoryExchange> memories) {
  loop.RunAt(SteadyClock().Now() + kDropAbandonedEvery,
             [&loop, memories = std::move(memories)] {
               const auto live = memories.lock();
               if (live == nullptr) return;
               live->DropAbandoned();
               DropAbandonedLater(loop, memories);
             });
}

// One end: a stream, once there is one.
class GrpcConnection final : public Connection {
 public:
  // `channel`: the way to the peer; null where the peer opened the stream, or
  // it is a socket of its own.
  explicit GrpcConnection(std::unique_ptr<net::Stream> stream,
                          std::shared_ptr<net::Channel> channel = nullptr)
      : channel_(std::move(channel)), stream_(std::move(stream)) {}

  Written Write(Slices message) override {
    return stream_->Write(std::move(message)) ? Written::kUnderWay
                                              : Written::kRefused;
  }
  bool RunAfterBurst(absl::AnyInvocable<void() &&> fn) override {
    return stream_->RunAfterBurst(std::move(fn));
  }
  void Close(absl::Status status) override {
    // At the calling end only an error ends a stream at once.
    stream_->Close(status.ok() ? absl::CancelledError("closed")
                               : std::move(status));
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
  const std::shared_ptr<net::Channel> channel_;  // outlives its stream
  const std::unique_ptr<net::Stream> stream_;
};

// Forwards the events of a stream to the connection's observer.
class StreamForwarder : public net::StreamObserver {
 public:
  explicit StreamForwarder(std::shared_ptr<ConnectionObserver> observer)
      : observer_(std::move(observer)) {}

  void OnMessage(Slices message) override {
    observer_->OnMessage(std::move(message));
  }
  void OnWritten() override { observer_->OnWritten(); }
  void OnClosed(absl::Status status) override {
    if (status.ok())
      status = absl::UnavailableError("the peer closed the connection");
    observer_->OnClosed(std::move(status));
  }

 private:
  const std::shared_ptr<ConnectionObserver> observer_;
};

// The same at the end that opened the stream: a peer that does not serve the
// purpose refuses it before any message.
class CallerStreamForwarder final : public StreamForwarder {
 public:
  CallerStreamForwarder(std::shared_ptr<ConnectionObserver> observer,
                        Destination peer, Purpose purpose)
      : StreamForwarder(std::move(observer)),
        peer_(std::move(peer)),
        purpose_(std::move(purpose)) {}

  void OnMessage(Slices message) override {
    has_message_ = true;
    StreamForwarder::OnMessage(std::move(message));
  }
  void OnClosed(absl::Status status) override {
    if (absl::IsUnimplemented(status) && !has_message_) {
      status = Reworded(status,
                        NotServed(peer_, purpose_, status.message()).message());
    }
    StreamForwarder::OnClosed(std::move(status));
  }

 private:
  const Destination peer_;
  const Purpose purpose_;
  bool has_message_ = false;  // on the Loop
};

// What connections that share memory are made with: the transport's, and kept
// by what accepts connections for it, perhaps longer.
struct RingMaker {
  const std::shared_ptr<MemoryExchange> memories;
  const std::shared_ptr<net::MemoryWatch> watch;

  // The rings that the caller of `stream` offers; null: none that can be
  // mapped.
  std::shared_ptr<RingConnection> Take(const net::Stream& stream) const {
    for (const auto& [key, value] : stream.metadata()) {
      uint64_t token = 0;
      if (key != kRings || !absl::SimpleAtoi(value, &token)) continue;
      absl::StatusOr<SharedRings> rings = memories->TakeRings(token);
      return rings.ok() ? Started(*std::move(rings)) : nullptr;
    }
    return nullptr;
  }

  // Rings for the peer at `to`, which `metadata` offers to it; null: nothing is
  // offered.
  std::shared_ptr<RingConnection> Offer(const Destination& to,
                                        net::Metadata* metadata) const {
    const std::optional<std::string> path = memories->PathTo(to);
    if (!path.has_value()) return nullptr;
    absl::StatusOr<OfferedRings> offered = memories->OfferRings(*path);
    if (!offered.ok()) return nullptr;
    auto ring = Started(std::move(offered->rings));
    if (ring == nullptr) return nullptr;
    metadata->emplace_back(kRings, absl::StrCat(offered->token));
    return ring;
  }

 private:
  std::shared_ptr<RingConnection> Started(SharedRings rings) const {
    auto ring = std::make_shared<RingConnection>(std::move(rings), watch);
    return ring->Start().ok() ? ring : nullptr;
  }
};

// The acceptor of a purpose. The endpoint's handler owns it; the transport,
// which the endpoint outlives, sets its acceptor.
class PurposeHandler {
 public:
  explicit PurposeHandler(RingMaker rings) : rings_(std::move(rings)) {}

  void Set(Transport::Acceptor acceptor) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    acceptor_ = std::move(acceptor);
  }

  absl::StatusOr<std::shared_ptr<net::StreamObserver>> Enter(
      std::unique_ptr<net::Stream> stream) ABSL_LOCKS_EXCLUDED(mu_) {
    // Taken in any case, so that it does not wait there for ever.
    const auto ring = rings_.Take(*stream);
    std::unique_ptr<Connection> connection =
        std::make_unique<GrpcConnection>(std::move(stream));
    MutexLock lock(mu_);  // Set waits for who is entering
    if (acceptor_ == nullptr) {
      if (ring != nullptr) ring->Discard();
      return absl::UnavailableError(
          "no connections of this purpose are accepted here now");
    }
    if (ring != nullptr) connection = ring->Attach(std::move(connection));
    auto observer = acceptor_(std::move(connection));
    if (ring == nullptr) {
      if (!observer.ok()) return observer.status();
      return std::make_shared<StreamForwarder>(*std::move(observer));
    }
    if (!observer.ok()) {
      ring->Discard();
      return observer.status();
    }
    ring->Observe(*std::move(observer));
    return std::make_shared<StreamForwarder>(ring);
  }

 private:
  const RingMaker rings_;
  Mutex mu_;
  Transport::Acceptor acceptor_ ABSL_GUARDED_BY(mu_);
};

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(net::Loop& loop, net::Endpoint* endpoint,
                const GrpcTransportOptions& options)
      : loop_(loop),
        endpoint_(endpoint),
        rings_{std::make_shared<MemoryExchange>(
                   loop.telemetry(), options.max_shared_memories,
                   options.memory_directory, options.memory_budget),
               loop.memory_watch()} {
    if (endpoint_ == nullptr) return;
    rings_.memories->Open(endpoint_->address(), endpoint_->name());
    if (rings_.memories->is_open()) {
      DropAbandonedLater(loop_, rings_.memories);
    }
  }

  Driver& driver() override { return loop_.driver(); }
  absl::Status CheckResources() override {
    return net::CheckDescriptors(kDescriptorsOfConnection);
  }

  std::string memory_socket() const override { return rings_.memories->path(); }

  void Register(const Purpose& purpose) override ABSL_LOCKS_EXCLUDED(mu_) {
    if (endpoint_ == nullptr) return;
    auto handler = std::make_unique<PurposeHandler>(rings_);
    MutexLock lock(mu_);
    if (!handlers_.emplace(purpose.name, handler.get()).second) return;
    endpoint_->RegisterStream(
        purpose.method,
        [handler = std::move(handler)](std::unique_ptr<net::Stream> stream) {
          return handler->Enter(std::move(stream));
        },
        purpose.roles);
  }

  void Accept(const Purpose& purpose, Acceptor acceptor) override
      ABSL_LOCKS_EXCLUDED(mu_) {
    if (endpoint_ == nullptr) return;
    PurposeHandler* handler;
    {
      MutexLock lock(mu_);
      const auto it = handlers_.find(purpose.name);
      WEFT_CHECK(it != handlers_.end())
          << "register " << purpose.name << " before its acceptor is set";
      handler = it->second;
    }
    handler->Set(std::move(acceptor));
  }

  std::unique_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) override {
    net::Metadata metadata;
    const auto ring = rings_.Offer(to, &metadata);
    if (ring != nullptr) {
      ring->Observe(std::move(observer));
      observer = ring;
    }
    absl::StatusOr<std::unique_ptr<Connection>> connection = OpenStream(
        purpose, to,
        std::make_shared<CallerStreamForwarder>(observer, to, purpose),
        metadata);
    if (!connection.ok()) return Fail(connection.status(), std::move(observer));
    if (ring == nullptr) return *std::move(connection);
    return ring->Attach(*std::move(connection));
  }

  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return loop_.RunAt(when, std::move(fn));
  }
  bool CancelTimer(TimerId id) override { return loop_.CancelTimer(id); }
  // A Loop runs one thing at a time, and drops what comes after its end.
  void AwaitTimers() override {
    Promise<void> promise(loop_.driver());
    const Future<void> turn = promise.future();
    loop_.Post([promise = std::move(promise)]() mutable {
      promise.Set(absl::OkStatus());
    });
    const absl::Status waited = turn.Wait(kTurnGrace);
    WEFT_CHECK(turn.IsReady() || absl::IsFailedPrecondition(waited))
        << "the loop has had no turn for " << absl::FormatDuration(kTurnGrace)
        << ", and an agent ends: something that runs on it blocks";
  }

 private:
  struct Way {
    std::string address;
    std::shared_ptr<net::Channel> channel;
  };

  // Never opens.
  class NoConnection final : public Connection {
   public:
    Written Write(Slices) override { return Written::kRefused; }
    void Close(absl::Status) override {}
  };

  std::unique_ptr<Connection> Fail(
      absl::Status status, std::shared_ptr<ConnectionObserver> observer) {
    loop_.Post([observer = std::move(observer), status = std::move(status)] {
      observer->OnClosed(status);
    });
    return std::make_unique<NoConnection>();
  }

  // To a unix socket each connection is a socket. Where it cannot be connected
  // at once, gRPC tries on and says why.
  absl::StatusOr<std::unique_ptr<Connection>> OpenStream(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<net::StreamObserver> observer,
      const net::Metadata& metadata) ABSL_LOCKS_EXCLUDED(mu_) {
    auto local = net::OpenLocalStream(loop_, to.address, to.name,
                                      purpose.method, observer, metadata);
    if (local.ok()) return std::make_unique<GrpcConnection>(*std::move(local));
    WEFT_ASSIGN_OR_RETURN(auto channel, ChannelTo(purpose, to));
    auto stream =
        channel->OpenStream(purpose.method, std::move(observer), metadata);
    return std::make_unique<GrpcConnection>(std::move(stream),
                                            std::move(channel));
  }

  // One channel for each purpose and name, to where it was last; gRPC keeps its
  // connection. Purposes have channels of their own, so that the bulk of one
  // does not delay the messages of another.
  absl::StatusOr<std::shared_ptr<net::Channel>> ChannelTo(
      const Purpose& purpose, const Destination& to) ABSL_LOCKS_EXCLUDED(mu_) {
    Way former;  // ends outside of the lock
    MutexLock lock(mu_);
    Way& way = ways_[{purpose.name, to.name}];
    if (way.channel == nullptr || way.address != to.address) {
      net::ChannelOptions options;
      options.name = to.name;
      WEFT_ASSIGN_OR_RETURN(auto channel,
                            net::Channel::Create(loop_, to.address, options));
      former = std::exchange(way, {to.address, std::move(channel)});
    }
    return way.channel;
  }

  net::Loop& loop_;
  net::Endpoint* const endpoint_;  // null: it only connects
  const RingMaker rings_;
  Mutex mu_;
  // By the purpose's name.
  std::map<std::string, PurposeHandler*> handlers_ ABSL_GUARDED_BY(mu_);
  // By the purpose's name and the peer's.
  std::map<std::pair<std::string, std::string>, Way> ways_ ABSL_GUARDED_BY(mu_);
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

}  // namespace weft::transport
