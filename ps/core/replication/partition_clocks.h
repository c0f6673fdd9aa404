// PartitionClocks: the clocks of the workers in one copy of a partition, of a
// table whose staleness is bounded (clock_gate.h) and which has two replicas.
//
// Ticks, joins and leaves are entries of the partition's log, as pushes are and
// under the same numbers of their client. So both copies come to the same
// clocks, and one that is promoted goes on with them.
//
// A tick counts once all pushes of its client before it are applied: pushes may
// be applied in another order, and what is sent again after a death is. So does
// a leave. Where a join begins the primary says, and writes it into the entry:
// a backup may have heard of a death earlier or later, and would say something
// else.
//
// Deaths are not in the log: each copy drops clients that are closed where it
// hears of it. What differs between two copies then is only clocks of closed
// clients.
//
// Pure: no threads, clocks or I/O. Thread-safety: one thread at a time, under
// the partition's lock.

#ifndef WEFT_PS_CORE_PARTITION_CLOCKS_H_
#define WEFT_PS_CORE_PARTITION_CLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/ps/core/clock_gate.h"
#include "weft/ps/core/replication/replication.h"

namespace weft::ps {

class PartitionClocks {
 public:
  using Answer = ClockGate::Answer;
  using Holder = ClockGate::Holder;

  // The bytes of a holder's name.
  static constexpr size_t kMostName = 256;

  // What has not come to count yet: push `n` of its client.
  struct Waiting {
    uint64_t n = 0;
    int rank = 0;
    int64_t clock = 0;
    bool leaves = false;
  };
  // What travels with a copy of the rows.
  struct State {
    struct OfRank {
      int rank = 0;
      ClockGate::Clock clock;
      std::vector<Waiting> waiting;
    };
    std::vector<OfRank> ranks;  // ascending
    int64_t floor = 0;          // at which new clocks begin
  };
  // What is wrong with one that has come from another process; empty: nothing.
  static std::string FaultOf(const State& state);

  explicit PartitionClocks(int64_t staleness) : gate_(staleness) {}

  // --- At the primary, before an entry is appended. ---

  // Where the clock begins that a join at `at` gets: for the entry.
  Answer CheckJoin(int rank, const Holder& holder, int64_t at,
                   int64_t& begins) const {
    return gate_.CheckJoin(rank, holder, at, begins);
  }
  Answer CheckTick(int rank, ClientId client, int64_t clock) const;

  // --- Entries, in the order of the log; then Applied of their client. ---

  void Join(int rank, Holder holder, int64_t at);
  // Push `n` of `client` ends the step before `clock`.
  void Tick(int rank, ClientId client, int64_t clock, uint64_t n);
  void Leave(int rank, ClientId client, uint64_t n);
  // After each entry of `client`, of whatever kind: all of its pushes up to
  // `through` are applied.
  void Applied(ClientId client, uint64_t through);

  // --- Clients that are closed, heard of at this copy. ---

  template <typename IsClosed>
  void CloseIf(IsClosed is_closed) {
    gate_.CloseIf(is_closed);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      it = is_closed(it->first) ? waiting_.erase(it) : std::next(it);
    }
  }

  // --- Copies. ---

  State Save() const;
  // REQUIRES: FaultOf is empty.
  void Load(const State& state);

  // --- Pulls: ClockGate's. ---

  Answer CheckPull(int rank, ClientId client, int64_t clock) const {
    return gate_.CheckPull(rank, client, clock);
  }
  bool MayRead(int64_t clock) const {
    return gate_.MayRead(gate_.NeededFor(clock));
  }
  const ClockGate& gate() const { return gate_; }

  // For explorations: equal texts, equal states.
  std::string Snapshot() const;

 private:
  void Add(ClientId client, Waiting waiting);

  ClockGate gate_;
  // By n; none is empty.
  std::map<ClientId, std::map<uint64_t, Waiting>> waiting_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_PARTITION_CLOCKS_H_
