#include "weft/ps/server_list.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/replication/partition_map.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ps {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(ServerList, SaysWhatEachServerHas) {
  PartitionMap map = *PartitionMap::Assign(
      8, {{{3, 1}, 0, {}}, {{0, 1}, 1, {}}, {{1, 2}, 2, {}}}, 2);
  MapChange drain;
  drain.kind = MapChange::Kind::kDrain;
  drain.server = 1;
  ASSERT_THAT(map.Apply(drain), IsOk());
  ASSERT_TRUE(map.AddMoves());
  map.FailServer({3, 1}, PartitionMap::State::kSilent);
  const auto list = ServerList::Of(map.Encode());
  ASSERT_THAT(list.status(), IsOk());
  EXPECT_EQ(list->epoch, map.epoch());
  EXPECT_EQ(list->entries, 8);
  EXPECT_EQ(list->lost, 0);
  ASSERT_EQ(list->servers.size(), 3U);
  EXPECT_EQ(list->servers[0].key, (WorkerKey{0, 1}));
  EXPECT_EQ(list->servers[0].state, "live");
  EXPECT_EQ(list->servers[2].state, "silent");
  int primaries = 0;
  for (const ServerList::Server& server : list->servers) {
    EXPECT_EQ(server.is_drained, server.key.id == 1);
    EXPECT_FALSE(server.has_nothing());
    primaries += server.primaries;
  }
  EXPECT_EQ(primaries, 8);
  EXPECT_GT(list->servers[0].filling, 0);
  EXPECT_EQ(list->Find(3), &list->servers[2]);
  EXPECT_EQ(list->Find(7), nullptr);
  ASSERT_EQ(list->placed.size(), 8U);
  EXPECT_EQ(list->placed[2].primary, map.entry(2).primary);
  EXPECT_EQ(list->placed[2].backup, map.entry(2).backup);
}

TEST(ServerList, RefusesWhatIsNoMap) {
  EXPECT_THAT(
      ServerList::Of("none").status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "partition map: wanted"));
}

}  // namespace
}  // namespace weft::ps
