#include "weft/rendezvous/core/member_table.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/proto/coordinator.pb.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;

v1::Member MemberOf(int rank) {
  v1::Member member;
  member.set_name("trainer" + std::to_string(rank));
  member.set_role("trainer");
  member.set_rank(rank);
  member.set_incarnation(100 + rank);
  return member;
}

class MemberTableTest : public ::testing::Test {
 protected:
  MemberTableTest() : table_(1) {
    World world;
    world.roles = {{"trainer", 3}};
    const v1::World wire = ToWire(world);
    table_.Index();
    for (int rank = 0; rank < 3; ++rank) {
      table_.Admit(MemberOf(rank), rank == 0 ? &wire : nullptr,
                   absl::Seconds(rank));
    }
  }

  MemberTable::Slot& At(int rank) {
    return *table_.Find("trainer" + std::to_string(rank));
  }
  std::vector<std::string> Silent(bool is_suspect, absl::Duration from) {
    std::vector<std::string> names;
    for (const MemberTable::Slot* slot : table_.SilentSince(is_suspect, from)) {
      names.push_back(slot->name());
    }
    return names;
  }

  MemberTable table_;
};

TEST_F(MemberTableTest, WatcherGetsTheChangesSinceTheVersionThatItKnows) {
  const Epoch known = table_.version();
  table_.SetPhase(At(1), v1::DRAINED);
  table_.Remove(At(2), "silent", /*left=*/false);
  const auto told = table_.TellTo(known, /*takes_changes=*/true);
  EXPECT_EQ(told->view.since(), known);
  EXPECT_EQ(told->view.version(), table_.version());
  ASSERT_EQ(told->view.members_size(), 1);
  EXPECT_EQ(told->view.members(0).name(), "trainer1");
  ASSERT_EQ(told->view.departed_size(), 1);
  EXPECT_EQ(told->view.departed(0).name(), "trainer2");
  EXPECT_EQ(table_.TellTo(known, true), told);  // made once
  EXPECT_EQ(table_.TellTo(known, /*takes_changes=*/false), table_.Whole());
  EXPECT_EQ(table_.Whole()->view.members_size(), 2);
}

TEST_F(MemberTableTest, SilenceCountsFromWhenEachWasHeard) {
  EXPECT_THAT(Silent(false, absl::Seconds(1)),
              ElementsAre("trainer0", "trainer1"));
  EXPECT_FALSE(table_.Hear(At(0), absl::Seconds(5)));
  table_.SetSuspect(At(1), true);
  EXPECT_THAT(Silent(false, absl::Seconds(9)),
              ElementsAre("trainer2", "trainer0"));
  EXPECT_THAT(Silent(true, absl::Seconds(9)), ElementsAre("trainer1"));
  EXPECT_EQ(table_.LongestSilence(true), absl::Seconds(1));
  EXPECT_TRUE(table_.Hear(At(1), absl::Seconds(6)));
  EXPECT_EQ(table_.LongestSilence(true), std::nullopt);
}

TEST_F(MemberTableTest, KnowsWhoIsIn) {
  EXPECT_EQ(table_.size(), 3);
  EXPECT_EQ(*table_.NameOf(102), "trainer2");
  EXPECT_EQ(table_.FindById(At(2).id()), &At(2));
  table_.Remove(At(2), "left", /*left=*/true);
  EXPECT_EQ(table_.size(), 2);
  EXPECT_EQ(table_.NameOf(102), nullptr);
  EXPECT_THAT(table_.gone(), ElementsAre("trainer2"));
}

// The view has its version, so that a member that knows it need not be told all
// again.
TEST_F(MemberTableTest, SnapshotMakesTheSameViewOfALaterTerm) {
  table_.Remove(At(2), "silent", /*left=*/false);
  std::vector<v1::LogRecord> records;
  table_.Snapshot(&records);
  MemberTable later(2);
  for (const v1::LogRecord& record : records) {
    if (record.has_world()) later.ReplayWorld(record.world(), record.version());
    if (record.has_joined()) {
      later.ReplayJoined(record.joined(), record.version());
    }
    if (record.has_departed()) {
      later.ReplayDeparted(record.departed(), record.version());
    }
  }
  later.Index();
  EXPECT_EQ(later.Whole()->view.digest(), table_.Whole()->view.digest());
  const auto told = later.TellTo(table_.version(), /*takes_changes=*/true);
  EXPECT_EQ(told->view.members_size() + told->view.departed_size(), 0);
}

}  // namespace
}  // namespace weft::rendezvous
