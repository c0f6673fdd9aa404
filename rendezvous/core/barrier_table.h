// BarrierTable: which members have arrived at which barrier, and which are
// missing. Pure.

#ifndef WEFT_RENDEZVOUS_CORE_BARRIER_TABLE_H_
#define WEFT_RENDEZVOUS_CORE_BARRIER_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
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

  // What one member may have here: arrivals that wait, and those that have met
  // and that it has not settled, with what was gathered there.
  struct Limits {
    int64_t arrivals = 1024;
    int64_t bytes = int64_t{64} << 20;
  };
  explicit BarrierTable(Limits limits) : limits_(limits) {}

  // The names that a barrier waits for. All arrivals at the barrier share one.
  struct NameSet {
    std::set<std::string> all;
    int64_t bytes = 0;  // that each of them is charged for
  };
  using Names = std::shared_ptr<const NameSet>;
  static Names NamesOf(std::set<std::string> all);

  struct Arrival {
    WorkerKey key;
    std::string name;
    std::string tag;
    Names members;        // `name` among them
    std::string payload;  // for all others there
    uint64_t number = 0;  // of this member's arrivals; grows
    // Answers that the member has had: to those below, and to those up to
    // `arrivals` that are not among the unsettled.
    uint64_t settled_below = 0;
    uint64_t arrivals = 0;
    std::set<uint64_t> unsettled;
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
    // To be persisted before the outcomes are sent; empty if none opened.
    v1::LogRecord::Released released;
    bool is_first = false;  // the arrival: nobody waits for these there before
  };

  // A repetition replaces the call it repeats. kCancelled: a late copy of an
  // arrival that the member has settled or given up. kFailedPrecondition: those
  // who are at this tag wait for other members. kResourceExhausted: the member
  // has as much here as it may.
  Result Arrive(Arrival arrival);

  // Fails every barrier that waits for `name` with kAborted, and forgets
  // `key`, which does not arrive again.
  Result Gone(const std::string& name, WorkerKey key,
              const std::string& reason);

  // Answers the calls and ends the arrivals whose time has come.
  Result Expire(Instant now);
  Instant NextExpiry() const;

  // The caller of `ticket` is no longer there; its arrival stands meanwhile.
  void CallerGone(Ticket ticket);

  void Replay(const v1::LogRecord::Released& released);
  std::vector<v1::LogRecord::Released> Snapshot() const;

  int64_t held() const { return waiting_; }

 private:
  struct Barrier {
    std::map<std::string, Arrival> waiting;  // by name; not empty
    // The reply to those who ask again; null: the barrier has changed since.
    std::shared_ptr<const v1::BarrierReply> not_yet;
    const NameSet& members() const { return *waiting.begin()->second.members; }
  };
  using Barriers = std::map<std::string, Barrier>;  // by tag
  // What was brought to a barrier that opened; null if nothing.
  struct Gathering {
    std::vector<v1::Brought> brought;
    int64_t bytes = 0;
  };
  using Gathered = std::shared_ptr<const Gathering>;
  struct Answer {  // that the member may not have had
    absl::Status status;
    Gathered gathered;  // if ok
  };
  // Tells which of a member's arrivals may still come: those above `last`, and
  // the open ones from `below` on. All others are late copies.
  struct Heard {
    uint64_t below = 0;
    uint64_t last = 0;
    std::set<uint64_t> open;  // at most as many as one request may name
    bool Expects(uint64_t number) const {
      return number >= below && (number > last || open.count(number) > 0);
    }
  };
  struct Load {  // of one member, as in Limits
    int64_t arrivals = 0;
    int64_t bytes = 0;
  };

  void Settle(const Arrival& arrival);
  // `before`: the arrival that it repeats, if any.
  absl::Status CheckRoom(const Arrival& arrival, const Arrival* before) const;
  void OpenIfComplete(const std::string& tag, Result& result);
  // What one of those there would have beyond its limit if it opened.
  absl::Status CheckRoomFor(const Barrier& barrier, const Answer& open) const;
  // Ends a barrier for all who wait there; returns the next. `gone` does not
  // ask again.
  Barriers::iterator Fail(Barriers::iterator barrier, const absl::Status& why,
                          std::optional<WorkerKey> gone, Result& result);
  // Keep the indexes: of an arrival that waits from now on, and of one that
  // waited until now.
  void Enter(const Arrival& arrival);
  void Exit(const Arrival& arrival);
  // Drops the call of `arrival`: nobody waits for its answer any more.
  void Hang(Arrival& arrival);
  static Instant DueOf(const Arrival& arrival);
  void Keep(WorkerKey key, uint64_t number, Answer answer);
  void Charge(WorkerKey key, int64_t arrivals, int64_t bytes);
  static const v1::BarrierReply& NotYet(Barrier& barrier);
  static int64_t BytesOf(const Arrival& arrival);
  static int64_t BytesOf(const Answer& answer);
  static Gathered Gather(const Barrier& barrier);
  static Gathered Gather(std::vector<v1::Brought> brought);
  static v1::BarrierReply ReplyOf(const Gathered& gathered);

  Limits limits_;
  Barriers barriers_;
  // The place of a member that waits: tag and name.
  using Place = std::pair<std::string, std::string>;
  std::set<std::pair<Instant, Place>> dues_;
  std::map<Ticket, Place> tickets_;
  int64_t waiting_ = 0;
  std::map<WorkerKey, std::map<uint64_t, Answer>> answers_;  // by arrival
  std::map<WorkerKey, Heard> heard_;
  std::map<WorkerKey, Load> loads_;  // none has no arrivals
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CORE_BARRIER_TABLE_H_
