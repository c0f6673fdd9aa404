#include "weft/net/edge/pending_connections.h"

#include <algorithm>
#include <iterator>

namespace weft::net {
namespace {

constexpr int kFairShares = 5;  // of the time-out

size_t AtOneAddress(int max_handshakes) {
  return std::max(1, max_handshakes - std::max(1, max_handshakes / 4));
}

}  // namespace

PendingConnections::PendingConnections(int max_handshakes,
                                       absl::Duration handshake_timeout)
    : max_handshakes_(static_cast<size_t>(std::max(1, max_handshakes))),
      max_at_one_address_(AtOneAddress(max_handshakes)),
      timeout_(handshake_timeout),
      fair_time_(handshake_timeout / kFairShares) {}

void PendingConnections::Add(Id id, const std::string& address, Instant now) {
  connections_.emplace(id, Connection{address, State::kSilent, now});
  crowds_[address].silent.insert(id);
  waiting_.insert(id);
}

void PendingConnections::BecomePartial(Id id) {
  Connection& connection = connections_.at(id);
  if (connection.state != State::kSilent) return;
  Detach(id, connection);
  connection.state = State::kPartial;
  crowds_.at(connection.address).partial.insert(id);
  waiting_.insert(id);
}

void PendingConnections::BecomeReady(Id id) {
  Connection& connection = connections_.at(id);
  if (connection.state == State::kReady) return;
  Detach(id, connection);
  connection.state = State::kReady;
  crowds_.at(connection.address).ready.insert(id);
  waiting_.insert(id);
  ++ready_;
}

void PendingConnections::BeginHandshake(Id id, Instant now) {
  Connection& connection = connections_.at(id);
  Detach(id, connection);
  connection.state = State::kHandshake;
  connection.since = now;
  Crowd& crowd = crowds_.at(connection.address);
  crowd.handshakes.emplace(now, id);
  crowd.last_turn = ++turns_;
  handshakes_.emplace(now, id);
}

void PendingConnections::Remove(Id id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Detach(id, found->second);
  const auto crowd = crowds_.find(found->second.address);
  if (crowd->second.size() == 0) crowds_.erase(crowd);
  connections_.erase(found);
}

// From the sets of its state.
void PendingConnections::Detach(Id id, const Connection& connection) {
  Crowd& crowd = crowds_.at(connection.address);
  waiting_.erase(id);
  switch (connection.state) {
    case State::kSilent:
      crowd.silent.erase(id);
      return;
    case State::kPartial:
      crowd.partial.erase(id);
      return;
    case State::kReady:
      crowd.ready.erase(id);
      --ready_;
      return;
    case State::kHandshake:
      crowd.handshakes.erase({connection.since, id});
      handshakes_.erase({connection.since, id});
      return;
  }
}

void PendingConnections::HoldBack(const std::string& address, Instant until) {
  Instant& held = held_back_.emplace(address, until).first->second;
  held = std::max(held, until);
}

bool PendingConnections::IsHoldingBack(Instant now) const {
  return std::any_of(held_back_.begin(), held_back_.end(),
                     [&](const auto& held) { return now < held.second; });
}

bool PendingConnections::IsHeldBack(const std::string& address,
                                    Instant now) const {
  const auto found = held_back_.find(address);
  return found != held_back_.end() && now < found->second;
}

bool PendingConnections::IsReady(Id id) const {
  const auto found = connections_.find(id);
  return found != connections_.end() && found->second.state == State::kReady;
}

// Chooses among the crowds that have something ready; among equals the one
// whose last turn is longest ago.
const PendingConnections::Crowd* PendingConnections::FewestHandshakes(
    Instant now) const {
  const Crowd* fewest = nullptr;
  const auto rank = [](const Crowd& crowd) {
    return std::make_pair(crowd.handshakes.size(), crowd.last_turn);
  };
  for (const auto& [address, crowd] : crowds_) {
    if (crowd.ready.empty() || IsHeldBack(address, now)) continue;
    if (fewest == nullptr || rank(crowd) < rank(*fewest)) fewest = &crowd;
  }
  return fewest;
}

// The one with the oldest among equals.
const PendingConnections::Crowd* PendingConnections::MostHandshakes() const {
  const Crowd* most = nullptr;
  for (const auto& [address, crowd] : crowds_) {
    if (crowd.handshakes.empty()) continue;
    const bool more = most == nullptr ||
                      crowd.handshakes.size() > most->handshakes.size() ||
                      (crowd.handshakes.size() == most->handshakes.size() &&
                       *crowd.handshakes.begin() < *most->handshakes.begin());
    if (more) most = &crowd;
  }
  return most;
}

std::optional<PendingConnections::Id> PendingConnections::NextReady(
    Instant now) const {
  if (handshakes_.size() >= max_handshakes_) return std::nullopt;
  const Crowd* const next = FewestHandshakes(now);
  if (next == nullptr || next->handshakes.size() >= max_at_one_address_)
    return std::nullopt;
  return *next->ready.rbegin();
}

bool PendingConnections::MayBeCut(const Crowd& crowd, Instant now) const {
  return !crowd.handshakes.empty() &&
         crowd.handshakes.begin()->first + fair_time_ <= now;
}

std::optional<PendingConnections::Id> PendingConnections::HandshakeToCut(
    Instant now) const {
  const Crowd* const next = FewestHandshakes(now);
  if (next == nullptr) return std::nullopt;
  // With places left it is only its own address that has as many as it may.
  const Crowd* const from =
      handshakes_.size() < max_handshakes_ ? next : MostHandshakes();
  if (!MayBeCut(*from, now)) return std::nullopt;
  return from->handshakes.begin()->second;
}

// A part goes before silence: a good peer says it all at once, and is silent
// until then. So no number of half hellos harms it.
std::optional<PendingConnections::Id> PendingConnections::VictimOf(
    const Crowd& crowd, Instant now) const {
  if (!crowd.partial.empty()) return *crowd.partial.begin();
  if (!crowd.silent.empty()) return *crowd.silent.begin();
  if (!crowd.ready.empty()) return *crowd.ready.begin();
  if (MayBeCut(crowd, now)) return crowd.handshakes.begin()->second;
  return std::nullopt;
}

std::optional<PendingConnections::Id> PendingConnections::ToEvictAt(
    const std::string& address, Instant now) const {
  const auto crowd = crowds_.find(address);
  if (crowd == crowds_.end()) return std::nullopt;
  return VictimOf(crowd->second, now);
}

std::optional<PendingConnections::Id> PendingConnections::ToEvictFor(
    const std::string& address, Instant now) const {
  const auto own = crowds_.find(address);
  const size_t least = own == crowds_.end() ? 1 : own->second.size() + 1;
  std::optional<Id> victim;
  size_t most = 0;
  for (const auto& [name, crowd] : crowds_) {
    const size_t size = name == address ? least : crowd.size();
    if (size < std::max(least, most)) continue;
    const std::optional<Id> here = VictimOf(crowd, now);
    if (!here.has_value()) continue;
    if (size > most || *here < *victim) victim = here;
    most = size;
  }
  return victim;
}

std::optional<PendingConnections::Id> PendingConnections::ToEvict(
    Instant now) const {
  return ToEvictFor("", now);
}

std::optional<PendingConnections::Id> PendingConnections::Expired(
    Instant now) const {
  if (next_expiry() > now) return std::nullopt;
  return *waiting_.begin();
}

Instant PendingConnections::next_expiry() const {
  if (waiting_.empty()) return Instant::Infinite();
  return connections_.at(*waiting_.begin()).since + timeout_;
}

void PendingConnections::Settle(Instant now) {
  for (auto held = held_back_.begin(); held != held_back_.end();) {
    held = held->second <= now ? held_back_.erase(held) : std::next(held);
  }
  while (!handshakes_.empty() && handshakes_.begin()->first + timeout_ <= now)
    Remove(handshakes_.begin()->second);
}

}  // namespace weft::net
