#include "weft/transport/simulated_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/transport/pipe_end.h"
#include "xxhash.h"

namespace weft::transport {
namespace {

// The hash of what a message says: the same in each run of a seed.
std::string FingerprintOf(const Slices& message) {
  uint64_t hash = 0;
  for (const Bytes& slice : message) {
    hash = XXH64(slice.data(), slice.size(), hash);
  }
  return absl::StrCat(TotalSize(message), " bytes ", absl::Hex(hash));
}

}  // namespace

// Side 0 connected, side 1 accepted.
class SimulatedNetwork::Pipe : public std::enable_shared_from_this<Pipe> {
 public:
  Pipe(SimulatedNetwork& network, std::string from, std::string to)
      : network_(network), addresses_{std::move(from), std::move(to)} {}

  void SetObserver(int side, std::shared_ptr<ConnectionObserver> observer) {
    sides_[side].observer = std::move(observer);
  }
  const std::string& address(int side) const { return addresses_[side]; }
  bool is_closed(int side) const { return sides_[side].closed; }
  bool is_deaf() const { return sides_[0].deaf; }
  bool Joins(const std::string& address) const {
    return addresses_[0] == address || addresses_[1] == address;
  }

  bool Write(int side, Slices message) {
    Side& from = sides_[side];
    if (from.closed || from.writing) return false;
    from.writing = true;
    const absl::Status broken = absl::UnavailableError("the connection broke");
    const auto close = [self = shared_from_this(), broken] {
      self->Close(broken);
    };
    const std::optional<Struck> struck = network_.StruckBy(side, message);
    switch (struck.has_value() ? struck->fault : sim::Fault::kDelay) {
      case sim::Fault::kReset:
        ++network_.broken_;
        close();
        break;
      case sim::Fault::kHalfOpen:
        GoSilent();
        CloseSide(side, broken);
        break;
      case sim::Fault::kDuplication:
        Send(side, std::move(message), absl::ZeroDuration(), close);
        break;
      case sim::Fault::kReordering:
        CloseSide(side, broken);
        sides_[1 - side].awaits_late = true;
        Send(side, std::move(message), UpTo(network_.options_.max_delay),
             [self = shared_from_this(), side, close] {
               self->sides_[1 - side].awaits_late = false;
               close();
             });
        break;
      case sim::Fault::kCorruption:
        Send(side, Slices(), absl::ZeroDuration(), [self = shared_from_this()] {
          self->Close(absl::DataLossError("a message was not what was sent"));
        });
        break;
      case sim::Fault::kDelay:  // or nothing
        SendIntact(side, std::move(message), struck);
        break;
      default:
        GoSilent();
    }
    return true;
  }

  void Close(const absl::Status& status) {
    for (int side = 0; side < 2; ++side) {
      if (!sides_[side].awaits_late) CloseSide(side, status);
    }
  }

  // The end of `side` was destroyed. If its acceptor has not answered yet, a
  // refusal closes the pipe with its own status.
  void Drop(int side) {
    if (side == 1 && is_entering_) {
      dropped_ = true;
    } else {
      Close(absl::CancelledError("the connection was destroyed"));
    }
  }
  // Has `acceptor` take side 1.
  void Enter(const Transport::Acceptor& acceptor) {
    is_entering_ = true;
    auto accepted =
        acceptor(std::make_unique<PipeEnd<Pipe>>(shared_from_this(), 1));
    is_entering_ = false;
    if (!accepted.ok()) return Close(accepted.status());
    SetObserver(1, *std::move(accepted));
    if (dropped_) Drop(1);
  }

  // Nothing arrives any more; in time both ends learn of it.
  void GoSilent() {
    for (Side& side : sides_) side.deaf = true;
    After(network_.options_.silence, "silence", [self = shared_from_this()] {
      self->Close(absl::UnavailableError("nothing was heard"));
    });
  }

  // Releases the observers, which hold connections and so this.
  void Release() {
    for (Side& side : sides_) {
      side.closed = true;
      const auto dropped = std::exchange(side.observer, nullptr);
    }
  }

 private:
  struct Side {
    std::shared_ptr<ConnectionObserver> observer;
    bool writing = false;
    bool closed = false;
    bool deaf = false;  // what is sent to it does not arrive
    // A message may arrive after its sender has closed the connection.
    bool awaits_late = false;
    Instant last_arrival;
  };

  void SendIntact(int side, Slices message, const std::optional<Struck>& late) {
    const absl::Duration leaves = network_.TimeToLeave(message);
    After(leaves > absl::ZeroDuration() ? leaves : network_.Latency(),
          "written",
          [self = shared_from_this(), side] { self->Written(side); });
    absl::Duration delay = absl::ZeroDuration();
    if (late.has_value()) {
      delay = late->rule != nullptr ? late->rule->delay
                                    : UpTo(network_.options_.max_delay);
    }
    Send(side, std::move(message), delay, [] {});
  }

  void Written(int side) {
    sides_[side].writing = false;
    if (auto observer = sides_[side].observer) observer->OnWritten();
  }

  // No message arrives before the one that was sent before it.
  template <typename Then>
  void Send(int side, Slices message, absl::Duration delay, Then then) {
    Instant& last = sides_[1 - side].last_arrival;
    last = std::max(last + absl::Nanoseconds(1),
                    network_.simulator_.Now() + network_.TimeToLeave(message) +
                        network_.Latency() + delay);
    std::string label =
        absl::StrCat(addresses_[side], ">", addresses_[1 - side], " ",
                     FingerprintOf(message));
    network_.simulator_.Schedule(
        last,
        [self = shared_from_this(), side, m = std::move(message),
         then = std::move(then)]() mutable {
          Side& to = self->sides_[1 - side];
          const bool is_cut = self->network_.IsCut(self->addresses_[side],
                                                   self->addresses_[1 - side]);
          if (is_cut) self->GoSilent();
          const auto observer = to.observer;
          if (!to.closed && !to.deaf && observer != nullptr && !m.empty()) {
            observer->OnMessage(std::move(m));
          }
          then();
        },
        std::move(label));
  }

  void CloseSide(int side, const absl::Status& status) {
    if (std::exchange(sides_[side].closed, true)) return;
    After(network_.Latency(), "closed",
          [self = shared_from_this(), side, status] {
            const auto observer =
                std::exchange(self->sides_[side].observer, nullptr);
            if (observer != nullptr) observer->OnClosed(status);
          });
  }

  absl::Duration UpTo(absl::Duration longest) {
    return network_.simulator_.random().Between(absl::ZeroDuration(), longest);
  }

  template <typename Fn>
  void After(absl::Duration delay, const char* label, Fn fn) {
    network_.simulator_.After(delay, std::move(fn), label);
  }

  SimulatedNetwork& network_;
  const std::string addresses_[2];
  Side sides_[2];
  bool is_entering_ = false;
  bool dropped_ = false;  // by its acceptor
};

class SimulatedNetwork::SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(SimulatedNetwork& network, std::string address,
                     sim::ClockSkew skew)
      : network_(network),
        address_(std::move(address)),
        driver_(network.driver(), skew) {}
  ~SimulatedTransport() override { network_.acceptors_.erase(address_); }

  Driver& driver() override { return driver_; }

  void Register(const Purpose& purpose) override {
    network_.acceptors_[address_].emplace(purpose.name, nullptr);
  }

  void Accept(const Purpose& purpose, Acceptor acceptor) override {
    auto& acceptors = network_.acceptors_[address_];
    // After a Sever nothing is registered, and nothing arrives.
    const auto it = acceptors.find(purpose.name);
    WEFT_CHECK(it != acceptors.end() || acceptor == nullptr)
        << "register " << purpose.name << " before its acceptor is set";
    if (it != acceptors.end()) it->second = std::move(acceptor);
  }

  std::unique_ptr<Connection> Connect(
      const Purpose& purpose, const Destination& to,
      std::shared_ptr<ConnectionObserver> observer) override {
    auto pipe = std::make_shared<Pipe>(network_, address_, to.address);
    auto& pipes = network_.pipes_;
    pipes.erase(std::remove_if(pipes.begin(), pipes.end(),
                               [](const auto& weak) { return weak.expired(); }),
                pipes.end());
    pipes.push_back(pipe);
    pipe->SetObserver(0, std::move(observer));
    // Before any message: a latency is at least min_latency.
    network_.simulator_.After(
        network_.options_.min_latency / 2,
        [&network = network_, pipe, to, purpose] {
          network.Arrive(*pipe, to, purpose);
        },
        "connect");
    return std::make_unique<PipeEnd<Pipe>>(pipe, 0);
  }

  TimerId RunAt(Instant when, absl::AnyInvocable<void() &&> fn) override {
    return static_cast<TimerId>(
        network_.simulator_.Schedule(driver_.ToInner(when), std::move(fn),
                                     absl::StrCat("timer of ", address_)));
  }
  bool CancelTimer(TimerId id) override {
    return network_.simulator_.Cancel(static_cast<uint64_t>(id));
  }
  void AwaitTimers() override {}  // what is called runs beside none

 private:
  SimulatedNetwork& network_;
  const std::string address_;
  sim::SkewedDriver driver_;
};

SimulatedNetwork::SimulatedNetwork(sim::Simulator& simulator, Options options)
    : simulator_(simulator), driver_(simulator), options_(std::move(options)) {}

SimulatedNetwork::~SimulatedNetwork() {
  for (const auto& weak : pipes_) {
    if (const auto pipe = weak.lock()) pipe->Release();
  }
}

void SimulatedNetwork::CutOneWay(const std::string& from,
                                 const std::string& to) {
  cut_.emplace(from, to);
}

void SimulatedNetwork::Cut(const std::string& a, const std::string& b) {
  CutOneWay(a, b);
  CutOneWay(b, a);
}

void SimulatedNetwork::Heal(const std::string& a, const std::string& b) {
  cut_.erase({a, b});
  cut_.erase({b, a});
}

void SimulatedNetwork::Sever(const std::string& address) {
  acceptors_.erase(address);
  for (const auto& weak : pipes_) {
    const auto pipe = weak.lock();
    if (pipe != nullptr && pipe->Joins(address)) pipe->GoSilent();
  }
}

bool SimulatedNetwork::Strikes(sim::Fault fault) {
  if (options_.faults == nullptr || !options_.faults->Strikes(fault)) {
    return false;
  }
  simulator_.Note(sim::NameOf(fault));
  return true;
}

const sim::FaultPlan::Rule* SimulatedNetwork::RuleFor(const Slices& message) {
  if (options_.faults == nullptr || !options_.faults->has_rules()) {
    return nullptr;
  }
  const sim::FaultPlan::Rule* rule = options_.faults->Strikes(
      options_.classify != nullptr ? options_.classify(message)
                                   : std::vector<sim::FaultPlan::Message>());
  if (rule != nullptr) simulator_.Note(rule->ToString());
  return rule;
}

std::optional<SimulatedNetwork::Struck> SimulatedNetwork::StruckBy(
    int side, const Slices& message) {
  using sim::Fault;
  if (const auto* rule = RuleFor(message)) return Struck{rule->fault, rule};
  if (simulator_.random().Chance(options_.breaks)) return Struck{Fault::kReset};
  for (const Fault fault :
       {Fault::kReset, side == 0 ? Fault::kLoss : Fault::kLostReply,
        Fault::kHalfOpen, Fault::kDuplication, Fault::kReordering,
        Fault::kCorruption, Fault::kDelay}) {
    if (Strikes(fault)) return Struck{fault};
  }
  return std::nullopt;
}

std::unique_ptr<Transport> SimulatedNetwork::MakeTransport(
    std::string address, sim::ClockSkew skew) {
  return std::make_unique<SimulatedTransport>(*this, std::move(address), skew);
}

absl::StatusOr<Transport::Acceptor> SimulatedNetwork::FindAcceptor(
    const Destination& to, const Purpose& purpose) const {
  const auto at_address = acceptors_.find(to.address);
  if (at_address != acceptors_.end()) {
    const auto& acceptors = at_address->second;
    const auto it = acceptors.find(purpose.name);
    if (it != acceptors.end() && it->second != nullptr) return it->second;
    // One without any purpose is still being set up.
    if (it == acceptors.end() && !acceptors.empty()) {
      return NotServed(to, purpose, "it is registered for other purposes");
    }
  }
  return absl::UnavailableError(
      absl::StrCat("nobody accepts connections at ", to.address));
}

void SimulatedNetwork::Arrive(Pipe& pipe, const Destination& to,
                              const Purpose& purpose) {
  // A message of a sender that has closed the connection may still be in
  // transit.
  if (pipe.is_closed(1) || pipe.is_deaf()) return;
  if (IsCut(pipe.address(0), to.address) ||
      IsCut(to.address, pipe.address(0))) {
    return pipe.GoSilent();
  }
  const absl::StatusOr<Transport::Acceptor> acceptor =
      FindAcceptor(to, purpose);
  if (!acceptor.ok()) return pipe.Close(acceptor.status());
  pipe.Enter(*acceptor);
}

absl::Duration SimulatedNetwork::TimeToLeave(const Slices& message) const {
  if (options_.bytes_per_second <= 0) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(TotalSize(message)) /
                       options_.bytes_per_second);
}

absl::Duration SimulatedNetwork::Latency() {
  return simulator_.random().Between(options_.min_latency,
                                     options_.max_latency);
}

}  // namespace weft::transport
