// SimulatedNetwork: agents under a seeded simulation: virtual time, latencies,
// broken connections.

#ifndef WEFT_TRANSPORT_SIMULATED_TRANSPORT_H_
#define WEFT_TRANSPORT_SIMULATED_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/sim_driver.h"
#include "weft/sim/simulator.h"
#include "weft/sim/skewed_driver.h"
#include "weft/transport/transport.h"

namespace weft::transport {

// Like gRPC's, a connection delivers in order, or breaks and loses what is
// under way; each end learns of that in its own time. Of a FaultPlan these
// kinds strike, at each message:
//   kReset        the connection breaks, the message is lost, both ends know
//   kLoss         of a message to who accepted: it is lost, the connection dead
//                 for both, who learn of it after `silence`
//   kLostReply    the same of a message to who connected
//   kHalfOpen     the sender learns at once, the other after `silence`
//   kDuplication  it arrives, and then the connection breaks before its sender
//                 knows: who sends again, sends it twice
//   kDelay        it and those behind it are late
//   kReordering   the connection breaks for the sender, and the message comes
//                 late, when the next connection may have carried others
//   kCorruption   who receives the message finds that it is not what was sent,
//                 as TLS does, and closes the connection and of its rules those
// of the same kinds, by what Options::classify says is in a message. What is in
// one message shares its fate.
//
// Thread-safety: as its Simulator.
class SimulatedNetwork {
 public:
  struct Options {
    absl::Duration min_latency = absl::Microseconds(50);
    absl::Duration max_latency = absl::Milliseconds(2);
    absl::Duration max_delay = absl::Milliseconds(50);
    // How long a dead connection goes unnoticed.
    absl::Duration silence = absl::Milliseconds(100);
    // Each direction of a connection has this rate; 0: a message takes no time
    // to leave.
    double bytes_per_second = 0;
    // How often a message breaks the connection that it travels on.
    double breaks = 0;
    // Strikes besides; null: none. Must outlive the network.
    sim::FaultPlan* faults = nullptr;
    // What a message holds, to the rules of `faults`; null: of no kind.
    std::function<std::vector<sim::FaultPlan::Message>(const Slices&)> classify;
    // How its transports wait; null: by running the simulation. The same.
    Driver* driver = nullptr;
  };

  // `simulator` must outlive it.
  SimulatedNetwork(sim::Simulator& simulator, Options options);
  // Releases the ends of all connections.
  ~SimulatedNetwork();

  // A transport reached at `address`, whose clock is off by `skew`; the network
  // must outlive it.
  std::unique_ptr<Transport> MakeTransport(std::string address,
                                           sim::ClockSkew skew = {});

  // What is sent from `from` to `to` is lost from now on, silently.
  void CutOneWay(const std::string& from, const std::string& to);
  void Cut(const std::string& a, const std::string& b);
  void Heal(const std::string& a, const std::string& b);
  // Nothing more comes from or to what is reached at `address` now; the next
  // transport of that address is not concerned.
  void Sever(const std::string& address);

  int64_t broken() const { return broken_; }

 private:
  class Pipe;
  class SimulatedTransport;

  absl::Duration Latency();
  bool Strikes(sim::Fault fault);
  // What befalls a message of that side of a connection, if anything does.
  struct Struck {
    sim::Fault fault;
    const sim::FaultPlan::Rule* rule = nullptr;  // that says so; null: none
  };
  std::optional<Struck> StruckBy(int side, const Slices& message);
  const sim::FaultPlan::Rule* RuleFor(const Slices& message);
  bool IsCut(const std::string& from, const std::string& to) const {
    return cut_.count({from, to}) > 0;
  }
  Driver& driver() {
    return options_.driver != nullptr ? *options_.driver : driver_;
  }
  // How long `message` keeps its direction of the connection busy.
  absl::Duration TimeToLeave(const Slices& message) const;
  void Arrive(Pipe& pipe, const Destination& to, const Purpose& purpose);
  absl::StatusOr<Transport::Acceptor> FindAcceptor(
      const Destination& to, const Purpose& purpose) const;

  sim::Simulator& simulator_;
  sim::SimDriver driver_;
  const Options options_;
  // By the address and the purpose's name; null: registered, and nobody accepts
  // yet.
  std::map<std::string, std::map<std::string, Transport::Acceptor>> acceptors_;
  std::set<std::pair<std::string, std::string>> cut_;
  std::vector<std::weak_ptr<Pipe>> pipes_;
  int64_t broken_ = 0;
};

}  // namespace weft::transport

#endif  // WEFT_TRANSPORT_SIMULATED_TRANSPORT_H_
