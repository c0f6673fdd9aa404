// HeldCalls: calls that wait for their answer, each for a topic and until a
// deadline.

#ifndef WEFT_RENDEZVOUS_CORE_HELD_CALLS_H_
#define WEFT_RENDEZVOUS_CORE_HELD_CALLS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "weft/base/clock.h"

namespace weft::rendezvous {

// Every operation costs the logarithm of the calls that are held, and what it
// returns. Thread-safety: one thread at a time. Copyable.
template <typename Call>
class HeldCalls {
 public:
  using Ticket = uint64_t;
  using Taken = std::vector<std::pair<Ticket, Call>>;  // by ticket

  // REQUIRES: `ticket` is not held.
  void Hold(Ticket ticket, std::string topic, Instant deadline, Call call) {
    by_topic_[topic].insert(ticket);
    by_deadline_.emplace(deadline, ticket);
    calls_.emplace(ticket, Held{std::move(topic), deadline, std::move(call)});
  }

  // Does nothing if the call is not held.
  void Drop(Ticket ticket) {
    if (const auto held = calls_.find(ticket); held != calls_.end()) Take(held);
  }

  // Takes out the calls whose deadline has come.
  Taken TakeExpired(Instant now) {
    std::set<Ticket> expired;
    for (auto it = by_deadline_.begin();
         it != by_deadline_.end() && it->first <= now; ++it) {
      expired.insert(it->second);
    }
    return TakeAll(expired);
  }

  // Takes out the calls of a topic for which `is_wanted(call)` is true.
  template <typename Predicate>
  Taken TakeIf(const std::string& topic, Predicate is_wanted) {
    const auto found = by_topic_.find(topic);
    if (found == by_topic_.end()) return {};
    std::set<Ticket> wanted;
    for (const Ticket ticket : found->second) {
      if (is_wanted(calls_.at(ticket).call)) wanted.insert(ticket);
    }
    return TakeAll(wanted);
  }
  Taken TakeFor(const std::string& topic) {
    return TakeIf(topic, [](const Call&) { return true; });
  }

  // Instant::Infinite() if none is held.
  Instant NextDeadline() const {
    return by_deadline_.empty() ? Instant::Infinite()
                                : by_deadline_.begin()->first;
  }
  int64_t size() const { return static_cast<int64_t>(calls_.size()); }

 private:
  struct Held {
    std::string topic;
    Instant deadline;
    Call call;
  };
  using Calls = std::map<Ticket, Held>;

  Taken TakeAll(const std::set<Ticket>& tickets) {
    Taken taken;
    taken.reserve(tickets.size());
    for (const Ticket ticket : tickets) {
      taken.emplace_back(ticket, Take(calls_.find(ticket)));
    }
    return taken;
  }
  Call Take(typename Calls::iterator held) {
    const auto topic = by_topic_.find(held->second.topic);
    topic->second.erase(held->first);
    if (topic->second.empty()) by_topic_.erase(topic);
    by_deadline_.erase({held->second.deadline, held->first});
    Call call = std::move(held->second.call);
    calls_.erase(held);
    return call;
  }

  Calls calls_;
  std::map<std::string, std::set<Ticket>> by_topic_;  // none is empty
  std::set<std::pair<Instant, Ticket>> by_deadline_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_HELD_CALLS_H_
