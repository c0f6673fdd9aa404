// BarrierTable: who has arrived where, and who waits for whom. Pure.

#ifndef WEFT_RENDEZVOUS_BARRIER_TABLE_H_
#define WEFT_RENDEZVOUS_BARRIER_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "weft/base/clock.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/worker_key.h"

namespace weft::rendezvous {

// Thread-safety: one thread at a time.
class BarrierTable {
 public:
  using Ticket = uint64_t;  // not 0

  struct Arrival {
    WorkerKey key;
    std::string name;
    std::string tag;
    std::set<std::string> members;
    std::string payload;         // for all others there
    uint64_t number = 0;         // of this member's arrivals; grows
    uint64_t settled_below = 0;  // answers that the member has had
    Ticket ticket = 0;
    Instant answer_by;  // the call, with "not yet"
    Instant stands_until;
  };
  struct Outcome {
    Ticket ticket;
    absl::Status status;
    v1::BarrierReply reply;  // if ok
  };
  struct Result {
    std::vector<Outcome> outcomes;
    // To be remembered before the outcomes are told; empty if none opened.
    v1::LogRecord::Released released;
  };

  // A repetition replaces the call it repeats. kFailedPrecondition: those who
  // are at this tag wait for other members.
  Result Arrive(Arrival arrival);

  // Fails every barrier that waits for `name` with kAborted, and forgets
  // the arrivals of `key`.
  Result Gone(const std::string& name, WorkerKey key,
              const std::string& reason);

  // Answers the calls and ends the arrivals whose time has come.
  Result Expire(Instant now);
  Instant NextExpiry() const;

  // The caller of `ticket` is no longer there; its arrival stands meanwhile.
  void HangUp(Ticket ticket);

  void Replay(const v1::LogRecord::Released& released);
  std::vector<v1::LogRecord::Released> Snapshot() const;

  int held() const;

 private:
  using Barrier = std::map<std::string, Arrival>;  // who waits, by name
  // What was brought to a barrier that opened; null if nothing.
  using Gathered = std::shared_ptr<const std::vector<v1::Brought>>;

  void OpenIfComplete(const std::string& tag, Result& result);
  static v1::BarrierReply NotYet(const Barrier& barrier);
  static Gathered Gather(const Barrier& barrier);
  static v1::BarrierReply Open(const Gathered& gathered);

  std::map<std::string, Barrier> barriers_;  // by tag; none is empty
  // Openings of which a member may not have heard, by arrival.
  std::map<WorkerKey, std::map<uint64_t, Gathered>> released_;
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_BARRIER_TABLE_H_
