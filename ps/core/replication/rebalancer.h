// Rebalancer: which partitions of the tables move so that no server has much
// more to do than another.
//
// It looks at the map and at the measured load of each entry, and answers with
// changes of the map (kMoveCopy, kMoveRole). A move ends with another primary,
// another backup or both; it takes up to three changes, each of which leaves
// the entry with two copies in sync (partition_map.h). A role costs nothing to
// move, a copy its bytes.
//
// By a Plan: from the server with the most to do, the move that lowers the sum
// of the squares of all servers' loads the most; and so on, until no server has
// more than `aim` times the mean, or no move helps, or `most_moves` are under
// way. Each move lowers that sum by a least amount, so with loads that do not
// change they come to an end, and none is taken back. Then no server has more
// than `most` times the mean, if each is on a host of its own and no entry has
// more than a tenth of the mean: one that has cannot be cut.
//
// What keeps it from moving to and fro: nothing begins before a server has had
// more than `most` times the mean for `lasts`; before `settle` has passed since
// servers came, went or were filled; and no entry moves again within `rest`.
// Nothing begins while an entry lacks a copy, a server is silent or is being
// drained, somebody else's move is under way, or a checkpoint is restored.
//
// Two copies are put on one host only where no server is on another host.
//
// Source: greedy local search for makespan; R. Graham, "Bounds on
// multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969. A look costs
// O(entries * servers) for each move.
//
// Pure: the caller tells the time. Thread-safety: one thread at a time.

#ifndef WEFT_PS_CORE_REBALANCER_H_
#define WEFT_PS_CORE_REBALANCER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/load_meter.h"
#include "weft/ps/core/replication/partition_map.h"

namespace weft::ps {

// Whether servers even out what they have to do by themselves; kDryRun: they
// say what they would move.
enum class RebalanceMode { kOff, kOn, kDryRun };

struct RebalanceOptions {
  double most = 1.1;         // of the mean: more than that begins moves...
  double aim = 1.05;         // ... until none has more than this
  double least_gain = 0.02;  // of the mean, by which a move must help
  // Seconds of work in a second, at all servers together: less is not worth a
  // move, and cannot be measured well.
  double least_load = 0.002;
  int most_moves = 4;  // under way
  absl::Duration lasts = absl::Seconds(5);
  absl::Duration settle = absl::Seconds(30);
  absl::Duration rest = absl::Seconds(120);
  // A move of which no step is made for so long is given up. A copy that is
  // being filled may take longer.
  absl::Duration stuck = absl::Seconds(30);
};

class Rebalancer {
 public:
  explicit Rebalancer(RebalanceOptions options = {}) : options_(options) {}

  struct Move {
    int entry = 0;
    WorkerKey primary_before;
    WorkerKey backup_before;
    WorkerKey primary;
    WorkerKey backup;
    WorkerKey relieved;  // the server that had the most to do
    double load = 0;     // that it gets rid of, seconds of work in a second
  };
  struct Plan {
    std::vector<Move> moves;  // one after another
    // The load of each server that may be given more: `before`, once the moves
    // that are under way are made; `after`, once those of this plan are made as
    // well.
    std::map<WorkerKey, double> before;
    std::map<WorkerKey, double> after;
    // Why nothing moves now, whatever the loads: "2 entries have one copy". It
    // is empty if nothing stands against it.
    std::string held;

    // The most that a server has to do, by the mean; 1 if there is no load.
    static double Skew(const std::map<WorkerKey, double>& loads);
  };

  // What would move now, were nothing to be waited for. `loads`: by entry.
  Plan PlanOf(const PartitionMap& map,
              const std::vector<EntryLoad>& loads) const;

  // To be called about each second, with maps that grow newer: what is to be
  // proposed for the map. It goes on with the moves that are under way and, if
  // `may_begin`, begins others. What it proposes may come too late: then it is
  // proposed again, or the move is given up.
  std::vector<MapChange> OnLook(const PartitionMap& map,
                                const std::vector<EntryLoad>& loads,
                                Instant now, bool may_begin);

  // Somebody asks for it: begins what PlanOf says, without waiting. OnLook goes
  // on with it.
  Plan Begin(const PartitionMap& map, const std::vector<EntryLoad>& loads,
             Instant now);

  // Begun or ended since the last call, for people.
  struct Event {
    enum class Kind { kBegun, kMade, kGivenUp };
    Kind kind = Kind::kBegun;
    Move move;
  };
  std::vector<Event> TakeEvents() { return std::exchange(events_, {}); }

  int moves_under_way() const { return static_cast<int>(under_way_.size()); }

 private:
  class Board;  // who has what, and how much that is, while a plan is made
  struct UnderWay {
    Move move;
    uint64_t changed = 0;  // of the entry, as it was seen last
    Instant progressed;
    int tries = 0;
  };
  using Moves = std::map<int, UnderWay>;  // by entry

  std::string HeldBy(const PartitionMap& map) const;
  // A plan without moves.
  Plan Consider(const PartitionMap& map, const Board& board) const;
  void AddMoves(Board& board, const std::set<int>& resting, Plan& plan) const;
  void Start(const Plan& plan, Instant now);
  // The next change of a move; none: it goes on by itself. `ended`: it is made,
  // or given up.
  std::optional<MapChange> Step(UnderWay& one, const PartitionMap& map,
                                Instant now,
                                std::optional<Event::Kind>& ended) const;
  // Adds it to `changes`, and drops a move that has ended; what follows it.
  Moves::iterator StepOne(Moves::iterator it, const PartitionMap& map,
                          Instant now, std::vector<MapChange>& changes);
  // Whether the imbalance has lasted, and nothing is to be waited for.
  bool IsTime(const Plan& plan, const PartitionMap& map, Instant now);
  std::set<int> Resting(Instant now) const;

  const RebalanceOptions options_;
  Moves under_way_;
  std::map<int, Instant> moved_at_;  // by entry: its last move
  std::vector<Event> events_;
  // Results of the last look.
  std::set<WorkerKey> takers_;
  Instant unsettled_at_;
  bool has_looked_ = false;
  std::optional<Instant> over_since_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_REBALANCER_H_
