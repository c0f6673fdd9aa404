#include "weft/ps/core/replication/partition_map.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::HasSubstr;
using State = PartitionMap::State;
using Kind = MapChange::Kind;

WorkerKey KeyOf(uint32_t id, uint64_t epoch = 1) { return {id, epoch}; }

std::vector<PartitionMap::Server> Servers(int count, int hosts) {
  std::vector<PartitionMap::Server> servers;
  for (int i = 0; i < count; ++i) {
    servers.push_back({KeyOf(i + 1), static_cast<uint32_t>(i % hosts), {}});
  }
  return servers;
}

PartitionMap MapOf(int entries, int servers, int hosts = 100) {
  return *PartitionMap::Assign(entries, Servers(servers, hosts), 2);
}

// The least and the most of `count` over the servers that live.
template <typename Count>
std::pair<int, int> Range(const PartitionMap& map, const Count& count) {
  std::pair<int, int> range = {1 << 30, 0};
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.state != State::kLive) continue;
    int n = 0;
    for (int i = 0; i < map.entries(); ++i) {
      n += count(map.entry(i), server.key);
    }
    range = {std::min(range.first, n), std::max(range.second, n)};
  }
  return range;
}
int IsPrimary(const PartitionMap::Entry& entry, WorkerKey key) {
  return entry.primary == key ? 1 : 0;
}
int Copies(const PartitionMap::Entry& entry, WorkerKey key) {
  return (entry.primary == key) + (entry.backup == key);
}

TEST(PartitionMap, DealsPartitionsEvenly) {
  for (const int servers : {2, 3, 4, 7}) {
    const PartitionMap map = MapOf(256, servers);
    const auto primaries = Range(map, IsPrimary);
    EXPECT_LE(primaries.second - primaries.first, 1) << servers;
    const auto copies = Range(map, Copies);
    EXPECT_LE(copies.second - copies.first, 2) << servers;
    // What one of them has, the others share if it dies.
    std::map<WorkerKey, int> behind_first;
    for (int i = 0; i < map.entries(); ++i) {
      EXPECT_TRUE(map.entry(i).in_sync);
      if (map.entry(i).primary == KeyOf(1)) ++behind_first[map.entry(i).backup];
    }
    EXPECT_EQ(static_cast<int>(behind_first.size()), servers - 1);
    for (const auto& [backup, count] : behind_first) {
      EXPECT_NEAR(count, 256 / servers / (servers - 1), 2) << servers;
    }
  }
}

TEST(PartitionMap, BackupIsOnAnotherHostIfThereIsOne) {
  const PartitionMap map = MapOf(64, 4, /*hosts=*/2);
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry& entry = map.entry(i);
    EXPECT_NE(entry.primary.id % 2, entry.backup.id % 2) << i;
  }
  EXPECT_FALSE(IsNone(MapOf(64, 2, /*hosts=*/1).entry(0).backup));
}

TEST(PartitionMap, RefusesWhatCannotBeDealt) {
  for (const auto& [entries, servers, replicas] :
       std::vector<std::tuple<int, int, int>>{
           {3, 2, 2}, {0, 2, 2}, {4, 0, 2}, {4, 2, 3}, {1 << 20, 2, 2}}) {
    EXPECT_THAT(
        PartitionMap::Assign(entries, Servers(servers, 9), replicas).status(),
        testing::StatusIs(absl::StatusCode::kInvalidArgument));
  }
  std::vector<PartitionMap::Server> twice = Servers(2, 9);
  twice[1].key = twice[0].key;
  EXPECT_FALSE(PartitionMap::Assign(4, twice, 2).ok());
  std::vector<PartitionMap::Server> without_key = Servers(2, 9);
  without_key[1].key.epoch = 0;
  EXPECT_THAT(PartitionMap::Assign(4, without_key, 2).status(),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, "no key"));
}

TEST(PartitionMap, BackupsTakeOverWhatADeadServerHad) {
  PartitionMap map = MapOf(64, 4);
  const PartitionMap before = map;
  ASSERT_TRUE(map.FailServer(KeyOf(2), State::kExited));
  EXPECT_FALSE(map.FailServer(KeyOf(2), State::kSilent));
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry& was = before.entry(i);
    const PartitionMap::Entry& is = map.entry(i);
    if (was.primary == KeyOf(2)) {
      EXPECT_EQ(is.primary, was.backup);
      EXPECT_EQ(is.epoch, map.epoch());
    } else {
      EXPECT_EQ(is.primary, was.primary);
      EXPECT_EQ(is.epoch, was.epoch) << "a change of another server's";
    }
    EXPECT_NE(is.backup, KeyOf(2));
  }
  EXPECT_FALSE(map.IsReplicated());
  ASSERT_TRUE(map.AddBackups());
  const auto copies = Range(map, Copies);
  EXPECT_LE(copies.second - copies.first, 2);
  EXPECT_FALSE(map.AddBackups());
}

TEST(PartitionMap, OnlyABackupInSyncIsPromoted) {
  PartitionMap map = MapOf(2, 3);
  const WorkerKey primary = map.entry(0).primary;
  ASSERT_TRUE(map.Apply({Kind::kDropBackup, 0, map.entry(0).changed}).ok());
  ASSERT_TRUE(map.AddBackups());
  EXPECT_FALSE(map.Apply({Kind::kPromote, 0, map.entry(0).changed}).ok());
  PartitionMap lost = map;
  ASSERT_TRUE(lost.FailServer(primary, State::kExited));
  EXPECT_TRUE(IsNone(lost.entry(0).primary));
  EXPECT_THAT(lost.Summary(), HasSubstr("1 lost"));
  ASSERT_TRUE(map.Apply({Kind::kMarkInSync, 0, map.entry(0).changed}).ok());
  ASSERT_TRUE(map.FailServer(primary, State::kExited));
  EXPECT_FALSE(IsNone(map.entry(0).primary));
}

TEST(PartitionMap, SilentServerKeepsWhatItHasAloneAndStandsBy) {
  PartitionMap map = MapOf(2, 2);
  const WorkerKey primary = map.entry(0).primary;
  const WorkerKey backup = map.entry(0).backup;
  ASSERT_TRUE(map.FailServer(backup, State::kSilent));
  EXPECT_EQ(map.entry(0).backup, backup) << "all there is if the other dies";
  EXPECT_EQ(map.entry(1).primary, primary);
  // Nobody who is heard of would take it over.
  ASSERT_TRUE(map.FailServer(primary, State::kSilent));
  EXPECT_EQ(map.entry(0).primary, primary);
  ASSERT_TRUE(map.FailServer(primary, State::kExited));
  EXPECT_EQ(map.entry(0).primary, backup);
  EXPECT_TRUE(map.AddServer(backup, 0));
  EXPECT_EQ(map.StateOf(backup), State::kLive);
}

// A primary has wanted its backup to be counted as in sync; before the change
// came, that backup was dropped and stands by again, empty.
TEST(PartitionMap, ChangeForAnEarlierStateOfAnEntryIsRefused) {
  PartitionMap map = MapOf(1, 2);
  const auto apply = [&](Kind kind, uint64_t changed) {
    return map.Apply({kind, 0, changed});
  };
  ASSERT_TRUE(apply(Kind::kDropBackup, 1).ok());
  ASSERT_TRUE(map.AddBackups());
  const MapChange late = {Kind::kMarkInSync, 0, map.entry(0).changed};
  ASSERT_TRUE(apply(Kind::kDropBackup, map.entry(0).changed).ok());
  ASSERT_TRUE(map.AddBackups());
  const uint64_t epoch = map.epoch();
  EXPECT_THAT(map.Apply(late),
              testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                "comes too late"));
  EXPECT_FALSE(apply(Kind::kPromote, 1).ok());
  EXPECT_FALSE(apply(Kind::kDropBackup, 1).ok());
  EXPECT_FALSE(map.Apply({Kind::kPromote, 7, 1}).ok());
  EXPECT_EQ(map.epoch(), epoch);
}

TEST(PartitionMap, RestartedServerBeginsWithNothing) {
  PartitionMap map = MapOf(8, 3);
  ASSERT_TRUE(map.AddServer(KeyOf(2, 5), 1));
  EXPECT_EQ(map.StateOf(KeyOf(2, 1)), State::kExited);
  EXPECT_EQ(map.StateOf(KeyOf(2, 5)), State::kLive);
  for (int i = 0; i < map.entries(); ++i) {
    EXPECT_NE(map.entry(i).primary.id, 2u);
  }
  EXPECT_FALSE(map.AddServer(KeyOf(2, 1), 1)) << "an earlier incarnation";
  EXPECT_EQ(map.servers().size(), 3u);
  ASSERT_TRUE(map.AddBackups());
  EXPECT_THAT(map.PartnersOf(KeyOf(2, 5)),
              ::testing::UnorderedElementsAre(KeyOf(1), KeyOf(3)));
}

// Readers of maps may take each epoch for one change.
TEST(PartitionMap, RestartedServerIsOneChange) {
  PartitionMap map = MapOf(8, 3);
  const uint64_t epoch = map.epoch();
  ASSERT_TRUE(map.AddServer(KeyOf(2, 5), 1));
  EXPECT_EQ(map.epoch(), epoch + 1);
  for (int i = 0; i < map.entries(); ++i) {
    EXPECT_LE(map.entry(i).changed, map.epoch());
  }
  EXPECT_TRUE(PartitionMap::Decode(map.Encode()).ok());
}

TEST(PartitionMap, ChangeOfAnUnknownKindIsRefused) {
  PartitionMap map = MapOf(2, 2);
  const PartitionMap before = map;
  EXPECT_THAT(map.Apply({static_cast<Kind>(77), 0, map.entry(0).changed}),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, "77"));
  EXPECT_EQ(map.Encode(), before.Encode());
}

MapChange Begin(uint64_t generation) {
  return {Kind::kBeginRestore, 0, 0, generation, {}};
}
MapChange End(uint64_t generation, std::map<WorkerKey, uint64_t> loaded) {
  return {Kind::kEndRestore, 0, 0, generation, std::move(loaded)};
}

// All servers end and come back with nothing.
PartitionMap LostMap(int entries, int servers) {
  PartitionMap map = MapOf(entries, servers);
  for (int i = 1; i <= servers; ++i) map.FailServer(KeyOf(i), State::kExited);
  for (int i = 1; i <= servers; ++i) map.AddServer(KeyOf(i, 2), i);
  map.AddBackups();
  return map;
}

TEST(PartitionMap, LostEntriesStayLostWithoutARestore) {
  PartitionMap map = LostMap(16, 3);
  EXPECT_EQ(map.lost(), 16);
  EXPECT_FALSE(map.AddBackups());
  EXPECT_FALSE(map.is_restoring());
  EXPECT_THAT(map.Summary(), HasSubstr("16 lost"));
}

TEST(PartitionMap, RestoreDealsWhatIsLostEvenlyAndNothingElse) {
  PartitionMap map = LostMap(16, 3);
  ASSERT_THAT(map.Apply(Begin(5)), testing::IsOk());
  EXPECT_TRUE(map.is_restoring());
  EXPECT_EQ(map.generation(), 5u);
  EXPECT_EQ(map.lost(), 0);
  EXPECT_TRUE(map.IsReplicated());
  const auto primaries = Range(map, IsPrimary);
  EXPECT_LE(primaries.second - primaries.first, 1);
  const auto copies = Range(map, Copies);
  EXPECT_LE(copies.second - copies.first, 2);
  for (int i = 0; i < map.entries(); ++i) {
    EXPECT_EQ(map.entry(i).epoch, map.epoch());
  }
  const auto decoded = PartitionMap::Decode(map.Encode());
  ASSERT_THAT(decoded.status(), testing::IsOk());
  EXPECT_TRUE(decoded->is_restoring());
  EXPECT_EQ(decoded->generation(), 5u);

  PartitionMap some = MapOf(8, 3);
  some.FailServer(KeyOf(1), State::kExited);  // its backups take over
  some.FailServer(KeyOf(2), State::kExited);  // what they had alone is lost
  const PartitionMap before = some;
  ASSERT_GT(before.lost(), 0);
  ASSERT_THAT(some.Apply(Begin(9)), testing::IsOk());
  for (int i = 0; i < some.entries(); ++i) {
    if (IsNone(before.entry(i).primary)) {
      EXPECT_EQ(some.entry(i).primary, KeyOf(3)) << i;
      EXPECT_FALSE(some.entry(i).in_sync) << i;
    } else {
      EXPECT_EQ(some.entry(i).primary, before.entry(i).primary) << i;
      EXPECT_EQ(some.entry(i).changed, before.entry(i).changed) << i;
    }
  }
}

TEST(PartitionMap, RestoreEndsOnceAllThatHaveAPartHaveLoadedIt) {
  PartitionMap map = LostMap(16, 2);
  ASSERT_THAT(map.Apply(Begin(5)), testing::IsOk());
  const uint64_t by = map.epoch();
  EXPECT_THAT(map.Apply(End(5, {{KeyOf(1, 2), by}})),
              testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                "1 servers have not loaded it"));
  // One that comes meanwhile must load it too: it may become a backup.
  map.AddServer(KeyOf(3), 3);
  EXPECT_FALSE(map.Apply(End(5, {{KeyOf(1, 2), by}, {KeyOf(2, 2), by}})).ok());
  const std::map<WorkerKey, uint64_t> all = {
      {KeyOf(1, 2), by}, {KeyOf(2, 2), by}, {KeyOf(3), by + 1}};
  EXPECT_FALSE(map.Apply(End(4, all)).ok());
  EXPECT_TRUE(map.is_restoring());
  ASSERT_THAT(map.Apply(End(5, all)), testing::IsOk());
  EXPECT_FALSE(map.is_restoring());
  EXPECT_EQ(map.generation(), 5u);
  EXPECT_FALSE(map.Apply(End(5, all)).ok()) << "it has ended";
}

// A server that was silent while the others loaded must not be promoted with
// what it had before.
TEST(PartitionMap, RestoreDoesNotEndWhileASilentServerMayBePromoted) {
  PartitionMap map = MapOf(4, 3);
  map.FailServer(KeyOf(3), State::kExited);
  map.FailServer(KeyOf(2), State::kSilent);
  const auto loaded = [&] {
    return std::map<WorkerKey, uint64_t>{{KeyOf(1), map.epoch()}};
  };
  EXPECT_FALSE(map.Apply(End(5, loaded())).ok());
  map.FailServer(KeyOf(2), State::kExited);
  for (int i = 0; map.lost() == 0 && i < map.entries(); ++i) {
    EXPECT_EQ(map.entry(i).primary, KeyOf(1));
  }
  if (map.lost() > 0) return;
  EXPECT_THAT(map.Apply(End(5, loaded())), testing::IsOk());
}

// Its backup of that time loaded nothing for the entry, and would be promoted.
TEST(PartitionMap, RestoreDoesNotEndWithABackupThatGotItsPartAfterItLoaded) {
  PartitionMap map = MapOf(1, 2);
  map.AddServer(KeyOf(3), 3);
  const PartitionMap::Entry before = map.entry(0);
  const uint64_t early = map.epoch();
  map.FailServer(before.backup, State::kExited);
  ASSERT_TRUE(map.AddBackups());
  ASSERT_EQ(map.entry(0).backup, KeyOf(3));
  PartitionMap filled = map;
  // The primary has no table yet: a copy of nothing.
  ASSERT_THAT(map.Apply({Kind::kMarkInSync, 0, map.entry(0).changed}),
              testing::IsOk());
  EXPECT_THAT(
      map.CheckLoaded({{before.primary, map.epoch()}, {KeyOf(3), early}}),
      testing::StatusIs(absl::StatusCode::kAborted, "3@0.1"));
  EXPECT_THAT(
      map.CheckLoaded({{before.primary, map.epoch()}, {KeyOf(3), map.epoch()}}),
      testing::IsOk());
  map.FailServer(before.primary, State::kExited);
  EXPECT_THAT(map.CheckLoaded({{KeyOf(3), early}}),
              testing::StatusIs(absl::StatusCode::kAborted, "3@0.1"));
}

TEST(PartitionMap, RestoreThatLosesAServerMustBeginAnew) {
  PartitionMap map = LostMap(4, 2);
  ASSERT_THAT(map.Apply(Begin(5)), testing::IsOk());
  map.FailServer(KeyOf(1, 2), State::kExited);
  map.FailServer(KeyOf(2, 2), State::kExited);
  map.AddServer(KeyOf(1, 3), 1);
  EXPECT_EQ(map.lost(), 4);
  EXPECT_FALSE(map.Apply(End(5, {{KeyOf(1, 3), map.epoch()}})).ok());
  EXPECT_FALSE(map.Apply(Begin(5)).ok()) << "some may have loaded that one";
  EXPECT_THAT(map.Apply(Begin(6)), testing::IsOk());
  EXPECT_THAT(map.Apply(End(6, {{KeyOf(1, 3), map.epoch()}})), testing::IsOk());
}

TEST(PartitionMap, RestoreWithoutALiveServerIsRefused) {
  PartitionMap map = MapOf(4, 2);
  map.FailServer(KeyOf(1), State::kExited);
  map.FailServer(KeyOf(2), State::kExited);
  EXPECT_THAT(map.Apply(Begin(1)),
              testing::StatusIs(absl::StatusCode::kFailedPrecondition));
}

// --- Moves -------------------------------------------------------------------

MapChange Drain(uint32_t server, bool is_drained = true) {
  MapChange change;
  change.kind = is_drained ? Kind::kDrain : Kind::kUndrain;
  change.server = server;
  return change;
}

// What primaries want of entries on the move, once copies have all.
void EndMoves(PartitionMap& map) {
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap::Entry entry = map.entry(i);
    if (!IsNone(entry.next)) {
      ASSERT_TRUE(map.Apply({Kind::kTakeNext, i, entry.changed}).ok());
      EXPECT_EQ(map.entry(i).backup, entry.next);
      EXPECT_EQ(map.entry(i).epoch, entry.epoch);
    } else if (entry.is_handing_over) {
      ASSERT_TRUE(map.Apply({Kind::kHandOver, i, entry.changed}).ok());
      EXPECT_EQ(map.entry(i).primary, entry.backup);
      EXPECT_EQ(map.entry(i).backup, entry.primary);
      EXPECT_EQ(map.entry(i).epoch, map.epoch());
    }
  }
}

TEST(PartitionMap, DrainedServerHasNothingOnceItsMovesAreMade) {
  PartitionMap map = MapOf(64, 4);
  const PartitionMap::Parts before = map.PartsOf(KeyOf(2));
  EXPECT_EQ(before.primaries, 16);
  EXPECT_EQ(before.backups, 16);
  ASSERT_TRUE(map.Apply(Drain(2)).ok());
  int steps = 0;
  for (; map.AddMoves() && steps < 10; ++steps) {
    EXPECT_FALSE(map.AddMoves());  // they are under way
    EXPECT_TRUE(map.IsReplicated());
    EndMoves(map);
    EXPECT_TRUE(map.IsReplicated());
  }
  EXPECT_EQ(steps, 2);  // a role is handed over, then its copy moves
  EXPECT_TRUE(map.PartsOf(KeyOf(2)).is_empty()) << map.Summary();
  for (const uint32_t other : {1, 3, 4}) {
    const PartitionMap::Parts parts = map.PartsOf(KeyOf(other));
    EXPECT_NEAR(parts.primaries + parts.backups, 128 / 3, 2) << other;
  }
  // Its end changes no entry.
  const uint64_t epoch = map.epoch();
  EXPECT_TRUE(map.FailServer(KeyOf(2), State::kExited));
  for (int i = 0; i < map.entries(); ++i) {
    EXPECT_LE(map.entry(i).changed, epoch);
  }
  // The next incarnation is drained too.
  EXPECT_TRUE(map.AddServer(KeyOf(2, 2), 9));
  EXPECT_FALSE(map.AddMoves());
  EXPECT_FALSE(map.Apply(Drain(2)).ok());
  EXPECT_TRUE(map.Apply(Drain(2, false)).ok());
  EXPECT_TRUE(map.FailServer(KeyOf(1), State::kExited));
  EXPECT_TRUE(map.AddBackups());
  EXPECT_GT(map.PartsOf(KeyOf(2, 2)).filling, 0);
}

TEST(PartitionMap, DrainIsRefusedIfTooFewServersWouldBeLeft) {
  PartitionMap map = MapOf(8, 3);
  EXPECT_THAT(map.Apply(Drain(7)).message(), HasSubstr("none of the job's"));
  EXPECT_THAT(map.Apply(Drain(1, false)).message(),
              HasSubstr("is not drained"));
  ASSERT_TRUE(map.Apply(Drain(1)).ok());
  EXPECT_THAT(map.Apply(Drain(2)).message(),
              HasSubstr("wanted 2 other servers that live and are not drained, "
                        "one for each replica, found 1"));
}

TEST(PartitionMap, DrainedServerStandsByOnlyIfThereIsNoOther) {
  PartitionMap map = MapOf(8, 3);
  ASSERT_TRUE(map.Apply(Drain(1)).ok());
  while (map.AddMoves()) EndMoves(map);
  ASSERT_TRUE(map.PartsOf(KeyOf(1)).is_empty());
  map.FailServer(KeyOf(2), State::kExited);
  EXPECT_TRUE(map.AddBackups());
  EXPECT_EQ(map.PartsOf(KeyOf(1)).filling, 8);
  EXPECT_FALSE(map.AddMoves());
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(map.Apply({Kind::kMarkInSync, i, map.entry(i).changed}).ok());
  }
  EXPECT_FALSE(map.AddMoves());  // there is nobody who could take it
  ASSERT_TRUE(map.AddServer(KeyOf(2, 2), 1));
  while (map.AddMoves()) EndMoves(map);
  EXPECT_TRUE(map.PartsOf(KeyOf(1)).is_empty());
  EXPECT_TRUE(map.IsReplicated());
}

// The dead server is the primary, the backup or the third copy, with either
// step of a move under way.
TEST(PartitionMap, DeathAtAnyMomentOfAMoveLeavesACopyThatHasAll) {
  for (const uint32_t drained : {1, 2}) {
    for (const uint32_t dead : {1, 2, 3}) {
      PartitionMap map = MapOf(1, 3);  // of servers 1 and 2
      ASSERT_TRUE(map.Apply(Drain(drained)).ok());
      ASSERT_TRUE(map.AddMoves());
      const PartitionMap::Entry before = map.entry(0);
      EXPECT_EQ(before.is_handing_over, drained == 1);
      EXPECT_EQ(before.next == KeyOf(3), drained == 2);
      map.FailServer(KeyOf(dead), State::kExited);
      const PartitionMap::Entry& after = map.entry(0);
      EXPECT_EQ(after.primary, dead == 1 ? before.backup : before.primary);
      EXPECT_TRUE(IsNone(after.next));
      // What the third copy has is not all: it is filled anew.
      EXPECT_EQ(after.in_sync, dead == 3);
      if (dead != 3) {
        EXPECT_FALSE(after.is_handing_over);
        EXPECT_EQ(after.backup, drained == 2 ? KeyOf(3) : WorkerKey());
        for (const Kind late : {Kind::kTakeNext, Kind::kHandOver}) {
          EXPECT_FALSE(map.Apply({late, 0, before.changed}).ok());
        }
      }
    }
  }
}

TEST(PartitionMap, MoveThatIsGivenUpLeavesWhatWas) {
  PartitionMap map = MapOf(1, 3);
  const WorkerKey backup = map.entry(0).backup;
  ASSERT_TRUE(map.Apply(Drain(2)).ok());
  ASSERT_TRUE(map.AddMoves());
  ASSERT_TRUE(map.Apply({Kind::kDropNext, 0, map.entry(0).changed}).ok());
  EXPECT_EQ(map.entry(0).backup, backup);
  EXPECT_TRUE(map.IsReplicated());
  ASSERT_TRUE(map.Apply(Drain(2, false)).ok());
  ASSERT_TRUE(map.Apply(Drain(1)).ok());
  ASSERT_TRUE(map.AddMoves());
  const uint64_t epoch = map.entry(0).epoch;
  const uint64_t changed = map.entry(0).changed;
  ASSERT_TRUE(map.Apply({Kind::kKeepRole, 0, changed}).ok());
  EXPECT_EQ(map.entry(0).epoch, epoch);
  EXPECT_FALSE(map.entry(0).is_handing_over);
  EXPECT_FALSE(map.Apply({Kind::kHandOver, 0, changed}).ok());
}

TEST(PartitionMap, RoleOrCopyOfOneEntryMoves) {
  PartitionMap map = MapOf(4, 4);
  const PartitionMap::Entry before = map.entry(0);
  const auto move = [&](Kind kind, uint32_t server = 0) {
    MapChange change;
    change.kind = kind;
    change.changed = map.entry(0).changed;
    change.server = server;
    return change;
  };
  uint32_t third = 0;
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.key != before.primary && server.key != before.backup) {
      third = server.key.id;
    }
  }
  for (const uint32_t none : {before.primary.id, before.backup.id, 77U}) {
    EXPECT_THAT(map.Apply(move(Kind::kMoveCopy, none)),
                weft::testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                        "cannot be moved"));
  }
  ASSERT_TRUE(map.Apply(move(Kind::kMoveCopy, third)).ok());
  EXPECT_TRUE(map.entry(0).in_sync);
  EXPECT_EQ(map.entry(0).backup, before.backup);
  EXPECT_EQ(map.entry(0).next, KeyOf(third));
  EXPECT_FALSE(map.Apply(move(Kind::kMoveRole)).ok());  // on the move
  ASSERT_TRUE(map.Apply(move(Kind::kTakeNext)).ok());
  ASSERT_TRUE(map.Apply(move(Kind::kMoveRole)).ok());
  EXPECT_TRUE(map.entry(0).is_handing_over);
  EXPECT_FALSE(map.Apply(move(Kind::kMoveCopy, before.backup.id)).ok());
  ASSERT_TRUE(map.Apply(move(Kind::kHandOver)).ok());
  EXPECT_EQ(map.entry(0).primary, KeyOf(third));
  EXPECT_EQ(map.entry(0).backup, before.primary);
  EXPECT_TRUE(map.IsReplicated());
  // Not to one that is drained, or silent, nor while a checkpoint is restored.
  PartitionMap other = map;
  ASSERT_TRUE(other.Apply(Drain(before.primary.id)).ok());
  EXPECT_FALSE(other.Apply(move(Kind::kMoveRole)).ok());
  other = map;
  other.FailServer(before.primary, State::kSilent);
  EXPECT_FALSE(other.Apply(move(Kind::kMoveRole)).ok());
  ASSERT_TRUE(map.Apply(Begin(map.generation() + 1)).ok());
  EXPECT_THAT(map.Apply(move(Kind::kMoveRole)),
              weft::testing::StatusIs(absl::StatusCode::kFailedPrecondition,
                                      "restored"));
}

TEST(PartitionMap, WhatIsEncodedComesBack) {
  PartitionMap map = MapOf(16, 4);
  map.FailServer(KeyOf(1), State::kExited);
  map.FailServer(KeyOf(2), State::kExited);
  map.AddBackups();
  for (int i = 0; i < 16; ++i) {
    ASSERT_TRUE(map.Apply({Kind::kMarkInSync, i, map.entry(i).changed}).ok() ||
                map.entry(i).in_sync || map.lost() > 0);
  }
  map.AddServer(KeyOf(5), 4);
  ASSERT_TRUE(map.Apply(Drain(3)).ok());
  ASSERT_TRUE(map.AddMoves());
  const std::string encoded = map.Encode();
  const auto decoded = PartitionMap::Decode(encoded);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->Encode(), encoded);
  EXPECT_EQ(decoded->Summary(), map.Summary());
  EXPECT_TRUE(decoded->servers()[2].is_drained);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(decoded->entry(i).next, map.entry(i).next);
    EXPECT_EQ(decoded->entry(i).is_handing_over, map.entry(i).is_handing_over);
  }
}

// A map that is taken is one: what is done with it ends no process.
TEST(PartitionMap, EveryCutAndFlippedBitIsRefusedOrAMap) {
  PartitionMap map = MapOf(8, 4);
  map.FailServer(KeyOf(1), State::kExited);
  ASSERT_TRUE(map.Apply(Drain(3)).ok());
  ASSERT_TRUE(map.AddMoves());
  const std::string encoded = map.Encode();
  for (size_t size = 0; size < encoded.size(); ++size) {
    EXPECT_FALSE(PartitionMap::Decode(encoded.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(PartitionMap::Decode(encoded + "x").ok());
  for (size_t bit = 0; bit < 8 * encoded.size(); ++bit) {
    std::string bent = encoded;
    bent[bit / 8] = static_cast<char>(bent[bit / 8] ^ (1 << (bit % 8)));
    auto decoded = PartitionMap::Decode(bent);
    if (!decoded.ok()) continue;
    decoded->AddMoves();
    for (const PartitionMap::Server& server : Servers(4, 3)) {
      decoded->FailServer(server.key, State::kExited);
      decoded->AddBackups();
      decoded->AddServer({server.key.id, 9}, 0);
    }
    decoded->Apply(Begin(decoded->generation() + 1)).IgnoreError();
    EXPECT_TRUE(PartitionMap::Decode(decoded->Encode()).ok());
  }
}

}  // namespace
}  // namespace weft::ps
