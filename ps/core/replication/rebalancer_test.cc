#include "weft/ps/core/replication/rebalancer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/replication/load_meter.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/sim/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using State = PartitionMap::State;
using Kind = MapChange::Kind;
using Entry = PartitionMap::Entry;
using EventKind = Rebalancer::Event::Kind;

WorkerKey KeyOf(int id, uint64_t epoch = 1) {
  return {static_cast<uint32_t>(id), epoch};
}

PartitionMap MapOf(int entries, int servers, int hosts = 100) {
  std::vector<PartitionMap::Server> all;
  for (int i = 0; i < servers; ++i) {
    all.push_back({KeyOf(i), static_cast<uint32_t>(i % hosts), {}});
  }
  return *PartitionMap::Assign(entries, all, 2);
}

Instant At(double seconds) {
  return Instant::FromNanoseconds(static_cast<int64_t>(seconds * 1e9));
}

// In [0, 1).
double Uniform(sim::Random& random) {
  return static_cast<double>(random.Next() >> 11) * 0x1p-53;
}

// Each entry has the load of its place among the others, by rank ^ -skew, and
// as a backup a part of it.
std::vector<EntryLoad> SkewedLoads(int entries, double skew, double of_backup,
                                   sim::Random& random) {
  std::vector<EntryLoad> loads(entries);
  for (int i = 0; i < entries; ++i) {
    loads[i].primary = std::pow(i + 1, -skew);
    loads[i].backup = of_backup * loads[i].primary;
  }
  for (int i = entries - 1; i > 0; --i) {
    std::swap(loads[i], loads[random.Below(i + 1)]);
  }
  return loads;
}

// Makes what is under way, as servers would, without faults.
void EndMoves(PartitionMap& map) {
  for (int i = 0; i < map.entries(); ++i) {
    const Entry& entry = map.entry(i);
    for (const Kind kind :
         {Kind::kMarkInSync, Kind::kTakeNext, Kind::kHandOver}) {
      map.Apply({kind, i, entry.changed}).IgnoreError();
    }
  }
}

double SkewOf(const Rebalancer& rebalancer, const PartitionMap& map,
              const std::vector<EntryLoad>& loads) {
  return Rebalancer::Plan::Skew(rebalancer.PlanOf(map, loads).before);
}

// Looks each second until nothing has begun for so long.
struct Looks {
  Rebalancer& rebalancer;
  PartitionMap& map;
  double now = 0;
  int begun = 0;
  std::map<int, int> of_entry = {};

  void Look(const std::vector<EntryLoad>& loads, bool may_begin = true) {
    now += 1;
    for (const MapChange& change :
         rebalancer.OnLook(map, loads, At(now), may_begin)) {
      EXPECT_THAT(map.Apply(change), IsOk());
    }
    for (const auto& event : rebalancer.TakeEvents()) {
      if (event.kind != EventKind::kBegun) continue;
      ++begun;
      ++of_entry[event.move.entry];
    }
  }
  void Settle(const std::vector<EntryLoad>& loads, int seconds = 2000) {
    for (int i = 0; i < seconds; ++i) {
      Look(loads);
      EndMoves(map);
    }
  }
};

TEST(Rebalancer, MovesTheRoleWhereThatIsEnough) {
  PartitionMap map = MapOf(4, 2);
  // Server 0 is the primary of 0 and 2, with all of the load.
  const std::vector<EntryLoad> loads = {{1, 0.1}, {0, 0}, {1, 0.1}, {0, 0}};
  Rebalancer rebalancer;
  const auto plan = rebalancer.PlanOf(map, loads);
  EXPECT_THAT(plan.held, IsEmpty());
  ASSERT_THAT(plan.moves, SizeIs(1));
  EXPECT_EQ(plan.moves[0].relieved, KeyOf(0));
  EXPECT_EQ(plan.moves[0].primary, KeyOf(1));
  EXPECT_EQ(plan.moves[0].backup, KeyOf(0));
  EXPECT_NEAR(plan.moves[0].load, 0.9, 1e-9);
  EXPECT_NEAR(Rebalancer::Plan::Skew(plan.before), 2 / 1.1, 1e-9);
  EXPECT_NEAR(Rebalancer::Plan::Skew(plan.after), 1, 1e-9);
  Looks run{rebalancer, map};
  run.Settle(loads, 60);
  EXPECT_NEAR(SkewOf(rebalancer, map, loads), 1, 1e-9);
  EXPECT_EQ(run.begun, 1);
}

TEST(Rebalancer, WaitsUntilItHasLastedAndServersHaveSettled) {
  PartitionMap map = MapOf(16, 3);
  sim::Random random(1);
  const std::vector<EntryLoad> even(16, EntryLoad{1, 0});
  const std::vector<EntryLoad> skewed = SkewedLoads(16, 1, 0.2, random);
  RebalanceOptions options;
  Rebalancer rebalancer(options);
  Looks run{rebalancer, map};
  const auto look = [&](const std::vector<EntryLoad>& loads, double seconds) {
    for (int i = 0; i < seconds; ++i) run.Look(loads);
  };
  look(skewed, absl::ToDoubleSeconds(options.settle));
  EXPECT_EQ(run.begun, 0);
  // 6, 5 and 5 of 16 entries are 1.125 of the mean.
  std::vector<EntryLoad> level = even;
  level[0] = level[3] = {0.5, 0};
  look(level, 5);
  look(skewed, absl::ToDoubleSeconds(options.lasts));
  EXPECT_EQ(run.begun, 0);
  look(skewed, 1);
  EXPECT_GT(run.begun, 0);
}

TEST(Rebalancer, LeavesAloneWhatIsNearTheMeanOrIdle) {
  PartitionMap map = MapOf(64, 3);
  Rebalancer rebalancer;
  Looks run{rebalancer, map};
  run.Settle(std::vector<EntryLoad>(64, EntryLoad{1, 0.3}), 200);
  EXPECT_EQ(run.begun, 0);
  std::vector<EntryLoad> idle(64);
  idle[0].primary = 0.001;
  run.Settle(idle, 200);
  EXPECT_EQ(run.begun, 0);
  EXPECT_THAT(rebalancer.PlanOf(map, idle).held, HasSubstr("no load"));
  EXPECT_THAT(rebalancer.PlanOf(map, {}).held, HasSubstr("no load"));
}

// One that has as much as a server cannot be cut: it gets a server of its own.
TEST(Rebalancer, HotEntryIsLeftAloneOnItsServer) {
  PartitionMap map = MapOf(16, 3);
  std::vector<EntryLoad> loads(16, EntryLoad{0.05, 0});
  loads[4].primary = 3;
  Rebalancer rebalancer;
  Looks run{rebalancer, map};
  run.Settle(loads);
  const WorkerKey hot = map.entry(4).primary;
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(map.entry(i).primary == hot, i == 4) << i;
  }
  const int begun = run.begun;
  run.Settle(loads);
  EXPECT_EQ(run.begun, begun);
}

TEST(Rebalancer, SaysWhatItWaitsFor) {
  sim::Random random(3);
  const std::vector<EntryLoad> loads = SkewedLoads(16, 1, 0.2, random);
  Rebalancer rebalancer;
  const PartitionMap whole = MapOf(16, 3);
  EXPECT_THAT(rebalancer.PlanOf(whole, loads).held, IsEmpty());
  PartitionMap single = whole;
  single.FailServer(KeyOf(1), State::kExited);
  EXPECT_THAT(rebalancer.PlanOf(single, loads).held, HasSubstr("one copy"));
  EXPECT_THAT(rebalancer.PlanOf(single, loads).moves, IsEmpty());
  PartitionMap lost = single;
  lost.FailServer(KeyOf(2), State::kExited);
  EXPECT_THAT(rebalancer.PlanOf(lost, loads).held, HasSubstr("both copies"));
  PartitionMap silent = whole;
  silent.FailServer(KeyOf(1), State::kSilent);
  silent.AddBackups();
  EXPECT_THAT(rebalancer.PlanOf(silent, loads).held, Not(IsEmpty()));
  PartitionMap drained = MapOf(16, 4);
  MapChange drain;
  drain.kind = Kind::kDrain;
  drain.server = 1;
  ASSERT_THAT(drained.Apply(drain), IsOk());
  EXPECT_THAT(rebalancer.PlanOf(drained, loads).held, HasSubstr("drained"));
  ASSERT_TRUE(drained.AddMoves());
  EXPECT_THAT(rebalancer.PlanOf(drained, loads).held, HasSubstr("on the move"));
  for (int i = 0; i < 10; ++i) {
    EndMoves(drained);
    drained.AddMoves();
  }
  EXPECT_THAT(rebalancer.PlanOf(drained, loads).held, IsEmpty());
  const PartitionMap one =
      *PartitionMap::Assign(16, {{KeyOf(0), 0, {}}, {KeyOf(1), 1, {}}}, 1);
  EXPECT_THAT(rebalancer.PlanOf(one, loads).held, HasSubstr("--replicas"));
}

TEST(Rebalancer, GivesUpAMoveWhoseTargetGoesOrThatDoesNotComeToAnEnd) {
  PartitionMap map = MapOf(4, 3);
  std::vector<EntryLoad> loads(4, EntryLoad{0.1, 0});
  loads[0] = loads[3] = {1, 0};  // both are server 0's
  const auto begin = [&](Rebalancer& rebalancer) {
    const auto plan = rebalancer.Begin(map, loads, At(1));
    EXPECT_THAT(plan.moves, Not(IsEmpty()));
    return plan.moves[0];
  };
  const auto last = [](Rebalancer& rebalancer) {
    const auto events = rebalancer.TakeEvents();
    return events.empty() ? EventKind::kBegun : events.back().kind;
  };
  {
    Rebalancer rebalancer;
    const Rebalancer::Move move = begin(rebalancer);
    PartitionMap dead = map;
    dead.FailServer(move.primary, State::kExited);
    rebalancer.OnLook(dead, loads, At(2), false);
    EXPECT_EQ(rebalancer.moves_under_way(), 0);
    EXPECT_EQ(last(rebalancer), EventKind::kGivenUp);
  }
  {
    // The store takes none of its changes.
    Rebalancer rebalancer;
    begin(rebalancer);
    for (int i = 2; i <= 30; ++i) {
      EXPECT_THAT(rebalancer.OnLook(map, loads, At(i), false), Not(IsEmpty()));
    }
    rebalancer.OnLook(map, loads, At(40), false);
    EXPECT_EQ(rebalancer.moves_under_way(), 0);
  }
  {
    // The primary keeps its role each time.
    Rebalancer rebalancer;
    begin(rebalancer);
    PartitionMap kept = map;
    int i = 2;
    for (; rebalancer.moves_under_way() > 0 && i < 100; ++i) {
      for (const MapChange& change :
           rebalancer.OnLook(kept, loads, At(i), false)) {
        ASSERT_THAT(kept.Apply(change), IsOk());
      }
      for (int e = 0; e < kept.entries(); ++e) {
        for (const Kind kind : {Kind::kKeepRole, Kind::kDropNext}) {
          kept.Apply({kind, e, kept.entry(e).changed}).IgnoreError();
        }
      }
    }
    EXPECT_LT(i, 20);
    EXPECT_EQ(last(rebalancer), EventKind::kGivenUp);
  }
}

// Measured loads tremble like these.
TEST(Rebalancer, LoadsThatTrembleMoveNothingForLong) {
  sim::Random random(5);
  PartitionMap map = MapOf(64, 4);
  const std::vector<EntryLoad> loads = SkewedLoads(64, 0.8, 0.3, random);
  Rebalancer rebalancer;
  Looks run{rebalancer, map};
  const auto look = [&](int seconds) {
    const int before = run.begun;
    for (int i = 0; i < seconds; ++i) {
      std::vector<EntryLoad> noisy = loads;
      for (EntryLoad& load : noisy) {
        const double noise = 0.9 + 0.2 * Uniform(random);
        load.primary *= noise;
        load.backup *= noise;
      }
      run.Look(noisy);
      EndMoves(map);
    }
    return run.begun - before;
  };
  look(2000);
  EXPECT_LE(SkewOf(rebalancer, map, loads), 1.1);
  EXPECT_LE(look(2000), 4);
}

// --- Simulation --------------------------------------------------------------

struct Tally {
  int seeds = 0;
  int within = 0;  // no server has more than 1.1 of the mean at the end
  int divisible = 0;
  int moves = 0;
  int given_up = 0;
  int deaths = 0;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    servers_ = 3 + static_cast<int>(random_.Below(5));
    hosts_ =
        random_.Below(2) == 0 ? 100 : 2 + static_cast<int>(random_.Below(3));
    map_ = MapOf(16 << random_.Below(3), servers_, hosts_);
    Draw();
  }

  void Live(int seconds, bool has_faults) {
    for (int i = 0; i < seconds && !::testing::Test::HasFailure(); ++i) {
      now_ += 1;
      if (has_faults) Fault();
      Repair(has_faults ? 0.1 : 0);
      Look(has_faults);
    }
  }
  // All come back, and nothing is drained any more.
  void Calm() {
    for (int i = 0; i < servers_; ++i) {
      Restart(i);
      Drain(i, false);
    }
    for (int i = 0; i < 100; ++i) Repair(0);
  }
  // With these loads nothing moves any more.
  void ExpectRest(Tally& tally) {
    int before = -1;
    for (int i = 0; i < 20 && begun_ != before; ++i) {
      before = begun_;
      Live(200, false);
    }
    EXPECT_EQ(begun_, before);
    const auto plan = rebalancer_.PlanOf(map_, loads_);
    EXPECT_THAT(plan.held, IsEmpty()) << map_.Summary();
    EXPECT_THAT(plan.moves, IsEmpty());
    EXPECT_TRUE(map_.IsReplicated());
    const double skew = Rebalancer::Plan::Skew(plan.before);
    double largest = 0, all = 0;
    for (const EntryLoad& load : loads_) {
      largest = std::max(largest, load.primary);
      all += load.primary + load.backup;
    }
    const double mean = all / servers_;
    ++tally.seeds;
    tally.within += skew <= 1.1 ? 1 : 0;
    // An even division exists if no entry is too large and there are as many
    // hosts as servers: of three servers on two hosts, one has a copy of all.
    const bool is_divisible = largest <= mean / 10 && hosts_ >= servers_;
    tally.divisible += is_divisible ? 1 : 0;
    if (is_divisible) {
      EXPECT_LE(skew, 1.1) << map_.Summary() << " " << servers_ << " servers";
    }
    tally.moves += begun_;
    tally.given_up += given_up_;
    tally.deaths += deaths_;
  }

 private:
  static constexpr int kMost = 4;

  void Draw() {
    loads_ = SkewedLoads(map_.entries(), 1.2 * Uniform(random_),
                         0.6 * Uniform(random_), random_);
  }
  WorkerKey Key(int id) const { return KeyOf(id, epochs_.at(id)); }
  uint32_t Host(int id) const { return static_cast<uint32_t>(id % hosts_); }

  void Restart(int id) {
    if (map_.StateOf(Key(id)) == State::kExited) ++epochs_[id];
    map_.AddServer(Key(id), Host(id));
  }
  void Drain(int id, bool is_drained) {
    MapChange change;
    change.kind = is_drained ? Kind::kDrain : Kind::kUndrain;
    change.server = static_cast<uint32_t>(id);
    map_.Apply(change).IgnoreError();
  }

  void Fault() {
    const int id = static_cast<int>(random_.Below(servers_));
    switch (random_.Below(100)) {
      case 0:
        // A single death: each entry has two copies.
        if (!map_.IsReplicated()) break;
        if (map_.FailServer(Key(id), State::kExited)) ++deaths_;
        break;
      case 1:
        if (map_.IsReplicated()) map_.FailServer(Key(id), State::kSilent);
        break;
      case 2:
        Drain(id, true);
        break;
      case 3:
        Draw();
        break;
      case 4:
      case 5:
      case 6:
        Restart(id);
        break;
      case 7:
      case 8:
        Drain(id, false);
        break;
    }
    ASSERT_EQ(map_.lost(), 0);
  }

  // What servers, and whoever keeps the map, do of themselves.
  void Repair(double given_up) {
    map_.AddBackups();
    map_.AddMoves();
    for (int i = 0; i < map_.entries(); ++i) {
      const uint64_t changed = map_.entry(i).changed;
      const double chance = Uniform(random_);
      if (chance < given_up) {
        map_.Apply({Kind::kKeepRole, i, changed}).IgnoreError();
        map_.Apply({Kind::kDropNext, i, changed}).IgnoreError();
      } else if (chance < 0.6) {
        const Entry& entry = map_.entry(i);
        const bool is_live =
            map_.StateOf(entry.primary) == State::kLive &&
            map_.StateOf(IsNone(entry.next) ? entry.backup : entry.next) ==
                State::kLive;
        if (!is_live) continue;
        for (const Kind kind :
             {Kind::kMarkInSync, Kind::kTakeNext, Kind::kHandOver}) {
          map_.Apply({kind, i, changed}).IgnoreError();
        }
      }
    }
  }

  void Look(bool has_faults) {
    const bool was_replicated = map_.IsReplicated();
    std::vector<MapChange> changes =
        rebalancer_.OnLook(map_, loads_, At(now_), true);
    const bool is_late = has_faults && random_.Below(5) == 0;
    if (is_late) std::swap(late_, changes);
    for (const MapChange& change : changes) {
      if (map_.Apply(change).ok()) Check(change, is_late);
    }
    EXPECT_EQ(map_.IsReplicated(), was_replicated);
    EXPECT_LE(rebalancer_.moves_under_way(), kMost);
    for (const auto& event : rebalancer_.TakeEvents()) {
      if (event.kind == EventKind::kGivenUp) ++given_up_;
      if (event.kind != EventKind::kBegun) continue;
      ++begun_;
      // Not the same one again, at once.
      const auto before = moved_at_.find(event.move.entry);
      if (before != moved_at_.end()) {
        EXPECT_GE(now_ - before->second, 120);
      }
      moved_at_[event.move.entry] = now_;
      EXPECT_TRUE(map_.IsReplicated());
    }
  }

  void Check(const MapChange& change, bool is_late) {
    const Entry& entry = map_.entry(change.entry);
    EXPECT_TRUE(entry.in_sync);
    if (change.kind == Kind::kMoveRole) {
      EXPECT_TRUE(entry.is_handing_over);
      EXPECT_EQ(map_.StateOf(entry.backup), State::kLive);
      return;
    }
    ASSERT_EQ(change.kind, Kind::kMoveCopy);
    EXPECT_NE(entry.next, entry.primary);
    EXPECT_NE(entry.next, entry.backup);
    std::set<uint32_t> hosts;
    for (const PartitionMap::Server& server : map_.servers()) {
      if (server.state != State::kLive || server.is_drained) continue;
      hosts.insert(server.host);
    }
    // A server of another host may have come since a late one was wanted.
    EXPECT_TRUE(Host(entry.next.id) != Host(entry.primary.id) ||
                hosts.size() == 1 || is_late);
  }

  sim::Random random_;
  int servers_ = 0;
  int hosts_ = 0;
  std::map<int, uint64_t> epochs_ = [] {
    std::map<int, uint64_t> first;
    for (int i = 0; i < 16; ++i) first[i] = 1;
    return first;
  }();
  PartitionMap map_;
  std::vector<EntryLoad> loads_;
  Rebalancer rebalancer_;
  std::vector<MapChange> late_;
  double now_ = 0;
  int begun_ = 0;
  int given_up_ = 0;
  int deaths_ = 0;
  std::map<int, double> moved_at_;
};

TEST(RebalancerSimulation, ComesToRestAndKeepsTwoCopiesWhateverServersDo) {
  Tally tally;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    world.Live(500, true);
    world.Calm();
    world.ExpectRest(tally);
    if (HasFailure()) break;
  }
  std::printf(
      "%d seeds: %d at most 1.1 of the mean, %d divisible, %d moves, "
      "%d given up, %d deaths\n",
      tally.seeds, tally.within, tally.divisible, tally.moves, tally.given_up,
      tally.deaths);
  EXPECT_GT(tally.moves, 10'000);
  EXPECT_GT(tally.given_up, 100);
  EXPECT_GT(tally.deaths, 1000);
  EXPECT_GT(tally.divisible, 20);
}

}  // namespace
}  // namespace weft::ps
