#include "weft/rpc/grpc_transport.h"

#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/net/channel.h"
#include "weft/net/stream.h"

namespace weft::rpc {
namespace {

constexpr char kConnect[] = "/weft.rpc.v1.Worker/Connect";

// One end: a stream, once there is one.
class GrpcConnection final : public Connection {
 public:
  explicit GrpcConnection(std::shared_ptr<net::Stream> stream)
      : stream_(std::move(stream)) {}

  bool Write(Slices message) override {
    return stream_->Write(std::move(message));
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

 private:
  const std::shared_ptr<net::Stream> stream_;
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
    auto observer =
        acceptor_(std::make_shared<GrpcConnection>(std::move(stream)));
    if (!observer.ok()) return observer.status();
    return std::make_shared<StreamEars>(*std::move(observer));
  }

 private:
  Mutex mu_;
  Transport::Acceptor acceptor_ ABSL_GUARDED_BY(mu_);
};

class GrpcTransport final : public Transport {
 public:
  GrpcTransport(net::Loop& loop, net::Endpoint* endpoint)
      : loop_(loop), door_(std::make_shared<Door>()) {
    if (endpoint == nullptr) return;
    endpoint->RegisterStream(
        kConnect, [door = door_](std::shared_ptr<net::Stream> stream) {
          return door->Enter(std::move(stream));
        });
  }

  Driver& driver() override { return loop_.driver(); }
  void Accept(Acceptor acceptor) override { door_->Set(std::move(acceptor)); }

  std::shared_ptr<Connection> Connect(
      const Worker& worker,
      std::shared_ptr<ConnectionObserver> observer) override {
    absl::StatusOr<std::shared_ptr<net::Channel>> channel = ChannelTo(worker);
    if (!channel.ok()) return Fail(channel.status(), std::move(observer));
    return std::make_shared<GrpcConnection>((*channel)->OpenStream(
        kConnect, std::make_shared<StreamEars>(std::move(observer))));
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
  const std::shared_ptr<Door> door_;
  Mutex mu_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<net::Channel>>
      channels_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop,
                                             net::Endpoint& endpoint) {
  return std::make_unique<GrpcTransport>(loop, &endpoint);
}

std::unique_ptr<Transport> MakeGrpcTransport(net::Loop& loop) {
  return std::make_unique<GrpcTransport>(loop, nullptr);
}

}  // namespace weft::rpc
