#include "weft/ps/core/replication/dropped_servers.h"

#include <set>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Kind = MapChange::Kind;
using State = PartitionMap::State;

const Instant kStart = Instant() + absl::Seconds(100);

PartitionMap MapOf(int entries, int servers) {
  std::vector<PartitionMap::Server> all;
  for (int i = 0; i < servers; ++i) {
    all.push_back({WorkerKey{static_cast<uint32_t>(i + 1), 1},
                   static_cast<uint32_t>(i), State::kLive});
  }
  return *PartitionMap::Assign(entries, all, 2);
}

PartitionMap Changed(PartitionMap map, Kind kind, int entry,
                     uint32_t server = 0) {
  MapChange change;
  change.kind = kind;
  change.entry = entry;
  change.changed = map.entry(entry).changed;
  change.server = server;
  EXPECT_THAT(map.Apply(change), testing::IsOk());
  return map;
}

std::set<WorkerKey> Dropped(const PartitionMap& before,
                            const PartitionMap& after) {
  DroppedServers dropped;
  dropped.OnChange(before, after, kStart);
  return dropped.At(kStart);
}

TEST(DroppedServers, BackupThatIsDroppedIsAvoidedForAWhile) {
  const PartitionMap map = MapOf(8, 3);
  const WorkerKey backup = map.entry(0).backup;
  DroppedServers dropped;
  dropped.OnChange(map, Changed(map, Kind::kDropBackup, 0), kStart);
  EXPECT_THAT(dropped.At(kStart), ElementsAre(backup));
  const absl::Duration almost = DroppedServers::kAvoidFor - absl::Seconds(1);
  EXPECT_THAT(dropped.At(kStart + almost), ElementsAre(backup));
  EXPECT_THAT(dropped.At(kStart + DroppedServers::kAvoidFor), IsEmpty());
}

TEST(DroppedServers, BackupThatWasChosenAgainInTheSameMapWasDropped) {
  const PartitionMap map = MapOf(8, 2);
  PartitionMap after = Changed(map, Kind::kDropBackup, 0);
  ASSERT_TRUE(after.AddBackups());
  ASSERT_EQ(after.entry(0).backup, map.entry(0).backup);
  EXPECT_THAT(Dropped(map, after), ElementsAre(map.entry(0).backup));
}

TEST(DroppedServers, PrimaryWhoseBackupTookItsPlaceWasDropped) {
  const PartitionMap map = MapOf(8, 3);
  const PartitionMap after = Changed(map, Kind::kPromote, 0);
  EXPECT_THAT(Dropped(map, after), ElementsAre(map.entry(0).primary));
}

TEST(DroppedServers, ServerThatTheMembershipHasLostIsNotOne) {
  const PartitionMap map = MapOf(8, 3);
  PartitionMap after = map;
  ASSERT_TRUE(after.FailServer(map.entry(0).primary, State::kExited));
  EXPECT_THAT(Dropped(map, after), IsEmpty());
}

TEST(DroppedServers, MovesDropNobody) {
  PartitionMap map = MapOf(8, 3);
  uint32_t third = 0;
  for (const PartitionMap::Server& server : map.servers()) {
    if (server.key != map.entry(0).primary &&
        server.key != map.entry(0).backup) {
      third = server.key.id;
    }
  }
  const PartitionMap moving = Changed(map, Kind::kMoveCopy, 0, third);
  EXPECT_THAT(Dropped(map, moving), IsEmpty());
  const PartitionMap taken = Changed(moving, Kind::kTakeNext, 0);
  EXPECT_THAT(Dropped(moving, taken), IsEmpty());
  const PartitionMap giving = Changed(taken, Kind::kMoveRole, 0);
  EXPECT_THAT(Dropped(taken, giving), IsEmpty());
  EXPECT_THAT(Dropped(giving, Changed(giving, Kind::kHandOver, 0)), IsEmpty());
  // One that was being filled, and is silent.
  EXPECT_THAT(Dropped(moving, Changed(moving, Kind::kDropNext, 0)),
              ElementsAre(WorkerKey{third, 1}));
}

TEST(DroppedServers, OthersStandByWhereThereAreOthers) {
  PartitionMap map = MapOf(64, 3);
  const WorkerKey stopped = map.servers()[0].key;
  DroppedServers dropped;
  for (int i = 0; i < map.entries(); ++i) {
    const PartitionMap before = map;
    if (map.entry(i).backup == stopped) {
      map = Changed(map, Kind::kDropBackup, i);
    } else if (map.entry(i).primary == stopped) {
      map = Changed(map, Kind::kPromote, i);
    } else {
      continue;
    }
    dropped.OnChange(before, map, kStart);
    ASSERT_TRUE(map.AddBackups(dropped.At(kStart)));
  }
  EXPECT_TRUE(map.PartsOf(stopped).is_empty());
  // Without another one it is better than none.
  PartitionMap two = MapOf(8, 2);
  const WorkerKey backup = two.entry(0).backup;
  two = Changed(two, Kind::kDropBackup, 0);
  ASSERT_TRUE(two.AddBackups({backup}));
  EXPECT_EQ(two.entry(0).backup, backup);
}

}  // namespace
}  // namespace weft::ps
