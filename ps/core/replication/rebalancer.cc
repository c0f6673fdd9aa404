#include "weft/ps/core/replication/rebalancer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::ps {
namespace {

using State = PartitionMap::State;
using Entry = PartitionMap::Entry;

// How often a step is tried anew, such as one of which the primary kept its
// role.
constexpr int kMostTries = 5;

// Weight of a move that copies rows: of two moves that help as much, the one
// without a copy wins.
constexpr double kCostOfACopy = 0.75;

bool MayTake(const PartitionMap::Server& server) {
  return server.state == State::kLive && !server.is_drained;
}

std::vector<PartitionMap::Server> TakersOf(const PartitionMap& map) {
  std::vector<PartitionMap::Server> takers;
  for (const PartitionMap::Server& server : map.servers()) {
    if (MayTake(server)) takers.push_back(server);
  }
  return takers;
}

// Null: it is none of them.
const PartitionMap::Server* Find(
    const std::vector<PartitionMap::Server>& servers, WorkerKey key) {
  for (const PartitionMap::Server& server : servers) {
    if (server.key == key) return &server;
  }
  return nullptr;
}

// Two copies are on one host only for want of another.
bool FitHosts(const std::vector<PartitionMap::Server>& takers, uint32_t primary,
              uint32_t backup) {
  if (primary != backup) return true;
  return std::all_of(
      takers.begin(), takers.end(),
      [&](const PartitionMap::Server& s) { return s.host == primary; });
}

bool IsMoving(const Entry& entry) {
  return entry.is_handing_over || !IsNone(entry.next);
}

}  // namespace

// --- Plans -------------------------------------------------------------------

double Rebalancer::Plan::Skew(const std::map<WorkerKey, double>& loads) {
  double most = 0;
  double sum = 0;
  for (const auto& [server, load] : loads) {
    most = std::max(most, load);
    sum += load;
  }
  return sum <= 0 ? 1 : most * static_cast<double>(loads.size()) / sum;
}

class Rebalancer::Board {
 public:
  Board(const PartitionMap& map, const std::vector<EntryLoad>& loads,
        const Moves& under_way)
      : loads_(loads), servers_(TakersOf(map)) {
    loads_.resize(map.entries());
    for (int i = 0; i < servers(); ++i) index_[servers_[i].key] = i;
    load_.assign(servers_.size(), 0);
    pairs_.resize(map.entries());
    for (int i = 0; i < map.entries(); ++i) {
      WorkerKey primary = map.entry(i).primary;
      WorkerKey backup = map.entry(i).backup;
      const auto moving = under_way.find(i);
      if (moving != under_way.end()) {
        primary = moving->second.move.primary;
        backup = moving->second.move.backup;
      }
      pairs_[i] = {IndexOf(primary), IndexOf(backup)};
      Put(i, pairs_[i], 1);
    }
    for (const double load : load_) total_ += load;
  }

  int servers() const { return static_cast<int>(servers_.size()); }
  double total() const { return total_; }
  double mean() const { return total_ / static_cast<double>(servers()); }
  double load(int server) const { return load_[server]; }
  std::map<WorkerKey, double> Loads() const {
    std::map<WorkerKey, double> loads;
    for (int i = 0; i < servers(); ++i) loads[servers_[i].key] = load_[i];
    return loads;
  }
  // The servers, those with the most to do first.
  std::vector<int> Ordered() const {
    std::vector<int> order(servers());
    for (int i = 0; i < servers(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return std::pair(-load_[a], a) < std::pair(-load_[b], b);
    });
    return order;
  }

  // Makes the best move that relieves `server`. None helps by `least` seconds
  // of work.
  std::optional<Move> Relieve(int server, double least,
                              const std::set<int>& fixed) {
    Candidate best;
    for (int i = 0; i < static_cast<int>(pairs_.size()); ++i) {
      const Pair pair = pairs_[i];
      if (fixed.count(i) != 0 || pair.primary < 0 || pair.backup < 0) continue;
      if (pair.primary == server) {
        Consider(server, i, {pair.backup, server}, least, best);
      }
      if (pair.primary != server && pair.backup != server) continue;
      for (int other = 0; other < servers(); ++other) {
        if (other == pair.primary || other == pair.backup) continue;
        if (pair.backup == server) {
          Consider(server, i, {pair.primary, other}, least, best);
          continue;
        }
        Consider(server, i, {other, server}, least, best);
        Consider(server, i, {pair.backup, other}, least, best);
        Consider(server, i, {other, pair.backup}, least, best);
      }
    }
    if (best.entry < 0) return std::nullopt;
    return Make(best, server);
  }

 private:
  struct Pair {
    int primary = -1;
    int backup = -1;
  };
  struct Candidate {
    int entry = -1;
    Pair to;
    double gain = 0;
  };

  int IndexOf(WorkerKey key) const {
    const auto it = index_.find(key);
    return it == index_.end() ? -1 : it->second;
  }

  void Put(int entry, const Pair& pair, double sign) {
    if (pair.primary >= 0) load_[pair.primary] += sign * loads_[entry].primary;
    if (pair.backup >= 0) load_[pair.backup] += sign * loads_[entry].backup;
  }

  void Consider(int server, int entry, const Pair& to, double least,
                Candidate& best) {
    const Pair from = pairs_[entry];
    const bool is_role = to.primary == from.backup && to.backup == from.primary;
    // A change of roles changes no host.
    if (!is_role && !FitHosts(servers_, servers_[to.primary].host,
                              servers_[to.backup].host)) {
      return;
    }
    const int touched[] = {from.primary, from.backup, to.primary, to.backup};
    // Whoever gets more has less than `server` had.
    const double bound = load_[server] - least;
    double before[4];
    for (int i = 0; i < 4; ++i) before[i] = load_[touched[i]];
    Put(entry, from, -1);
    Put(entry, to, 1);
    double lowered = 0;  // of the sum of squares
    bool helps = load_[server] <= bound;
    for (int i = 0; i < 4; ++i) {
      const double after = load_[touched[i]];
      helps = helps && (after <= before[i] || after <= bound);
      if (std::find(touched, touched + i, touched[i]) != touched + i) continue;
      lowered += before[i] * before[i] - after * after;
    }
    Put(entry, to, -1);
    Put(entry, from, 1);
    const double gain = lowered * (is_role ? 1 : kCostOfACopy);
    if (!helps || lowered < least * least || gain <= best.gain) return;
    best = {entry, to, gain};
  }

  Move Make(const Candidate& candidate, int server) {
    const int i = candidate.entry;
    Move move;
    move.entry = i;
    move.primary_before = servers_[pairs_[i].primary].key;
    move.backup_before = servers_[pairs_[i].backup].key;
    move.primary = servers_[candidate.to.primary].key;
    move.backup = servers_[candidate.to.backup].key;
    move.relieved = servers_[server].key;
    const double before = load_[server];
    Put(i, pairs_[i], -1);
    pairs_[i] = candidate.to;
    Put(i, pairs_[i], 1);
    move.load = before - load_[server];
    return move;
  }

  std::vector<EntryLoad> loads_;
  std::vector<PartitionMap::Server> servers_;
  std::map<WorkerKey, int> index_;
  std::vector<double> load_;  // by server
  std::vector<Pair> pairs_;   // by entry
  double total_ = 0;
};

std::string Rebalancer::HeldBy(const PartitionMap& map) const {
  if (map.replicas() < 2) return "partitions have one copy: --replicas is 1";
  if (map.is_restoring()) return "a checkpoint is being restored";
  int lost = 0;
  int single = 0;
  int moving = 0;
  std::set<WorkerKey> used;
  for (int i = 0; i < map.entries(); ++i) {
    const Entry& entry = map.entry(i);
    lost += IsNone(entry.primary) ? 1 : 0;
    single += !IsNone(entry.primary) && !entry.in_sync ? 1 : 0;
    moving += IsMoving(entry) && under_way_.count(i) == 0 ? 1 : 0;
    used.insert(entry.primary);
    used.insert(entry.backup);
  }
  if (lost > 0) return absl::StrCat(lost, " entries have lost both copies");
  if (single > 0) return absl::StrCat(single, " entries have one copy in sync");
  if (moving > 0) return absl::StrCat(moving, " other entries are on the move");
  for (const PartitionMap::Server& server : map.servers()) {
    if (MayTake(server) || used.count(server.key) == 0) continue;
    return absl::StrCat("server ", server.key.ToString(),
                        server.is_drained ? " is being drained" : " is silent");
  }
  return "";
}

Rebalancer::Plan Rebalancer::Consider(const PartitionMap& map,
                                      const Board& board) const {
  Plan plan;
  plan.before = plan.after = board.Loads();
  plan.held = HeldBy(map);
  if (!plan.held.empty()) return plan;
  if (board.servers() < 2) {
    plan.held = "there is no other server";
  } else if (board.total() < options_.least_load) {
    plan.held = "there is next to no load";
  }
  return plan;
}

void Rebalancer::AddMoves(Board& board, const std::set<int>& resting,
                          Plan& plan) const {
  std::set<int> fixed = resting;
  for (const auto& [entry, one] : under_way_) fixed.insert(entry);
  const double least = options_.least_gain * board.mean();
  while (static_cast<int>(under_way_.size() + plan.moves.size()) <
         options_.most_moves) {
    std::optional<Move> move;
    for (const int server : board.Ordered()) {
      if (board.load(server) <= options_.aim * board.mean()) break;
      move = board.Relieve(server, least, fixed);
      if (move.has_value()) break;
    }
    if (!move.has_value()) break;
    fixed.insert(move->entry);
    plan.moves.push_back(*move);
  }
  plan.after = board.Loads();
}

Rebalancer::Plan Rebalancer::PlanOf(const PartitionMap& map,
                                    const std::vector<EntryLoad>& loads) const {
  Board board(map, loads, under_way_);
  Plan plan = Consider(map, board);
  if (plan.held.empty() && Plan::Skew(plan.before) > options_.most) {
    AddMoves(board, {}, plan);
  }
  return plan;
}

// --- Time --------------------------------------------------------------------

std::set<int> Rebalancer::Resting(Instant now) const {
  std::set<int> resting;
  for (const auto& [entry, at] : moved_at_) {
    if (now - at < options_.rest) resting.insert(entry);
  }
  return resting;
}

void Rebalancer::Start(const Plan& plan, Instant now) {
  for (const Move& move : plan.moves) {
    UnderWay one;
    one.move = move;
    one.progressed = now;
    under_way_[move.entry] = one;
    moved_at_[move.entry] = now;
    events_.push_back({Event::Kind::kBegun, move});
  }
}

Rebalancer::Plan Rebalancer::Begin(const PartitionMap& map,
                                   const std::vector<EntryLoad>& loads,
                                   Instant now) {
  Plan plan = PlanOf(map, loads);
  Start(plan, now);
  return plan;
}

bool Rebalancer::IsTime(const Plan& plan, const PartitionMap& map,
                        Instant now) {
  std::set<WorkerKey> takers;
  for (const PartitionMap::Server& taker : TakersOf(map)) {
    takers.insert(taker.key);
  }
  if (!has_looked_ || !plan.held.empty() || takers != takers_) {
    unsettled_at_ = now;
    over_since_.reset();
  }
  has_looked_ = true;
  takers_ = std::move(takers);
  const double skew = Plan::Skew(plan.before);
  if (skew <= options_.aim) over_since_.reset();
  if (!over_since_.has_value() && skew > options_.most) over_since_ = now;
  return plan.held.empty() && over_since_.has_value() &&
         now - *over_since_ >= options_.lasts &&
         now - unsettled_at_ >= options_.settle;
}

std::vector<MapChange> Rebalancer::OnLook(const PartitionMap& map,
                                          const std::vector<EntryLoad>& loads,
                                          Instant now, bool may_begin) {
  std::vector<MapChange> changes;
  for (auto it = under_way_.begin(); it != under_way_.end();) {
    it = StepOne(it, map, now, changes);
  }
  Board board(map, loads, under_way_);
  Plan plan = Consider(map, board);
  if (!IsTime(plan, map, now) || !may_begin) return changes;
  AddMoves(board, Resting(now), plan);
  Start(plan, now);
  for (const Move& move : plan.moves) {
    StepOne(under_way_.find(move.entry), map, now, changes);
  }
  return changes;
}

Rebalancer::Moves::iterator Rebalancer::StepOne(
    Moves::iterator it, const PartitionMap& map, Instant now,
    std::vector<MapChange>& changes) {
  std::optional<Event::Kind> ended;
  const std::optional<MapChange> change = Step(it->second, map, now, ended);
  if (change.has_value()) changes.push_back(*change);
  if (!ended.has_value()) return std::next(it);
  moved_at_[it->first] = now;
  events_.push_back({*ended, it->second.move});
  return under_way_.erase(it);
}

std::optional<MapChange> Rebalancer::Step(
    UnderWay& one, const PartitionMap& map, Instant now,
    std::optional<Event::Kind>& ended) const {
  const Move& move = one.move;
  const auto give_up = [&] {
    ended = Event::Kind::kGivenUp;
    return std::nullopt;
  };
  if (move.entry >= map.entries()) return give_up();
  const Entry& entry = map.entry(move.entry);
  const std::vector<PartitionMap::Server> takers = TakersOf(map);
  const PartitionMap::Server* const primary = Find(takers, move.primary);
  const PartitionMap::Server* const backup = Find(takers, move.backup);
  if (!entry.in_sync || map.is_restoring() || primary == nullptr ||
      backup == nullptr) {
    return give_up();
  }
  if (entry.changed != one.changed) one.progressed = now;
  if (IsMoving(entry)) {
    one.changed = entry.changed;
    const bool is_ours = IsNone(entry.next) || entry.next == move.primary ||
                         entry.next == move.backup;
    return is_ours ? std::nullopt : std::optional<MapChange>(give_up());
  }
  if (entry.primary == move.primary && entry.backup == move.backup) {
    ended = Event::Kind::kMade;
    return std::nullopt;
  }
  // Steps that are tried again have seen the entry change in between.
  if (entry.changed != one.changed && ++one.tries > kMostTries) {
    return give_up();
  }
  one.changed = entry.changed;
  if (now - one.progressed > options_.stuck) return give_up();
  const auto stays = [&](WorkerKey key) {
    return key == move.primary || key == move.backup;
  };
  MapChange change;
  change.entry = move.entry;
  change.changed = entry.changed;
  change.kind = MapChange::Kind::kMoveRole;
  if (stays(entry.primary) && !stays(entry.backup)) {
    // The servers' hosts may be others by now.
    if (!FitHosts(takers, primary->host, backup->host)) return give_up();
    change.kind = MapChange::Kind::kMoveCopy;
    change.server =
        (entry.primary == move.primary ? move.backup : move.primary).id;
  } else if (!stays(entry.backup)) {
    return give_up();  // others have moved it
  }
  return change;
}

}  // namespace weft::ps
