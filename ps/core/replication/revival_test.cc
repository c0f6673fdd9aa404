// What becomes of an entry whose copies have all gone, where servers have logs.

#include "weft/ps/core/replication/revival.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/ps/core/replication/replication_model.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = MapChange::Kind;
using State = PartitionMap::State;

const WorkerKey kA = {1, 1};
const WorkerKey kB = {2, 1};
const WorkerKey kA2 = {1, 2};
const WorkerKey kB2 = {2, 2};

// One entry: its primary is A, its backup B.
PartitionMap Map(bool has_log = true) {
  return *PartitionMap::Assign(1,
                               {{kA, 0, State::kLive, false, has_log},
                                {kB, 1, State::kLive, false, has_log}},
                               2);
}

MapChange Change(Kind kind, const PartitionMap& map, uint32_t server) {
  MapChange change;
  change.kind = kind;
  change.changed = map.entry(0).changed;
  change.server = server;
  return change;
}

TEST(Heirs, AreBothWhereNeitherWentOnAlone) {
  PartitionMap map = Map();
  const uint64_t before = map.epoch();
  EXPECT_TRUE(map.FailServers({kB, kA}));
  EXPECT_EQ(map.epoch(), before + 1);
  EXPECT_EQ(map.lost(), 1);
  EXPECT_THAT(map.entry(0).heirs, ElementsAre(kA, kB));
  const auto read = PartitionMap::Decode(map.Encode());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->entry(0).heirs, ElementsAre(kA, kB));
  EXPECT_TRUE(read->servers()[0].has_log);
  EXPECT_FALSE(map.FailServers({kA, kB}));
}

TEST(Heirs, AreTheOneThatWentOn) {
  PartitionMap promoted = Map();
  promoted.FailServers({kA});
  promoted.FailServers({kB});
  EXPECT_THAT(promoted.entry(0).heirs, ElementsAre(kB));
  PartitionMap dropped = Map();
  ASSERT_TRUE(dropped.Apply(Change(Kind::kDropBackup, dropped, 0)).ok());
  dropped.FailServers({kA, kB});
  EXPECT_THAT(dropped.entry(0).heirs, ElementsAre(kA));
}

TEST(Heirs, AreNoneWithoutALog) {
  PartitionMap map = Map(/*has_log=*/false);
  ASSERT_TRUE(map.SetLogged(kB));
  EXPECT_FALSE(map.SetLogged(kB));
  PartitionMap none = Map(/*has_log=*/false);
  map.FailServers({kA, kB});
  none.FailServers({kA, kB});
  EXPECT_THAT(map.entry(0).heirs, ElementsAre(kB));
  EXPECT_THAT(none.entry(0).heirs, IsEmpty());
}

TEST(Heirs, TheFirstThatIsBackIsThePrimaryAndTheOtherComesTooLate) {
  PartitionMap map = Map();
  map.FailServers({kA, kB});
  EXPECT_FALSE(map.Apply(Change(Kind::kRevive, map, kA.id)).ok());  // is away
  map.AddServer(kA2, 0);
  map.AddServer(kB2, 1);
  map.AddServer({3, 1}, 2);
  EXPECT_FALSE(map.Apply(Change(Kind::kRevive, map, 3)).ok());  // is no heir
  const MapChange late = Change(Kind::kRevive, map, kA.id);
  ASSERT_TRUE(map.Apply(Change(Kind::kRevive, map, kB.id)).ok());
  EXPECT_FALSE(map.Apply(late).ok());
  EXPECT_EQ(map.entry(0).primary, kB2);
  EXPECT_EQ(map.entry(0).epoch, map.epoch());
  EXPECT_FALSE(map.entry(0).in_sync);
  EXPECT_THAT(map.entry(0).heirs, IsEmpty());
}

TEST(Heirs, DisownOneByOneAndARestoreEndsTheWait) {
  PartitionMap map = Map();
  map.FailServers({kA, kB});
  map.AddServer(kA2, 0);
  map.AddServer(kB2, 1);
  PartitionMap restored = map;
  ASSERT_TRUE(map.Apply(Change(Kind::kDisown, map, kA.id)).ok());
  EXPECT_THAT(map.entry(0).heirs, ElementsAre(kB));
  EXPECT_FALSE(IsLostAt(Durability::kD3, map.entry(0)));
  EXPECT_TRUE(IsLostAt(Durability::kD2, map.entry(0)));
  ASSERT_TRUE(map.Apply(Change(Kind::kDisown, map, kB.id)).ok());
  EXPECT_TRUE(IsLostAt(Durability::kD3, map.entry(0)));
  MapChange restore;
  restore.kind = Kind::kBeginRestore;
  restore.generation = 7;
  ASSERT_TRUE(restored.Apply(restore).ok());
  EXPECT_THAT(restored.entry(0).heirs, IsEmpty());
  EXPECT_FALSE(restored.Apply(Change(Kind::kRevive, restored, kA.id)).ok());
}

TEST(Revivals, AreOfWhatTheLogHasAndTheFormerBackupIsPatient) {
  PartitionMap map = Map();
  map.FailServers({kA, kB});
  const auto kinds = [&](WorkerKey self, const std::set<WorkerKey>& owners,
                         bool is_whole, bool is_patient) {
    std::vector<Kind> wanted;
    for (const MapChange& change : Revivals(
             map, self, owners, [&](int) { return is_whole; }, is_patient)) {
      EXPECT_EQ(change.server, self.id);
      wanted.push_back(change.kind);
    }
    return wanted;
  };
  EXPECT_THAT(kinds(kA2, {kA}, true, true), IsEmpty());  // not in the map
  map.AddServer(kA2, 0);
  map.AddServer(kB2, 1);
  EXPECT_THAT(kinds(kA2, {kA}, true, true), ElementsAre(Kind::kRevive));
  EXPECT_THAT(kinds(kB2, {kB}, true, true), IsEmpty());
  EXPECT_THAT(kinds(kB2, {kB}, true, false), ElementsAre(Kind::kRevive));
  EXPECT_THAT(kinds(kB2, {}, true, true), ElementsAre(Kind::kDisown));
  EXPECT_THAT(kinds(kA2, {kA}, false, true), ElementsAre(Kind::kDisown));
}

std::vector<DiskRecord> Disk() {
  DiskRecord record;
  record.log_entry.lsn = {1, 1};
  record.log_entry.mark = {7, 1, 1};
  record.log_entry.payload = Bytes::Copy(absl::string_view("p"));
  return {record};
}

ServerModel::Options Options() {
  ServerModel::Options options;
  options.replica.level = Durability::kD3;
  return options;
}

// The map that it finds may name those that have died, until they are known to
// have.
TEST(RecoveredReplica, KeepsWhatItHasUntilItServesItOrAnotherOneDoes) {
  const Instant now;
  for (const bool other_goes_on : {false, true}) {
    PartitionMap map = Map();
    ServerModel server(kA2, map, Options(), now, Disk());
    EXPECT_THAT(server.cells[0].rows, ElementsAre("p"));
    EXPECT_TRUE(server.cells[0].replica.has_content());
    map.FailServers(other_goes_on ? std::vector<WorkerKey>{kA}
                                  : std::vector<WorkerKey>{kA, kB});
    map.AddServer(kA2, 0);
    server.OnMap(map, now);
    if (other_goes_on) {
      EXPECT_THAT(server.cells[0].rows, IsEmpty());
      EXPECT_FALSE(server.cells[0].replica.has_content());
      continue;
    }
    EXPECT_THAT(server.cells[0].rows, ElementsAre("p"));
    ASSERT_TRUE(map.Apply(Change(Kind::kRevive, map, kA.id)).ok());
    server.OnMap(map, now);
    EXPECT_TRUE(server.cells[0].replica.is_primary());
    EXPECT_THAT(server.cells[0].rows, ElementsAre("p"));
    EXPECT_EQ(server.cells[0].replica.AppliedThrough(7), 1u);
    EXPECT_EQ(server.cells[0].replica.StableThrough(7), 1u);
  }
}

}  // namespace
}  // namespace weft::ps
