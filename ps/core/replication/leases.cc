#include "weft/ps/core/replication/leases.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::ps {

void Leases::Watch(const std::vector<WorkerKey>& peers, Instant now) {
  std::map<WorkerKey, Peer> watched;
  for (WorkerKey key : peers) {
    const auto known = peers_.find(key);
    if (known != peers_.end()) {
      watched.insert(*known);
    } else {
      Peer peer;
      peer.due = peer.heard = now;
      watched.emplace(key, std::move(peer));
    }
  }
  peers_ = std::move(watched);
}

std::vector<Leases::Out> Leases::OnTick(uint64_t map_epoch, Instant now) {
  std::vector<Out> out;
  for (auto& [key, peer] : peers_) {
    if (now < peer.due) continue;
    peer.due = now + options_.ping_every;
    peer.asked[++last_] = now;
    if (peer.asked.size() > kMostAsked) peer.asked.erase(peer.asked.begin());
    out.push_back({key, {last_, map_epoch}});
  }
  for (auto it = granted_.begin(); it != granted_.end();) {
    it = it->second < now ? granted_.erase(it) : std::next(it);
  }
  return out;
}

Ping Leases::OnPing(WorkerKey from, const Ping& ping, uint64_t map_epoch,
                    Instant now) {
  const auto peer = peers_.find(from);
  if (peer != peers_.end()) {
    peer->second.heard = now;
    peer->second.epoch = std::max(peer->second.epoch, ping.map_epoch);
  }
  Instant& granted = granted_.try_emplace(from, Never()).first->second;
  granted = std::max(granted, now + options_.lease * (1 + options_.drift));
  return {ping.number, map_epoch};
}

bool Leases::OnAnswer(WorkerKey from, const Ping& answer, uint64_t map_epoch,
                      Instant now) {
  const auto it = peers_.find(from);
  if (it == peers_.end()) return true;
  Peer& peer = it->second;
  peer.heard = now;
  peer.epoch = std::max(peer.epoch, answer.map_epoch);
  if (answer.map_epoch > map_epoch) return false;
  const auto asked = peer.asked.find(answer.number);
  if (asked == peer.asked.end()) return true;
  const absl::Duration lease =
      IsNone(from) ? options_.coordinator_lease : options_.lease;
  peer.held = std::max(peer.held, asked->second + lease);
  peer.asked.erase(peer.asked.begin(), std::next(asked));
  return true;
}

Instant Leases::HeldUntil(WorkerKey from) const {
  const auto peer = peers_.find(from);
  return peer == peers_.end() ? Never() : peer->second.held;
}

Instant Leases::GrantedUntil(WorkerKey to) const {
  const auto granted = granted_.find(to);
  return granted == granted_.end() ? Never() : granted->second;
}

Instant Leases::HeardAt(WorkerKey peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? Never() : it->second.heard;
}

uint64_t Leases::EpochOf(WorkerKey peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? 0 : it->second.epoch;
}

std::string Leases::Snapshot(Instant now) const {
  // Times further back than any time-out are alike.
  const auto since = [now](Instant at) {
    return at == Never()
               ? int64_t{-1'000'000}
               : std::max<int64_t>(absl::ToInt64Milliseconds(at - now), -5000);
  };
  std::string out;
  for (const auto& [key, peer] : peers_) {
    absl::StrAppend(&out, "p", key.ToString(), ":", since(peer.due), ",",
                    since(peer.heard), ",", since(peer.held), ",", peer.epoch,
                    ";");
    for (const auto& [number, at] : peer.asked) {
      absl::StrAppend(&out, number, "=", since(at), ";");
    }
  }
  for (const auto& [key, until] : granted_) {
    absl::StrAppend(&out, "g", key.ToString(), ":", since(until), ";");
  }
  return out;
}

}  // namespace weft::ps
