#include "weft/ps/replicated/map_keeper.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/replicated/map_keeper_fixture.h"
#include "weft/rendezvous/memory_store.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

TEST_F(MapKeeperTest, FirstMapOfManyKeepersAtOnceIsOne) {
  constexpr uint32_t kServers = 8;
  std::vector<std::unique_ptr<Node>> nodes;
  for (uint32_t id = 1; id <= kServers; ++id) {
    nodes.push_back(std::make_unique<Node>(store_, WorkerKey{id, 1}, Quiet()));
  }
  std::vector<std::thread> threads;
  for (auto& node : nodes) {
    threads.emplace_back([&node] {
      // Each has heard of the servers in another order.
      std::vector<Server> servers = LiveServers(kServers);
      std::rotate(servers.begin(), servers.begin() + node->key().id % kServers,
                  servers.end());
      (*node)->OnServers(std::move(servers), {}, kServers);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& node : nodes) {
    const auto map = (*node)->AwaitMap(kPatience);
    ASSERT_THAT(map, IsOk());
    EXPECT_EQ(map->Encode(), Stored().Encode());
    EXPECT_EQ((*node)->encoded(), Stored().Encode());
    EXPECT_TRUE(Becomes([&] { return node->HasTold(1); }));
  }
  const PartitionMap stored = Stored();
  EXPECT_EQ(stored.epoch(), 1u);
  for (int i = 0; i < stored.entries(); ++i) {
    EXPECT_EQ(stored.entry(i).primary, MapOf(kServers).entry(i).primary) << i;
    EXPECT_EQ(stored.entry(i).backup, MapOf(kServers).entry(i).backup) << i;
  }
}

TEST_F(MapKeeperTest, FirstMapIsMadeOnceAllServersAreThere) {
  Node node(store_, {1, 1}, Quiet());
  EXPECT_EQ(node->map().epoch(), 0u);
  EXPECT_EQ(node->encoded(), "");
  EXPECT_THAT(
      node->AwaitMap(kShort),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "no servers are known"));
  node->OnServers({Live({2, 1})}, {}, 3);  // and itself
  EXPECT_THAT(node->AwaitMap(kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "\"ps/map\" after 30ms: 2 of 3 servers are there"));
  // An incarnation that has ended is none, and one that came before is not two.
  node->OnServers({Live({2, 2}), Live({2, 1}), Live({3, 1})}, {{3, 1}}, 3);
  EXPECT_THAT(node->AwaitMap(kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "2 of 3 servers"));
  node->OnServers({Live({2, 2}), Live({3, 2})}, {{3, 1}}, 3);
  const auto map = node->AwaitMap(kPatience);
  ASSERT_THAT(map, IsOk());
  EXPECT_EQ(map->epoch(), 1u);
  EXPECT_EQ(map->entries(), 8);
  EXPECT_TRUE(map->IsReplicated());
  EXPECT_EQ(map->servers().size(), 3u);
  EXPECT_EQ(map->StateOf({2, 2}), State::kLive);
}

TEST_F(MapKeeperTest, SaysThatThereCanBeNoMap) {
  MapKeeper::Options options = Quiet();
  options.entries = 12;
  Node node(store_, {1, 1}, options);
  node->OnServers({}, {}, 1);
  EXPECT_THAT(node->AwaitMap(kPatience),
              StatusIs(absl::StatusCode::kInvalidArgument, "12 partitions"));
}

TEST_F(MapKeeperTest, SaysThatTheStoreDoesNotAnswer) {
  store_.SetMode(FaultyStore::Mode::kRefuses);
  Node node(store_, {1, 1}, Quiet());
  node->OnServers({}, {}, 1);
  ASSERT_TRUE(Becomes([&] { return store_.calls() > 4; }));
  EXPECT_THAT(node->AwaitMap(kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "1 of 1 servers are there; the store: the store is "
                       "away"));
}

TEST_F(MapKeeperTest, PartitionsOfAServerThatExitsGoToTheirBackups) {
  const PartitionMap first = MapOf(3);
  Put(first);
  std::vector<std::unique_ptr<Node>> nodes;
  for (uint32_t id : {1u, 3u}) {
    nodes.push_back(std::make_unique<Node>(store_, WorkerKey{id, 1}, Quiet()));
  }
  for (auto& node : nodes) {
    (*node)->OnServers({Live({1, 1}), Live({3, 1})}, {{2, 1}}, 3);
  }
  ASSERT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 1}) == State::kExited;
  }));
  const PartitionMap map = Stored();
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry& was = first.entry(i);
    const PartitionMap::Entry& is = map.entry(i);
    const bool had_primary = was.primary == WorkerKey{2, 1};
    EXPECT_EQ(is.primary, had_primary ? was.backup : was.primary) << i;
    // The third server stands by for what lacked a backup.
    const bool was_hit = had_primary || was.backup == WorkerKey{2, 1};
    EXPECT_FALSE(IsNone(is.backup)) << i;
    EXPECT_EQ(is.in_sync, !was_hit) << i;
  }
  // Neither makes it twice.
  for (auto& node : nodes) {
    EXPECT_TRUE(Becomes([&] { return node->HasTold(map.epoch()); }));
    AwaitProposals(*node);
  }
  EXPECT_EQ(Stored().epoch(), map.epoch());
}

TEST_F(MapKeeperTest, ServerThatReturnsStandsBy) {
  Put(MapOf(2));
  Node node(store_, {1, 1}, Quiet());
  node->OnServers({}, {{2, 1}}, 2);
  ASSERT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 1}) == State::kExited;
  }));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(Stored().entry(i).primary, (WorkerKey{1, 1}));
    EXPECT_TRUE(IsNone(Stored().entry(i).backup));
  }
  node->OnServers({Live({1, 1}), Live({2, 7})}, {{2, 1}}, 2);
  ASSERT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 7}) == State::kLive;
  }));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(Stored().entry(i).backup, (WorkerKey{2, 7}));
    EXPECT_FALSE(Stored().entry(i).in_sync);
  }
}

TEST_F(MapKeeperTest, SilentServerThatIsAMemberIsLive) {
  PartitionMap map = MapOf(2);
  ASSERT_TRUE(map.FailServer({2, 1}, State::kSilent));
  Put(map);
  Node node(store_, {2, 1}, Quiet());
  node->OnServers({Live({1, 1})}, {}, 2);
  EXPECT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({2, 1}) == State::kLive;
  }));
}

TEST_F(MapKeeperTest, ServersHoldAlsoForLaterMaps) {
  PartitionMap map = MapOf(2);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  node->OnServers({Live({2, 1})}, {{3, 1}}, 2);
  ASSERT_TRUE(Becomes([&] { return node->map().epoch() == 1; }));
  // Whoever adds it has not heard of its end.
  ASSERT_TRUE(map.AddServer({3, 1}, 3));
  Put(map);
  EXPECT_TRUE(StoreBecomes([](const PartitionMap& map) {
    return map.StateOf({3, 1}) == State::kExited;
  }));
}

TEST_F(MapKeeperTest, NothingIsWrittenWhereNothingChanges) {
  Put(MapOf(3));
  Node node(store_, {1, 1}, Quiet());
  for (int i = 0; i < 20; ++i) {
    const int64_t calls = store_.calls();
    node->OnServers(LiveServers(3), {{9, 1}, {1, 0}}, 3);
    node->Learn();
    ASSERT_TRUE(Becomes([&] { return store_.calls() > calls; }));
  }
  EXPECT_EQ(store_.writes(), 0);
  // Nor is the store asked without a reason.
  AwaitProposals(node);
  const int64_t gets = store_.gets();
  const int64_t others = store_.calls() - gets;
  ASSERT_TRUE(
      Becomes([&] { return store_.calls() - store_.gets() > others + 4; }));
  EXPECT_LE(store_.gets(), gets + 2);
}

TEST_F(MapKeeperTest, ChangesAreMadeDespiteConflicts) {
  PartitionMap map = MapOf(2);
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kDropBackup, 0)), IsOk());
  ASSERT_TRUE(map.AddBackups());
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  store_.AddConflicts(12);  // more than without a pause
  node->Propose(ChangeOf(map, Kind::kMarkInSync, 0), Always());
  node->Propose(ChangeOf(map, Kind::kPromote, 1), nullptr);
  node->Propose(ChangeOf(map, Kind::kDropBackup, 2), Always());
  ASSERT_TRUE(StoreBecomes([&](const PartitionMap& now) {
    return now.entry(0).changed > map.entry(0).changed &&
           now.entry(1).changed > map.entry(1).changed &&
           now.entry(2).changed > map.entry(2).changed;
  }));
  EXPECT_EQ(store_.conflicts_left(), 0);
  const PartitionMap made = Stored();
  EXPECT_TRUE(made.entry(0).in_sync);
  EXPECT_EQ(made.entry(1).primary, map.entry(1).backup);
  EXPECT_GT(made.entry(1).epoch, map.entry(1).epoch);
  EXPECT_EQ(made.entry(2).primary, map.entry(2).primary);
  EXPECT_FALSE(made.entry(2).in_sync);
}

TEST_F(MapKeeperTest, EntryWithoutABackupGetsOne) {
  PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  for (int i = 0; i < 5; ++i) {
    const uint64_t changed = Stored().entry(0).changed;
    ASSERT_TRUE(StoreBecomes([&](const PartitionMap& now) {
      if (now.entry(0).changed > changed) return true;
      node->Propose(ChangeOf(now, Kind::kDropBackup, 0), Always());
      return false;
    }));
    ASSERT_TRUE(StoreBecomes(
        [&](const PartitionMap& now) { return !IsNone(now.entry(0).backup); }));
  }
  // One that another has taken away, and nobody of the keepers.
  ASSERT_TRUE(Becomes([&] { return node->encoded() == Stored().Encode(); }));
  map = Stored();
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kDropBackup, 1)), IsOk());
  Put(map);
  ASSERT_TRUE(StoreBecomes(
      [&](const PartitionMap& now) { return !IsNone(now.entry(1).backup); }));
}

// As one that is stopped, and that the membership takes for live.
TEST_F(MapKeeperTest, BackupThatWasDroppedIsNotChosenAgainBeforeOthers) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  for (int i = 0; i < map.entries(); ++i) {
    if (map.entry(i).backup != map.entry(0).backup) continue;
    ASSERT_TRUE(StoreBecomes([&](const PartitionMap& now) {
      if (now.entry(i).changed > map.entry(i).changed) return true;
      node->Propose(ChangeOf(now, Kind::kDropBackup, i), Always());
      return false;
    }));
  }
  ASSERT_TRUE(StoreBecomes([&](const PartitionMap& now) {
    for (int i = 0; i < map.entries(); ++i) {
      if (IsNone(now.entry(i).backup)) return false;
    }
    return true;
  }));
  EXPECT_EQ(Stored().PartsOf(map.entry(0).backup).filling, 0);
}

TEST_F(MapKeeperTest, ChangeThatComesTooLateIsDropped) {
  PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  ASSERT_THAT(node->AwaitMap(kPatience), IsOk());
  store_.SetMode(FaultyStore::Mode::kHangs);
  node->Propose(ChangeOf(map, Kind::kPromote, 0), Always());
  // Meanwhile another has changed the entry, and it is in sync again.
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kDropBackup, 0)), IsOk());
  ASSERT_TRUE(map.AddBackups());
  ASSERT_THAT(map.Apply(ChangeOf(map, Kind::kMarkInSync, 0)), IsOk());
  Put(map);
  store_.SetMode(FaultyStore::Mode::kGood);
  ASSERT_TRUE(Becomes([&] { return node->map().epoch() >= map.epoch(); }));
  AwaitProposals(node);
  EXPECT_EQ(Stored().entry(0).changed, map.entry(0).changed);
  EXPECT_EQ(Stored().entry(0).primary, map.entry(0).primary);

  // What does not fit the map at all is dropped too.
  node->Propose({Kind::kPromote, -1, 1}, Always());
  node->Propose({Kind::kPromote, 8, 1}, Always());
  node->Propose({Kind::kPromote, 1 << 30, 1}, Always());
  node->Propose({Kind::kPromote, 0, ~uint64_t{0}}, Always());
  node->Propose({Kind::kMarkInSync, 0, map.entry(0).changed}, Always());
  AwaitProposals(node);
  EXPECT_EQ(Stored().entry(0).changed, map.entry(0).changed);
}

TEST_F(MapKeeperTest, ChangeThatMayNotBeMadeIsDropped) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  std::atomic<int> asked{0};
  node->Propose(ChangeOf(map, Kind::kPromote, 0), [&] {
    ++asked;
    return false;
  });
  ASSERT_TRUE(Becomes([&] { return asked > 0; }));
  AwaitProposals(node);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(Stored().entry(0).changed, 1u);

  // It is asked before each attempt.
  store_.AddConflicts(3);
  std::atomic<int> again{0};
  node->Propose(ChangeOf(map, Kind::kPromote, 0), [&] { return ++again < 3; });
  ASSERT_TRUE(Becomes([&] { return again == 3; }));
  AwaitProposals(node);
  EXPECT_EQ(again, 3);
  EXPECT_EQ(Stored().entry(0).changed, 1u);
}

TEST_F(MapKeeperTest, SameChangeProposedAgainIsOne) {
  const PartitionMap map = MapOf(3);
  Put(map);
  store_.SetMode(FaultyStore::Mode::kRefuses);
  Node node(store_, {1, 1}, Quiet());
  std::atomic<int> asked{0};
  for (int i = 0; i < 1000; ++i) {
    node->Propose(ChangeOf(map, Kind::kPromote, 0), [&] {
      ++asked;
      return true;
    });
  }
  ASSERT_TRUE(Becomes([&] { return store_.gets() >= 2; }));
  store_.SetMode(FaultyStore::Mode::kGood);
  ASSERT_TRUE(StoreBecomes(
      [](const PartitionMap& now) { return now.entry(0).changed > 1; }));
  AwaitProposals(node);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(Stored().entry(0).epoch, 2u);
}

TEST_F(MapKeeperTest, ChangeProposedWhileItIsRefusedIsAnother) {
  const PartitionMap map = MapOf(3);
  Put(map);
  Node node(store_, {1, 1}, Quiet());
  const MapChange change = ChangeOf(map, Kind::kPromote, 0);
  node->Propose(change, [&] {
    node->Propose(change, Always());
    return false;
  });
  EXPECT_TRUE(StoreBecomes(
      [](const PartitionMap& now) { return now.entry(0).changed > 1; }));
}

}  // namespace
}  // namespace weft::ps
