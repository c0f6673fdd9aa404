#include "weft/sim/sim_network.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"

namespace weft::sim {

SimNetwork::SimNetwork(Simulator& simulator, FaultPlan& faults, Options options)
    : simulator_(simulator), faults_(faults), options_(std::move(options)) {}

void SimNetwork::AddNode(const std::string& name, SimNode& node) {
  const bool is_new = nodes_.emplace(name, Node{&node}).second;
  WEFT_CHECK(is_new) << "two nodes are named " << name;
  simulator_.After(
      absl::ZeroDuration(),
      [this, name] {
        const Node& started = nodes_.at(name);
        if (started.is_up && started.incarnation == 1) started.node->OnStart(1);
      },
      absl::StrCat("start ", name, " #1"));
}

void SimNetwork::Send(const std::string& from, const std::string& to,
                      Bytes message) {
  WEFT_CHECK(nodes_.count(from) > 0 && nodes_.count(to) > 0)
      << "from " << from << " to " << to;
  if (!IsUp(from)) return;
  const Pair pair(from, to);
  const int64_t number = ++sent_;
  if (cut_.count(pair) > 0) return;
  if (const FaultPlan::Rule* rule = RuleFor(message)) {
    return SendByRule(*rule, pair, std::move(message), number);
  }
  if (faults_.Strikes(Fault::kLoss)) return;
  if (faults_.Strikes(Fault::kDuplication)) Transmit(pair, message, number);
  Transmit(pair, std::move(message), number);
}

const FaultPlan::Rule* SimNetwork::RuleFor(const Bytes& message) {
  if (!faults_.has_rules()) return nullptr;
  const FaultPlan::Rule* rule = faults_.Strikes(
      {options_.describe ? options_.describe(message) : FaultPlan::Message()});
  if (rule != nullptr) simulator_.Note(rule->ToString());
  return rule;
}

void SimNetwork::SendByRule(const FaultPlan::Rule& rule, const Pair& pair,
                            Bytes message, int64_t number) {
  if (rule.fault == Fault::kDelay) {
    Transmit(pair, std::move(message), number, rule.delay);
  } else if (rule.fault == Fault::kDuplication) {
    Transmit(pair, message, number, absl::ZeroDuration());
    Transmit(pair, std::move(message), number, absl::ZeroDuration());
  }
}

void SimNetwork::Transmit(const Pair& pair, Bytes message, int64_t number,
                          std::optional<absl::Duration> late) {
  Link& link = links_[pair];
  const bool is_ruled = late.has_value();
  Instant arrival =
      simulator_.Now() + Latency() + late.value_or(absl::ZeroDuration());
  if (!is_ruled && faults_.Strikes(Fault::kDelay)) {
    arrival += UpTo(options_.max_delay);
  }
  if (!is_ruled && faults_.Strikes(Fault::kReordering)) {
    // Late, without holding up the others.
    arrival += 4 * Latency();
  } else {
    arrival = std::max(arrival, link.last_arrival + absl::Nanoseconds(1));
    link.last_arrival = arrival;
  }
  simulator_.Schedule(
      arrival,
      [this, pair, from = incarnation(pair.first),
       to = incarnation(pair.second), connection = link.connection,
       message = std::move(message)] {
        Deliver(pair, from, to, connection, message);
      },
      absl::StrCat(pair.first, ">", pair.second, " message ", number));
}

void SimNetwork::Deliver(const Pair& pair, int64_t from_incarnation,
                         int64_t to_incarnation, int64_t connection,
                         const Bytes& message) {
  const Node& to = nodes_.at(pair.second);
  const bool arrives = to.is_up && to.incarnation == to_incarnation &&
                       links_[pair].connection == connection &&
                       cut_.count(pair) == 0;
  if (!arrives) return;
  ++delivered_;
  to.node->OnMessage(pair.first, from_incarnation, message);
}

void SimNetwork::CutOneWay(const std::string& from, const std::string& to) {
  faults_.Count(Fault::kOneWayPartition);
  cut_.insert({from, to});
}

void SimNetwork::Cut(const std::string& a, const std::string& b) {
  faults_.Count(Fault::kTwoWayPartition);
  cut_.insert({a, b});
  cut_.insert({b, a});
}

void SimNetwork::Heal(const std::string& a, const std::string& b) {
  cut_.erase({a, b});
  cut_.erase({b, a});
}

void SimNetwork::Reset(const std::string& a, const std::string& b) {
  faults_.Count(Fault::kReset);
  Break({a, b});
}

void SimNetwork::Break(const Pair& pair) {
  ++links_[pair].connection;
  ++links_[{pair.second, pair.first}].connection;
  TellReset(pair.first, pair.second);
  TellReset(pair.second, pair.first);
}

void SimNetwork::TellReset(const std::string& name, const std::string& peer) {
  simulator_.After(
      Latency(),
      [this, name, peer, incarnation = incarnation(name)] {
        const Node& node = nodes_.at(name);
        if (node.is_up && node.incarnation == incarnation) {
          node.node->OnReset(peer);
        }
      },
      absl::StrCat(name, " reset by ", peer));
}

void SimNetwork::Crash(const std::string& name) {
  faults_.Count(Fault::kCrash);
  Kill(name);
}

void SimNetwork::Kill(const std::string& name) {
  Node& node = nodes_.at(name);
  WEFT_CHECK(node.is_up) << name;
  simulator_.Note(absl::StrCat("crash ", name));
  node.is_up = false;
  node.node->OnCrash();
  if (!simulator_.random().Chance(options_.crash_resets)) return;
  for (const auto& [peer, state] : nodes_) {
    if (peer != name) TellReset(peer, name);
  }
}

void SimNetwork::Restart(const std::string& name) {
  Node& node = nodes_.at(name);
  WEFT_CHECK(!node.is_up) << name;
  faults_.Count(Fault::kRestart);
  node.is_up = true;
  ++node.incarnation;
  simulator_.Note(absl::StrCat("restart ", name, " #", node.incarnation));
  node.node->OnStart(node.incarnation);
}

void SimNetwork::StartChaos(Chaos chaos) {
  if (simulator_.Now() + chaos.every > chaos.until) return;
  simulator_.After(
      chaos.every, [this, chaos] { Tick(chaos); }, "chaos");
}

void SimNetwork::Tick(Chaos chaos) {
  const Pair pair = RandomPair();
  const Pair back(pair.second, pair.first);
  if (faults_.Strikes(Fault::kOneWayPartition)) CutFor({pair}, chaos);
  if (faults_.Strikes(Fault::kTwoWayPartition)) CutFor({pair, back}, chaos);
  if (faults_.Strikes(Fault::kReset)) Break(pair);
  const std::string& name = pair.first;
  if (IsUp(name) && faults_.Strikes(Fault::kCrash)) {
    Kill(name);
    simulator_.After(
        UpTo(chaos.max_down),
        [this, name] {
          if (!IsUp(name)) Restart(name);
        },
        absl::StrCat("end of crash ", name));
  }
  StartChaos(chaos);
}

void SimNetwork::CutFor(const std::vector<Pair>& pairs, const Chaos& chaos) {
  for (const Pair& pair : pairs) {
    cut_.insert(pair);
    simulator_.Note(absl::StrCat("cut ", pair.first, ">", pair.second));
  }
  simulator_.After(
      UpTo(chaos.max_partition),
      [this, pairs] {
        for (const Pair& pair : pairs) cut_.erase(pair);
      },
      absl::StrCat("heal ", pairs.front().first, " ", pairs.front().second));
}

absl::Duration SimNetwork::UpTo(absl::Duration longest) {
  return simulator_.random().Between(absl::ZeroDuration(), longest);
}

SimNetwork::Pair SimNetwork::RandomPair() {
  WEFT_CHECK_GE(nodes_.size(), 2u);
  const int64_t size = static_cast<int64_t>(nodes_.size());
  const int64_t first = simulator_.random().Below(size);
  const int64_t other = simulator_.random().Below(size - 1);
  const int64_t second = other < first ? other : other + 1;
  return {std::next(nodes_.begin(), first)->first,
          std::next(nodes_.begin(), second)->first};
}

absl::Duration SimNetwork::Latency() {
  return simulator_.random().Between(options_.min_latency,
                                     options_.max_latency);
}

std::string SimNetwork::Report() const {
  return absl::StrCat("messages: ", sent_, " sent, ", delivered_,
                      " delivered\n", faults_.Report());
}

}  // namespace weft::sim
