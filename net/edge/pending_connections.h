// PendingConnections: the connections that have made no call yet, by address:
// which of them may begin its handshake, and which is closed to make room.
//
// A peer that has made no call may be anybody. So none is preferred to
// others: places for handshakes go to the address that has the fewest, of its
// connections to the newest (under a flood the oldest wait for nothing); an
// address leaves a quarter of the places to others; and what makes room is the
// oldest of the address that has the most. A handshake under way makes room
// only once it has had a fifth of the time-out, which a good one does not take.

#ifndef WEFT_NET_EDGE_PENDING_CONNECTIONS_H_
#define WEFT_NET_EDGE_PENDING_CONNECTIONS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"

namespace weft::net {

// Thread-safety: one thread at a time.
class PendingConnections {
 public:
  // Names a connection; rises in the order in which they came.
  using Id = int64_t;

  PendingConnections(int max_handshakes, absl::Duration handshake_timeout);

  // REQUIRES: `id` is larger than any before, `now` no earlier.
  void Add(Id id, const std::string& address, Instant now);  // silent
  // It has said a part of how it must begin, or all of it.
  void BecomePartial(Id id);
  void BecomeReady(Id id);
  void BeginHandshake(Id id, Instant now);  // was ready
  void Remove(Id id);                       // nothing, if it is not here

  // No handshake of `address` begins before `until`.
  void HoldBack(const std::string& address, Instant until);
  bool IsHoldingBack(Instant now) const;  // any

  bool any_ready() const { return ready_ > 0; }
  bool IsReady(Id id) const;
  const std::set<std::pair<Instant, Id>>& handshakes() const {
    return handshakes_;
  }

  // Which of those that are ready has a place for its handshake.
  std::optional<Id> NextReady(Instant now) const;
  // Which handshake makes room for one that is ready and has no place.
  std::optional<Id> HandshakeToCut(Instant now) const;
  // Which makes room for a newcomer from `address`: of that address, or of any
  // but those with fewer.
  std::optional<Id> ToEvictAt(const std::string& address, Instant now) const;
  std::optional<Id> ToEvictFor(const std::string& address, Instant now) const;
  std::optional<Id> ToEvict(Instant now) const;  // of any

  // Which has waited, for its words or its turn, for as long as it may.
  std::optional<Id> Expired(Instant now) const;
  Instant next_expiry() const;  // infinite if none waits
  // Forgets the handshakes that are as old as they may be: gRPC has ended them,
  // or they were done.
  void Settle(Instant now);

 private:
  enum class State { kSilent, kPartial, kReady, kHandshake };
  struct Connection {
    std::string address;
    State state;
    Instant since;  // it came, or its handshake began
  };
  struct Crowd {
    std::set<Id> silent;
    std::set<Id> partial;
    std::set<Id> ready;
    std::set<std::pair<Instant, Id>> handshakes;
    int64_t last_turn = 0;
    size_t size() const {
      return silent.size() + partial.size() + ready.size() + handshakes.size();
    }
  };
  using Crowds = std::map<std::string, Crowd>;

  bool MayBeCut(const Crowd& crowd, Instant now) const;
  std::optional<Id> VictimOf(const Crowd& crowd, Instant now) const;
  bool IsHeldBack(const std::string& address, Instant now) const;
  const Crowd* FewestHandshakes(Instant now) const;
  const Crowd* MostHandshakes() const;
  void Detach(Id id, const Connection& connection);

  const size_t max_handshakes_;
  const size_t max_at_one_address_;
  const absl::Duration timeout_;
  const absl::Duration fair_time_;  // that each handshake has

  std::map<Id, Connection> connections_;
  Crowds crowds_;                             // those with any
  std::map<std::string, Instant> held_back_;  // until when
  std::set<Id> waiting_;  // all but handshakes, the oldest first
  std::set<std::pair<Instant, Id>> handshakes_;
  int64_t ready_ = 0;
  int64_t turns_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_PENDING_CONNECTIONS_H_
