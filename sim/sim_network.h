// SimNetwork: nodes that exchange messages over links which a FaultPlan breaks.
//
// Without faults a link keeps order and loses nothing, like one connection. A
// crash forgets the messages on their way to a node, not those it had sent: an
// old incarnation can still be heard.

#ifndef WEFT_SIM_SIM_NETWORK_H_
#define WEFT_SIM_SIM_NETWORK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/bytes.h"
#include "weft/base/clock.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/simulator.h"

namespace weft::sim {

// What lives at a name. All calls come as events of the Simulator.
class SimNode {
 public:
  virtual ~SimNode() = default;

  // It begins, with incarnation 1, 2, ... All that an earlier incarnation kept
  // in memory must be forgotten.
  virtual void OnStart(int64_t /*incarnation*/) {}
  virtual void OnMessage(const std::string& from, int64_t from_incarnation,
                         const Bytes& message) = 0;
  // The connection with `peer` broke; what was under way is lost.
  virtual void OnReset(const std::string& /*peer*/) {}
  // The node is dead from now until OnStart: the network drops what it sends.
  virtual void OnCrash() {}
};

// Thread-safety: as its Simulator.
class SimNetwork {
 public:
  struct Options {
    absl::Duration min_latency = absl::Microseconds(50);
    absl::Duration max_latency = absl::Microseconds(500);
    absl::Duration max_delay = absl::Milliseconds(50);  // by Fault::kDelay
    // How often peers learn of a crash by a reset; else by silence alone.
    double crash_resets = 0.5;
    // What a message is to the rules of the FaultPlan, which make it late
    // (kDelay), double it (kDuplication) or, by any other kind, lose it. Null:
    // it is of no kind.
    std::function<FaultPlan::Message(const Bytes&)> describe;
  };
  // Faults of nodes and links, drawn every `every` until `until`.
  struct Chaos {
    absl::Duration every = absl::Milliseconds(5);
    Instant until;
    absl::Duration max_partition = absl::Milliseconds(50);
    absl::Duration max_down = absl::Milliseconds(50);
  };

  // Both must outlive it.
  SimNetwork(Simulator& simulator, FaultPlan& faults, Options options);
  SimNetwork(Simulator& simulator, FaultPlan& faults)
      : SimNetwork(simulator, faults, Options()) {}
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // `node` must outlive the run. REQUIRES: a new name.
  void AddNode(const std::string& name, SimNode& node);

  // Sends if `from` is up. REQUIRES: both names are known.
  void Send(const std::string& from, const std::string& to, Bytes message);

  // The rest happens at once, and is counted in the FaultPlan.
  void CutOneWay(const std::string& from, const std::string& to);
  void Cut(const std::string& a, const std::string& b);
  void Heal(const std::string& a, const std::string& b);
  void HealAll() { cut_.clear(); }
  void Reset(const std::string& a, const std::string& b);
  void Crash(const std::string& name);    // REQUIRES: it is up
  void Restart(const std::string& name);  // REQUIRES: it is down

  void StartChaos(Chaos chaos);

  bool IsUp(const std::string& name) const { return nodes_.at(name).is_up; }
  int64_t incarnation(const std::string& name) const {
    return nodes_.at(name).incarnation;
  }
  int64_t sent() const { return sent_; }
  int64_t delivered() const { return delivered_; }
  // Messages sent and delivered, then the faults.
  std::string Report() const;

 private:
  using Pair = std::pair<std::string, std::string>;  // from, to
  struct Node {
    SimNode* node;
    int64_t incarnation = 1;
    bool is_up = true;
  };
  struct Link {
    Instant last_arrival;    // of those that keep order
    int64_t connection = 0;  // grows with each reset
  };

  const FaultPlan::Rule* RuleFor(const Bytes& message);
  void SendByRule(const FaultPlan::Rule& rule, const Pair& pair, Bytes message,
                  int64_t number);
  // `late`: as a rule says, and then by nothing else; null: as may befall it.
  void Transmit(const Pair& pair, Bytes message, int64_t number,
                std::optional<absl::Duration> late = std::nullopt);
  void Deliver(const Pair& pair, int64_t from_incarnation,
               int64_t to_incarnation, int64_t connection,
               const Bytes& message);
  void Tick(Chaos chaos);
  // What Reset, Crash and Cut do, uncounted.
  void Break(const Pair& pair);
  void Kill(const std::string& name);
  void CutFor(const std::vector<Pair>& pairs, const Chaos& chaos);
  void TellReset(const std::string& name, const std::string& peer);
  Pair RandomPair();
  absl::Duration Latency();
  absl::Duration UpTo(absl::Duration longest);

  Simulator& simulator_;
  FaultPlan& faults_;
  const Options options_;
  std::map<std::string, Node> nodes_;
  std::map<Pair, Link> links_;
  std::set<Pair> cut_;
  int64_t sent_ = 0;
  int64_t delivered_ = 0;
};

}  // namespace weft::sim

#endif  // WEFT_SIM_SIM_NETWORK_H_
