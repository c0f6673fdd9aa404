// BarrierTable: see the header.

#include "weft/rendezvous/barrier_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

constexpr BarrierTable::Ticket kNobody = 0;

std::vector<std::string> MissingAmong(
    const std::map<std::string, BarrierTable::Arrival>& waiting) {
  std::vector<std::string> missing;
  for (const std::string& name : waiting.begin()->second.members) {
    if (waiting.count(name) == 0) missing.push_back(name);
  }
  return missing;
}

absl::Status Disagreement(const BarrierTable::Arrival& there,
                          const BarrierTable::Arrival& here) {
  return absl::FailedPreconditionError(
      absl::StrCat("Barrier ", here.tag, ": ", there.name, " waits for {",
                   absl::StrJoin(there.members, ", "), "}, ", here.name,
                   " for {", absl::StrJoin(here.members, ", "),
                   "}: name the same members everywhere"));
}

}  // namespace

BarrierTable::Result BarrierTable::Arrive(Arrival arrival) {
  Result result;
  auto& released = released_[arrival.key];
  released.erase(released.begin(), released.lower_bound(arrival.settled_below));
  if (const auto open = released.find(arrival.number); open != released.end()) {
    result.outcomes.push_back(
        {arrival.ticket, absl::OkStatus(), Open(open->second)});
    return result;
  }
  if (released.empty()) released_.erase(arrival.key);

  Barrier& barrier = barriers_[arrival.tag];
  if (!barrier.empty() && barrier.begin()->second.members != arrival.members) {
    result.outcomes.push_back(
        {arrival.ticket, Disagreement(barrier.begin()->second, arrival), {}});
    return result;
  }
  const std::string tag = arrival.tag;
  const std::string name = arrival.name;
  if (auto before = barrier.find(name);
      before != barrier.end() && before->second.ticket != kNobody) {
    // The member asks again, so it has given up the earlier call.
    result.outcomes.push_back({before->second.ticket,
                               absl::CancelledError("repeated by its caller"),
                               {}});
  }
  barrier.insert_or_assign(name, std::move(arrival));
  OpenIfComplete(tag, result);
  return result;
}

void BarrierTable::OpenIfComplete(const std::string& tag, Result& result) {
  const auto found = barriers_.find(tag);
  if (!MissingAmong(found->second).empty()) return;
  const Gathered gathered = Gather(found->second);
  if (gathered != nullptr) {
    *result.released.mutable_brought() = {gathered->begin(), gathered->end()};
  }
  for (const auto& [name, arrival] : found->second) {
    released_[arrival.key][arrival.number] = gathered;
    auto* record = result.released.add_arrivals();
    *record->mutable_key() = ToWire(arrival.key);
    record->set_number(arrival.number);
    if (arrival.ticket == kNobody) continue;
    result.outcomes.push_back(
        {arrival.ticket, absl::OkStatus(), Open(gathered)});
  }
  barriers_.erase(found);
}

BarrierTable::Gathered BarrierTable::Gather(const Barrier& barrier) {
  auto all = std::make_shared<std::vector<v1::Brought>>();
  for (const auto& [name, arrival] : barrier) {
    if (arrival.payload.empty()) continue;
    v1::Brought& brought = all->emplace_back();
    brought.set_name(name);
    brought.set_payload(arrival.payload);
  }
  return all->empty() ? nullptr : std::move(all);
}

v1::BarrierReply BarrierTable::Open(const Gathered& gathered) {
  v1::BarrierReply open;
  open.set_released(true);
  if (gathered != nullptr) {
    *open.mutable_brought() = {gathered->begin(), gathered->end()};
  }
  return open;
}

BarrierTable::Result BarrierTable::Gone(const std::string& name, WorkerKey key,
                                        const std::string& reason) {
  Result result;
  released_.erase(key);
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    const Barrier& barrier = it->second;
    if (barrier.begin()->second.members.count(name) == 0) {
      ++it;
      continue;
    }
    const absl::Status status = absl::AbortedError(absl::StrCat(
        "Barrier ", it->first, ": ", name, " is gone (", reason, ")"));
    for (const auto& [waiter, arrival] : barrier) {
      if (arrival.ticket == kNobody) continue;
      result.outcomes.push_back({arrival.ticket, status, {}});
    }
    it = barriers_.erase(it);
  }
  return result;
}

v1::BarrierReply BarrierTable::NotYet(const Barrier& barrier) {
  v1::BarrierReply reply;
  for (std::string& name : MissingAmong(barrier)) {
    reply.add_missing(std::move(name));
  }
  return reply;
}

BarrierTable::Result BarrierTable::Expire(Instant now) {
  Result result;
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    Barrier& barrier = it->second;
    const v1::BarrierReply not_yet = NotYet(barrier);
    for (auto member = barrier.begin(); member != barrier.end();) {
      Arrival& arrival = member->second;
      if (arrival.ticket != kNobody &&
          std::min(arrival.answer_by, arrival.stands_until) <= now) {
        result.outcomes.push_back({arrival.ticket, absl::OkStatus(), not_yet});
        arrival.ticket = kNobody;
      }
      member = arrival.stands_until <= now ? barrier.erase(member)
                                           : std::next(member);
    }
    it = barrier.empty() ? barriers_.erase(it) : std::next(it);
  }
  return result;
}

Instant BarrierTable::NextExpiry() const {
  Instant next = Instant::Infinite();
  for (const auto& [tag, barrier] : barriers_) {
    for (const auto& [name, arrival] : barrier) {
      next = std::min(next, arrival.stands_until);
      if (arrival.ticket != kNobody) next = std::min(next, arrival.answer_by);
    }
  }
  return next;
}

void BarrierTable::HangUp(Ticket ticket) {
  for (auto& [tag, barrier] : barriers_) {
    for (auto& [name, arrival] : barrier) {
      if (arrival.ticket == ticket) arrival.ticket = kNobody;
    }
  }
}

void BarrierTable::Replay(const v1::LogRecord::Released& released) {
  Gathered gathered;
  if (released.brought_size() > 0) {
    gathered = std::make_shared<std::vector<v1::Brought>>(
        released.brought().begin(), released.brought().end());
  }
  for (const auto& arrival : released.arrivals()) {
    released_[FromWire(arrival.key())][arrival.number()] = gathered;
  }
}

std::vector<v1::LogRecord::Released> BarrierTable::Snapshot() const {
  // Arrivals that share what was gathered go into one record, so that it is
  // written once.
  std::vector<v1::LogRecord::Released> all;
  std::map<const void*, size_t> places;
  for (const auto& [key, numbers] : released_) {
    for (const auto& [number, gathered] : numbers) {
      const auto [place, is_new] = places.emplace(gathered.get(), all.size());
      if (is_new) {
        all.emplace_back();
        if (gathered != nullptr) {
          *all.back().mutable_brought() = {gathered->begin(), gathered->end()};
        }
      }
      auto* arrival = all[place->second].add_arrivals();
      *arrival->mutable_key() = ToWire(key);
      arrival->set_number(number);
    }
  }
  return all;
}

int BarrierTable::held() const {
  int held = 0;
  for (const auto& [tag, barrier] : barriers_) held += barrier.size();
  return held;
}

}  // namespace weft::rendezvous
