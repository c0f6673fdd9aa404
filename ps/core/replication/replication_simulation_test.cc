// A job of servers, clients and a coordinator that keeps the map, under a
// seeded network: loss, duplication, delay, reordering, cut links, clocks of
// different speed, deaths, each after the last one was repaired, and restarts
// as new incarnations.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replication_client_node.h"
#include "weft/ps/core/replication/replication_nodes.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/random.h"
#include "weft/sim/sim_network.h"
#include "weft/sim/simulator.h"

namespace weft::ps::simulated {
namespace {

using sim::Fault;

constexpr absl::Duration kTrouble = absl::Seconds(3);
constexpr absl::Duration kPeace = absl::Seconds(20);

class Simulation {
 public:
  Simulation(uint64_t seed, sim::FaultPlan& faults, bool any_deaths = false)
      : world_(seed, faults) {
    world_.job = SimulatedJob::Of(world_.simulator.random(), any_deaths);
    std::vector<PartitionMap::Server> servers;
    for (int i = 0; i < world_.job.servers; ++i) {
      servers.push_back({{static_cast<uint32_t>(i + 1), 1},
                         static_cast<uint32_t>(i),
                         PartitionMap::State::kLive,
                         /*is_drained=*/false,
                         world_.job.level == Durability::kD3});
    }
    const PartitionMap map = *PartitionMap::Assign(kPartitions, servers, 2);
    coordinator_ = std::make_unique<Coordinator>(world_, map);
    world_.network.AddNode("map", *coordinator_);
    for (int i = 0; i < world_.job.servers; ++i) {
      Add(absl::StrCat("ps", i), i, map, servers_);
    }
    for (int i = 0; i < world_.job.clients; ++i) {
      Add(absl::StrCat("c", i), i, map, clients_);
    }
  }

  // What is wrong, if anything is.
  std::string Run() {
    StartTrouble();
    sim::Simulator& simulator = world_.simulator;
    const Instant peace = simulator.Now() + kTrouble;
    while (simulator.Now() < peace && world_.broken.empty()) {
      simulator.RunUntil(simulator.Now() + absl::Milliseconds(3));
      CheckAnswering();
    }
    world_.network.HealAll();
    const Instant end = peace + kPeace;
    while (simulator.Now() < end && world_.broken.empty() && !IsSettled()) {
      simulator.RunUntil(simulator.Now() + absl::Milliseconds(25));
      CheckAnswering();
    }
    if (world_.broken.empty()) Check();
    if (world_.broken.empty()) return "";
    return absl::StrCat(world_.broken, "; level D",
                        static_cast<int>(world_.job.level),
                        world_.job.is_sync ? " SYNC" : " ASYNC",
                        world_.job.stalls_alone ? " stalls alone" : "",
                        world_.job.staleness ? " staleness" : "", "; ",
                        coordinator_->map().Summary());
  }

  const std::map<std::string, int64_t>& hits() const { return world_.hits; }
  uint64_t trace_hash() const { return world_.simulator.trace_hash(); }

 private:
  template <typename Node>
  void Add(const std::string& name, int index, const PartitionMap& map,
           std::vector<std::unique_ptr<Node>>& nodes) {
    nodes.push_back(std::make_unique<Node>(world_, index, map));
    world_.network.AddNode(name, *nodes.back());
  }

  // Links break, servers die. A death comes only where the last failure has
  // been repaired, and no link is broken: single failures.
  void StartTrouble() {
    sim::Simulator& simulator = world_.simulator;
    const Instant end = simulator.Now() + kTrouble;
    quiet_since_ = simulator.Now();
    Trouble(end);
  }

  void Trouble(Instant end) {
    sim::Simulator& simulator = world_.simulator;
    const Instant now = simulator.Now();
    if (now >= end) return;
    sim::Random& random = simulator.random();
    const absl::Duration quiet = now - quiet_since_;
    if (quiet > kSilence && now - world_.last_proposal > kSilence &&
        IsReplicated() && !world_.job.any_deaths && random.Chance(0.3)) {
      Kill(static_cast<int>(random.Below(world_.job.servers)));
      quiet_since_ = now;
    } else if (random.Chance(0.1)) {
      Cut();
    }
    if (world_.job.any_deaths && random.Chance(0.05)) KillSome();
    if (world_.job.drains && random.Chance(0.1)) DrainOrUndrain();
    simulator.After(
        absl::Milliseconds(30), [this, end] { Trouble(end); }, "trouble");
  }

  // One at a time.
  void DrainOrUndrain() {
    sim::Random& random = world_.simulator.random();
    if (drained_ < 0) {
      drained_ = static_cast<int>(random.Below(world_.job.servers));
      coordinator_->Drain(drained_, true);
    } else if (random.Chance(0.3)) {
      coordinator_->Drain(std::exchange(drained_, -1), false);
    }
  }

  // Whether what is drained has nothing, if others live that can have it.
  bool IsMoved() const {
    const PartitionMap& map = coordinator_->map();
    for (const PartitionMap::Server& server : map.servers()) {
      if (server.is_drained && !map.PartsOf(server.key).is_empty()) {
        return false;
      }
    }
    return true;
  }

  void Kill(int i) {
    const std::string name = absl::StrCat("ps", i);
    if (!world_.network.IsUp(name)) return;
    sim::Random& random = world_.simulator.random();
    const WorkerKey key = servers_[i]->key();
    world_.network.Crash(name);
    ++kills_;
    ++world_.hits[absl::StrCat("death ", std::min(kills_, 3), " of a job")];
    if (random.Chance(0.6)) {
      world_.simulator.After(
          random.Between(absl::Milliseconds(5), absl::Milliseconds(100)),
          [this, key] { coordinator_->Exited({key}); }, "proven exit");
    }
    world_.simulator.After(
        random.Between(absl::Milliseconds(10), absl::Milliseconds(1500)),
        [this, name] { world_.network.Restart(name); }, "restart");
    if (world_.job.client_dies && world_.network.IsUp("c0")) {
      world_.network.Crash("c0");
      ++world_.hits["client died with a server"];
    }
  }

  // Any servers at once, at any time.
  void KillSome() {
    sim::Random& random = world_.simulator.random();
    const bool all = random.Chance(0.3);
    std::vector<WorkerKey> killed;
    for (int i = 0; i < world_.job.servers; ++i) {
      const std::string name = absl::StrCat("ps", i);
      if (!world_.network.IsUp(name) || (!all && random.Chance(0.4))) continue;
      killed.push_back(servers_[i]->key());
      world_.network.Crash(name);
      world_.simulator.After(
          random.Between(absl::Milliseconds(10), absl::Milliseconds(1500)),
          [this, name] { world_.network.Restart(name); }, "restart");
    }
    if (all) ++world_.hits["all servers died at once"];
    const bool together = random.Chance(0.5);
    for (size_t i = 0; i < killed.size(); i += together ? killed.size() : 1) {
      const std::vector<WorkerKey> told =
          together ? killed : std::vector<WorkerKey>{killed[i]};
      if (random.Chance(0.2)) continue;  // found by silence, or the return
      world_.simulator.After(
          random.Between(absl::Milliseconds(5), absl::Milliseconds(100)),
          [this, told] { coordinator_->Exited(told); }, "proven exit");
    }
    if (world_.job.client_dies && world_.network.IsUp("c0")) {
      world_.network.Crash("c0");
      ++world_.hits["client died with a server"];
    }
  }

  void Cut() {
    sim::Random& random = world_.simulator.random();
    const std::string a = absl::StrCat("ps", random.Below(world_.job.servers));
    const int64_t to = random.Below(world_.job.servers + 2);
    const std::string b = to < world_.job.servers    ? absl::StrCat("ps", to)
                          : to == world_.job.servers ? "map"
                                                     : "c0";
    if (a == b) return;
    const bool one_way = random.Chance(0.5);
    one_way ? world_.network.CutOneWay(a, b) : world_.network.Cut(a, b);
    ++world_.hits[one_way ? "links cut one way" : "links cut"];
    const absl::Duration lasts =
        random.Between(absl::Milliseconds(20), absl::Milliseconds(500));
    quiet_since_ = std::max(quiet_since_, world_.simulator.Now() + lasts);
    world_.simulator.After(
        lasts, [this, a, b] { world_.network.Heal(a, b); }, "heal");
  }

  // No two servers may answer for a partition at the same time.
  void CheckAnswering() {
    for (int p = 0; p < kPartitions; ++p) {
      const int64_t answering =
          std::count_if(servers_.begin(), servers_.end(),
                        [p](const auto& s) { return s->MayAnswer(p); });
      if (answering > 1) {
        world_.broken =
            absl::StrCat("two servers may answer for partition ", p);
      }
    }
  }

  // Whether each partition has two copies, of servers that live.
  bool IsReplicated() const {
    const PartitionMap& map = coordinator_->map();
    for (int p = 0; p < kPartitions; ++p) {
      if (!map.entry(p).in_sync || RowsOf(map.entry(p).primary, p) == nullptr ||
          RowsOf(map.entry(p).backup, p) == nullptr) {
        return false;
      }
    }
    return true;
  }

  bool IsSettled() const {
    return IsReplicated() && IsMoved() &&
           std::all_of(clients_.begin(), clients_.end(),
                       [](const auto& client) { return client->is_done(); });
  }

  const ModelRows* RowsOf(WorkerKey key, int partition) const {
    if (IsNone(key)) return nullptr;
    const Server& server = *servers_[key.id - 1];
    if (server.key() != key || server.model() == nullptr) return nullptr;
    return &server.model()->cells[partition].rows;
  }

  void Check() {
    if (!IsSettled()) {
      world_.broken = "it does not settle:\n";
      for (const auto& client : clients_) world_.broken += client->Describe();
      return;
    }
    for (int p = 0; p < kPartitions; ++p) {
      const ModelRows* rows = RowsOf(coordinator_->map().entry(p).primary, p);
      if (rows == nullptr) {
        world_.broken = absl::StrCat("partition ", p, " is lost");
        return;
      }
      if (world_.job.is_sync) {
        CheckRounds(p, *rows);
      } else {
        CheckPushes(p, *rows);
      }
    }
  }

  // Bit for bit what a run without failures gives.
  void CheckRounds(int partition, const ModelRows& rows) {
    ModelRows expected;
    const uint64_t rounds = clients_[0]->pushed()[partition];
    for (uint64_t r = 1; r <= rounds; ++r) {
      std::vector<std::string> parts;
      for (const auto& client : clients_) {
        parts.push_back(client->PayloadOf(partition, r));
      }
      expected.push_back(absl::StrJoin(parts, "+"));
    }
    if (rows != expected) {
      world_.broken = absl::StrCat("rounds of partition ", partition, " are ",
                                   absl::StrJoin(rows, " "));
    }
  }

  void CheckPushes(int partition, const ModelRows& rows) {
    std::map<std::string, int> counts;
    for (const std::string& row : rows) ++counts[row];
    size_t known = 0;
    for (size_t c = 0; c < clients_.size(); ++c) {
      const Client& client = *clients_[c];
      const bool is_dead = !world_.network.IsUp(absl::StrCat("c", c));
      for (uint64_t s = 1; s <= client.pushed()[partition]; ++s) {
        if (client.IsOfClock(partition, s)) continue;
        const auto count = counts.find(client.PayloadOf(partition, s));
        const int times = count == counts.end() ? 0 : count->second;
        known += times > 0 ? 1 : 0;
        const bool is_owed =
            world_.job.level != Durability::kD0 &&
            (!is_dead || client.answered().count({partition, s}) != 0);
        if (times > 1 || (is_owed && times == 0)) {
          world_.broken = absl::StrCat("push ", client.PayloadOf(partition, s),
                                       " was applied ", times, " times");
        }
      }
    }
    if (known != counts.size()) world_.broken = "a push that nobody made";
    for (const std::string& row : world_.seen[partition]) {
      if (counts.count(row) == 0) {
        world_.broken = absl::StrCat("push ", row, " was read, and is gone");
      }
    }
  }

  World world_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Client>> clients_;
  Instant quiet_since_;
  int kills_ = 0;
  int drained_ = -1;
};

sim::FaultPlan::Options Rates() {
  return sim::FaultPlan::Options::Of(
      {Fault::kLoss, Fault::kDuplication, Fault::kDelay, Fault::kReordering},
      0.01);
}

constexpr uint64_t kSeeds = 2'000;

TEST(ReplicationSimulation, NoPushIsLostOrDoubledUnderFaultsAndDeaths) {
  sim::FaultPlan total(0, Rates());
  std::map<std::string, int64_t> hits;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    sim::FaultPlan faults(seed, Rates());
    Simulation simulation(seed, faults);
    const std::string broken = simulation.Run();
    ASSERT_EQ(broken, "") << "seed " << seed;
    total.Absorb(faults);
    for (const auto& [what, count] : simulation.hits()) hits[what] += count;
  }
  std::cout << total.Report();
  for (const auto& [what, count] : hits) {
    std::cout << what << ": " << count << "\n";
  }
  EXPECT_TRUE(total.CheckHits().ok()) << total.CheckHits();
  for (const char* what : {"answered",
                           "refused: stale map",
                           "refused: fenced",
                           "refused: behind",
                           "marked in sync",
                           "dropped a backup",
                           "promoted itself",
                           "proposed too late",
                           "suspected",
                           "proven exits",
                           "took the next copy",
                           "dropped a next",
                           "handed over",
                           "drained",
                           "took part again",
                           "declared dead by silence",
                           "joined anew",
                           "copies sent",
                           "pieces sent",
                           "death 3 of a job",
                           "client died with a server",
                           "waited for room",
                           "ticks",
                           "reads at a clock",
                           "reads that waited for clocks",
                           "reads"}) {
    EXPECT_GT(hits[what], 0) << what;
  }
}

// At D3. Those that died come back, each with what its disk has kept.
TEST(ReplicationSimulation, NoPushIsLostOrDoubledWhateverServersDieAtD3) {
  std::map<std::string, int64_t> hits;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    sim::FaultPlan faults(seed, Rates());
    Simulation simulation(seed, faults, /*any_deaths=*/true);
    const std::string broken = simulation.Run();
    ASSERT_EQ(broken, "") << "seed " << seed;
    for (const auto& [what, count] : simulation.hits()) hits[what] += count;
  }
  for (const auto& [what, count] : hits) {
    std::cout << what << ": " << count << "\n";
  }
  for (const char* what :
       {"all servers died at once", "lost all copies of partitions",
        "two heirs", "revived", "began with a log", "records lost by a disk",
        "client died with a server", "copies sent", "promoted itself", "ticks",
        "reads at a clock", "reads that waited for clocks", "reads"}) {
    EXPECT_GT(hits[what], 0) << what;
  }
}

TEST(ReplicationSimulation, ASeedReplaysBitForBit) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sim::FaultPlan once(seed, Rates());
    sim::FaultPlan again(seed, Rates());
    Simulation first(seed, once);
    Simulation second(seed, again);
    EXPECT_EQ(first.Run(), second.Run());
    EXPECT_EQ(first.trace_hash(), second.trace_hash()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::ps::simulated
