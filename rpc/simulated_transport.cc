#include "weft/rpc/simulated_transport.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::rpc {

class SimulatedNetwork::Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  explicit Pipe(SimulatedNetwork& network) : network_(network) {}

  void SetObserver(int side, std::shared_ptr<ConnectionObserver> observer) {
    sides_[side].observer = std::move(observer);
  }
  bool is_closed() const { return closed_; }

  bool Write(int side, Slices message) {
    Side& from = sides_[side];
    if (closed_ || from.writing) return false;
    from.writing = true;
    if (network_.simulator_.random().Chance(network_.options_.breaks)) {
      ++network_.broken_;
      Close(absl::UnavailableError("the connection broke"));
      return true;
    }
    After(network_.Latency(), "written", [self = shared_from_this(), side] {
      self->sides_[side].writing = false;
      if (auto observer = self->sides_[side].observer) observer->OnWritten();
    });
    // No message arrives before the one that was sent before it.
    Instant& last = sides_[1 - side].last_arrival;
    last = std::max(last + absl::Nanoseconds(1),
                    network_.simulator_.Now() + network_.Latency());
    network_.simulator_.Schedule(
        last,
        [self = shared_from_this(), side, m = std::move(message)]() mutable {
          auto observer = self->sides_[1 - side].observer;
          if (!self->closed_ && observer != nullptr) {
            observer->OnMessage(std::move(m));
          }
        },
        "message");
    return true;
  }

  void Close(const absl::Status& status) {
    if (std::exchange(closed_, true)) return;
    for (int side = 0; side < 2; ++side) {
      After(network_.Latency(), "closed",
            [self = shared_from_this(), side, status] {
              auto observer =
                  std::exchange(self->sides_[side].observer, nullptr);
              if (observer != nullptr) observer->OnClosed(status);
            });
    }
  }

 private:
  struct Side {
    std::shared_ptr<ConnectionObserver> observer;
    bool writing = false;
    Instant last_arrival;
  };

  template <typename Fn>
  void After(absl::Duration delay, const char* label, Fn fn) {
    network_.simulator_.After(delay, std::move(fn), label);
  }

  SimulatedNetwork& network_;
  Side sides_[2];
  bool closed_ = false;
};

class SimulatedNetwork::End final : public Connection {
 public:
  End(std::shared_ptr<Pipe> pipe, int side)
      : pipe_(std::move(pipe)), side_(side) {}
  ~End() override {
    pipe_->Close(absl::CancelledError("the connection was let go"));
  }
  bool Write(Slices message) override {
    return pipe_->Write(side_, std::move(message));
  }
  void Close(absl::Status status) override { pipe_->Close(status); }

 private:
  const std::shared_ptr<Pipe> pipe_;
  const int side_;
};

class SimulatedNetwork::SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(SimulatedNetwork& network, std::string address)
      : network_(network), address_(std::move(address)) {}
  ~SimulatedTransport() override { network_.acceptors_.erase(address_); }

  Driver& driver() override { return network_.driver_; }

  void Accept(Acceptor acceptor) override {
    network_.acceptors_[address_] = std::move(acceptor);
  }

  std::shared_ptr<Connection> Connect(
      const Worker& worker,
      std::shared_ptr<ConnectionObserver> observer) override {
    auto pipe = std::make_shared<Pipe>(network_);
    pipe->SetObserver(0, std::move(observer));
    // Before any message: a latency is at least min_latency.
    network_.simulator_.After(
        network_.options_.min_latency / 2,
        [&network = network_, pipe, address = worker.address] {
          network.Arrive(pipe, address);
        },
        "connect");
    return std::make_shared<End>(pipe, 0);
  }

  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return static_cast<TimerId>(
        network_.simulator_.Schedule(when, std::move(fn), "timer"));
  }
  bool CancelTimer(TimerId id) override {
    return network_.simulator_.Cancel(static_cast<uint64_t>(id));
  }

 private:
  SimulatedNetwork& network_;
  const std::string address_;
};

SimulatedNetwork::SimulatedNetwork(sim::Simulator& simulator, Options options)
    : simulator_(simulator), driver_(simulator), options_(options) {}

std::unique_ptr<Transport> SimulatedNetwork::MakeTransport(
    std::string address) {
  return std::make_unique<SimulatedTransport>(*this, std::move(address));
}

void SimulatedNetwork::Arrive(const std::shared_ptr<Pipe>& pipe,
                              const std::string& address) {
  if (pipe->is_closed()) return;
  const auto it = acceptors_.find(address);
  if (it == acceptors_.end() || it->second == nullptr) {
    return pipe->Close(
        absl::UnavailableError(absl::StrCat("nobody listens at ", address)));
  }
  // Held on, so that a refusal closes it with its own status.
  const auto end = std::make_shared<End>(pipe, 1);
  auto accepted = it->second(end);
  if (!accepted.ok()) return pipe->Close(accepted.status());
  pipe->SetObserver(1, *std::move(accepted));
}

absl::Duration SimulatedNetwork::Latency() {
  return simulator_.random().Between(options_.min_latency,
                                     options_.max_latency);
}

}  // namespace weft::rpc
