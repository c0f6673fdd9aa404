// BarrierTable: see the header.

#include "weft/rendezvous/core/barrier_table.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

constexpr BarrierTable::Ticket kNobody = 0;
// The approximate overhead of an arrival, and of each name in it.
constexpr int64_t kArrivalBytes = 512;
constexpr int64_t kNameBytes = 96;
constexpr size_t kShown = 32;  // of a barrier's members, in an error

std::string TextOf(const std::set<std::string>& members) {
  const size_t shown = std::min(members.size(), kShown);
  std::string text =
      absl::StrJoin(members.begin(), std::next(members.begin(), shown), ", ");
  if (shown < members.size()) {
    absl::StrAppend(&text, " and ", members.size() - shown, " more");
  }
  return text;
}

absl::Status Disagreement(const BarrierTable::Arrival& there,
                          const BarrierTable::Arrival& here) {
  return absl::FailedPreconditionError(absl::StrCat(
      "Barrier ", here.tag, ": ", there.name, " waits for {",
      TextOf(there.members->all), "}, ", here.name, " for {",
      TextOf(here.members->all), "}: name the same members everywhere"));
}

}  // namespace

BarrierTable::Names BarrierTable::NamesOf(std::set<std::string> all) {
  auto names = std::make_shared<NameSet>();
  for (const std::string& name : all) {
    names->bytes += kNameBytes + static_cast<int64_t>(name.size());
  }
  names->all = std::move(all);
  return names;
}

BarrierTable::Result BarrierTable::Arrive(Arrival arrival) {
  Result result;
  Settle(arrival);
  arrival.unsettled.clear();  // not kept with what waits
  if (const auto kept = answers_.find(arrival.key); kept != answers_.end()) {
    const auto answer = kept->second.find(arrival.number);
    if (answer != kept->second.end()) {
      result.outcomes.push_back({arrival.ticket, answer->second.status,
                                 ReplyOf(answer->second.gathered)});
      return result;
    }
  }
  if (!heard_[arrival.key].Expects(arrival.number)) {
    result.outcomes.push_back(
        {arrival.ticket,
         absl::CancelledError(absl::StrCat(
             "Barrier ", arrival.tag, ": arrival ", arrival.number, " of ",
             arrival.name, " is over; this is a late copy of it")),
         {}});
    return result;
  }

  const Arrival* before = nullptr;
  const auto barrier = barriers_.find(arrival.tag);
  if (barrier != barriers_.end()) {
    const Arrival& there = barrier->second.waiting.begin()->second;
    if (there.members != arrival.members &&
        there.members->all != arrival.members->all) {
      result.outcomes.push_back(
          {arrival.ticket, Disagreement(there, arrival), {}});
      return result;
    }
    arrival.members = there.members;
    const auto same = barrier->second.waiting.find(arrival.name);
    if (same != barrier->second.waiting.end()) before = &same->second;
  }
  if (absl::Status room = CheckRoom(arrival, before); !room.ok()) {
    result.outcomes.push_back({arrival.ticket, std::move(room), {}});
    return result;
  }
  result.is_first = barrier == barriers_.end();
  if (before != nullptr) {
    Exit(*before);
    if (before->ticket != kNobody) {
      // The member asks again, so it has given up the earlier call.
      result.outcomes.push_back(
          {before->ticket, absl::CancelledError("repeated by its caller"), {}});
    }
  }
  Enter(arrival);
  const std::string tag = arrival.tag;
  const std::string name = arrival.name;
  Barrier& here = barriers_[tag];
  if (before == nullptr) here.not_yet = nullptr;
  here.waiting.insert_or_assign(name, std::move(arrival));
  OpenIfComplete(tag, result);
  return result;
}

Instant BarrierTable::DueOf(const Arrival& arrival) {
  return arrival.ticket == kNobody
             ? arrival.stands_until
             : std::min(arrival.answer_by, arrival.stands_until);
}

void BarrierTable::Enter(const Arrival& arrival) {
  Charge(arrival.key, 1, BytesOf(arrival));
  dues_.emplace(DueOf(arrival), Place(arrival.tag, arrival.name));
  if (arrival.ticket != kNobody) {
    tickets_[arrival.ticket] = {arrival.tag, arrival.name};
  }
  ++waiting_;
}

void BarrierTable::Exit(const Arrival& arrival) {
  Charge(arrival.key, -1, -BytesOf(arrival));
  dues_.erase({DueOf(arrival), Place(arrival.tag, arrival.name)});
  tickets_.erase(arrival.ticket);
  --waiting_;
}

void BarrierTable::Hang(Arrival& arrival) {
  Place place(arrival.tag, arrival.name);
  dues_.erase({DueOf(arrival), place});
  tickets_.erase(arrival.ticket);
  arrival.ticket = kNobody;
  dues_.emplace(DueOf(arrival), std::move(place));
}

void BarrierTable::Settle(const Arrival& arrival) {
  Heard& heard = heard_[arrival.key];
  heard.below = std::max(heard.below, arrival.settled_below);
  for (auto it = heard.open.begin(); it != heard.open.end();) {
    const bool is_over =
        *it < heard.below ||
        (*it <= arrival.arrivals && arrival.unsettled.count(*it) == 0);
    it = is_over ? heard.open.erase(it) : std::next(it);
  }
  if (arrival.arrivals > heard.last) {
    heard.open.insert(arrival.unsettled.upper_bound(heard.last),
                      arrival.unsettled.upper_bound(arrival.arrivals));
    heard.last = arrival.arrivals;
  }

  const auto found = answers_.find(arrival.key);
  if (found == answers_.end()) return;
  std::map<uint64_t, Answer>& answers = found->second;
  for (auto it = answers.begin(); it != answers.end();) {
    if (heard.Expects(it->first)) {
      ++it;
      continue;
    }
    Charge(arrival.key, -1, -BytesOf(it->second));
    it = answers.erase(it);
  }
  if (answers.empty()) answers_.erase(found);
}

absl::Status BarrierTable::CheckRoom(const Arrival& arrival,
                                     const Arrival* before) const {
  const int64_t more =
      BytesOf(arrival) - (before == nullptr ? 0 : BytesOf(*before));
  if (before != nullptr && more <= 0) return absl::OkStatus();
  const auto found = loads_.find(arrival.key);
  const Load load = found == loads_.end() ? Load() : found->second;
  const int64_t arrivals = load.arrivals + (before == nullptr ? 1 : 0);
  if (arrivals <= limits_.arrivals && load.bytes + more <= limits_.bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "Barrier ", arrival.tag, ": ", arrival.name, " is at ", load.arrivals,
      " barriers already, of ", load.bytes,
      " bytes, that have not opened or whose opening it has not confirmed; it "
      "may be at ",
      limits_.arrivals, ", of ", limits_.bytes, " bytes: wait for some first"));
}

void BarrierTable::OpenIfComplete(const std::string& tag, Result& result) {
  const auto found = barriers_.find(tag);
  const Barrier& barrier = found->second;
  // Each is among the members, who are the same for all.
  if (barrier.waiting.size() < barrier.members().all.size()) return;
  const Gathered gathered = Gather(barrier);
  const Answer open = {absl::OkStatus(), gathered};
  if (absl::Status room = CheckRoomFor(barrier, open); !room.ok()) {
    Fail(found, room, std::nullopt, result);
    return;
  }
  if (gathered != nullptr) {
    *result.released.mutable_brought() = {gathered->brought.begin(),
                                          gathered->brought.end()};
  }
  for (const auto& [name, arrival] : barrier.waiting) {
    Exit(arrival);
    Keep(arrival.key, arrival.number, open);
    auto* record = result.released.add_arrivals();
    *record->mutable_key() = ToWire(arrival.key);
    record->set_number(arrival.number);
    if (arrival.ticket == kNobody) continue;
    result.outcomes.push_back(
        {arrival.ticket, absl::OkStatus(), ReplyOf(gathered)});
  }
  barriers_.erase(found);
}

// A member that waits at many barriers brings little to each, and each may keep
// much for it: without confirmations that is many times what a barrier gathers.
absl::Status BarrierTable::CheckRoomFor(const Barrier& barrier,
                                        const Answer& open) const {
  for (const auto& [name, arrival] : barrier.waiting) {
    const int64_t owed = loads_.at(arrival.key).bytes - BytesOf(arrival);
    if (owed + BytesOf(open) <= limits_.bytes) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "Barrier ", arrival.tag, ": ", name, " is at barriers, of ", owed,
        " bytes, that have not opened or whose opening it has not confirmed; "
        "with the ",
        BytesOf(open), " that were brought here it would be at more than ",
        limits_.bytes));
  }
  return absl::OkStatus();
}

BarrierTable::Barriers::iterator BarrierTable::Fail(
    Barriers::iterator barrier, const absl::Status& why,
    std::optional<WorkerKey> gone, Result& result) {
  for (const auto& [waiter, arrival] : barrier->second.waiting) {
    Exit(arrival);
    if (arrival.key != gone) Keep(arrival.key, arrival.number, {why, {}});
    if (arrival.ticket == kNobody) continue;
    result.outcomes.push_back({arrival.ticket, why, {}});
  }
  return barriers_.erase(barrier);
}

void BarrierTable::Keep(WorkerKey key, uint64_t number, Answer answer) {
  const auto [place, is_new] = answers_[key].emplace(number, Answer());
  // A member may give one number to two arrivals, to its own confusion.
  if (!is_new) Charge(key, -1, -BytesOf(place->second));
  Charge(key, 1, BytesOf(answer));
  place->second = std::move(answer);
}

void BarrierTable::Charge(WorkerKey key, int64_t arrivals, int64_t bytes) {
  Load& load = loads_[key];
  load.arrivals += arrivals;
  load.bytes += bytes;
  if (load.arrivals == 0) loads_.erase(key);
}

int64_t BarrierTable::BytesOf(const Arrival& arrival) {
  return kArrivalBytes + static_cast<int64_t>(arrival.tag.size()) +
         static_cast<int64_t>(arrival.payload.size()) + arrival.members->bytes;
}

int64_t BarrierTable::BytesOf(const Answer& answer) {
  return kArrivalBytes + answer.status.message().size() +
         (answer.gathered == nullptr ? 0 : answer.gathered->bytes);
}

BarrierTable::Gathered BarrierTable::Gather(const Barrier& barrier) {
  std::vector<v1::Brought> all;
  for (const auto& [name, arrival] : barrier.waiting) {
    if (arrival.payload.empty()) continue;
    v1::Brought& brought = all.emplace_back();
    brought.set_name(name);
    brought.set_payload(arrival.payload);
  }
  return Gather(std::move(all));
}

BarrierTable::Gathered BarrierTable::Gather(std::vector<v1::Brought> brought) {
  if (brought.empty()) return nullptr;
  auto gathering = std::make_shared<Gathering>();
  for (const v1::Brought& one : brought) {
    gathering->bytes += kNameBytes + one.name().size() + one.payload().size();
  }
  gathering->brought = std::move(brought);
  return gathering;
}

v1::BarrierReply BarrierTable::ReplyOf(const Gathered& gathered) {
  v1::BarrierReply open;
  open.set_released(true);
  if (gathered != nullptr) {
    *open.mutable_brought() = {gathered->brought.begin(),
                               gathered->brought.end()};
  }
  return open;
}

BarrierTable::Result BarrierTable::Gone(const std::string& name, WorkerKey key,
                                        const std::string& reason) {
  Result result;
  heard_.erase(key);
  if (const auto found = answers_.find(key); found != answers_.end()) {
    for (const auto& [number, answer] : found->second) {
      Charge(key, -1, -BytesOf(answer));
    }
    answers_.erase(found);
  }
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    if (it->second.members().all.count(name) == 0) {
      ++it;
      continue;
    }
    const absl::Status status = absl::AbortedError(absl::StrCat(
        "Barrier ", it->first, ": ", name, " is gone (", reason, ")"));
    it = Fail(it, status, key, result);
  }
  return result;
}

const v1::BarrierReply& BarrierTable::NotYet(Barrier& barrier) {
  if (barrier.not_yet != nullptr) return *barrier.not_yet;
  auto reply = std::make_shared<v1::BarrierReply>();
  const std::set<std::string>& all = barrier.members().all;
  const size_t missing = all.size() - barrier.waiting.size();
  auto waiting = barrier.waiting.begin();
  for (const std::string& name : all) {  // both in order
    if (waiting != barrier.waiting.end() && waiting->first == name) {
      ++waiting;
      continue;
    }
    reply->add_missing(name);
    const auto named = static_cast<size_t>(reply->missing_size());
    if (named == std::min(missing, kShown)) break;
  }
  reply->set_missing_count(static_cast<uint32_t>(missing));
  barrier.not_yet = std::move(reply);
  return *barrier.not_yet;
}

BarrierTable::Result BarrierTable::Expire(Instant now) {
  Result result;
  while (!dues_.empty() && dues_.begin()->first <= now) {
    const Place place = dues_.begin()->second;
    const auto barrier = barriers_.find(place.first);
    std::map<std::string, Arrival>& waiting = barrier->second.waiting;
    const auto member = waiting.find(place.second);
    Arrival& arrival = member->second;
    if (arrival.ticket != kNobody) {
      result.outcomes.push_back(
          {arrival.ticket, absl::OkStatus(), NotYet(barrier->second)});
      Hang(arrival);
    }
    if (arrival.stands_until > now) continue;
    Exit(arrival);
    heard_[arrival.key].open.erase(arrival.number);
    waiting.erase(member);
    barrier->second.not_yet = nullptr;
    if (waiting.empty()) barriers_.erase(barrier);
  }
  return result;
}

Instant BarrierTable::NextExpiry() const {
  return dues_.empty() ? Instant::Infinite() : dues_.begin()->first;
}

void BarrierTable::CallerGone(Ticket ticket) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  const Place place = found->second;
  Hang(barriers_.at(place.first).waiting.at(place.second));
}

void BarrierTable::Replay(const v1::LogRecord::Released& released) {
  const Gathered gathered = Gather(std::vector<v1::Brought>(
      released.brought().begin(), released.brought().end()));
  for (const auto& arrival : released.arrivals()) {
    Keep(FromWire(arrival.key()), arrival.number(),
         {absl::OkStatus(), gathered});
  }
}

std::vector<v1::LogRecord::Released> BarrierTable::Snapshot() const {
  // Arrivals that share what was gathered go into one record, so that it is
  // written once.
  std::vector<v1::LogRecord::Released> all;
  std::map<const void*, size_t> places;
  for (const auto& [key, answers] : answers_) {
    for (const auto& [number, answer] : answers) {
      if (!answer.status.ok()) continue;  // it fails again, or is met anew
      const Gathered& gathered = answer.gathered;
      const auto [place, is_new] = places.emplace(gathered.get(), all.size());
      if (is_new) {
        all.emplace_back();
        if (gathered != nullptr) {
          *all.back().mutable_brought() = {gathered->brought.begin(),
                                           gathered->brought.end()};
        }
      }
      auto* arrival = all[place->second].add_arrivals();
      *arrival->mutable_key() = ToWire(key);
      arrival->set_number(number);
    }
  }
  return all;
}

}  // namespace weft::rendezvous
