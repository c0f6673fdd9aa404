// Tests of what a member takes for a view, whoever sent it.

#include "weft/rendezvous/view.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/wire.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr int kMost = std::numeric_limits<int>::max();

// ps0 in the world ps=2.
v1::View ViewOfOne() {
  v1::View view;
  view.set_version(MakeEpoch(1, 2));
  *view.mutable_world() = ToWire(World::Fixed(2, 0));
  v1::Member* member = view.add_members();
  member->set_name("ps0");
  member->set_role("ps");
  member->mutable_key()->set_epoch(MakeEpoch(1, 1));
  return view;
}

TEST(View, IsReadAsACoordinatorSendsIt) {
  v1::View view = ViewOfOne();
  v1::Member* admin = view.add_members();
  admin->set_name("admin0");
  admin->set_role("admin");
  admin->mutable_key()->set_id(2);
  view.add_departed()->set_name("ps1");
  const auto read = ReadView(view);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->Summary(), "1/2 joined, missing ps1");
  // Before the first worker there is no world.
  EXPECT_THAT(ReadView(v1::View()), IsOk());
  *view.mutable_world() = ToWire(World::Elastic(2, kMaxWorkers));
  const auto elastic = ReadView(view);
  ASSERT_THAT(elastic, IsOk());
  EXPECT_EQ(elastic->Summary(), "1 joined (2 to 65536), missing 1 more");
}

TEST(View, IsRefusedAsNoCoordinatorSendsIt) {
  const std::vector<std::pair<std::function<void(v1::View&)>, std::string>>
      cases = {
          {[](v1::View& v) {
             (*v.mutable_world()->mutable_roles())["ps"] = kMost;
           },
           "ps=2147483647: at most 65536 workers"},
          {[](v1::View& v) {
             (*v.mutable_world()->mutable_roles())["ps"] = -1;
           },
           "role \"ps\" = -1"},
          {[](v1::View& v) {
             (*v.mutable_world()->mutable_roles())["a b"] = 1;
           },
           "worker name \"a b0\""},
          {[](v1::View& v) { v.mutable_world()->set_max(kMost); },
           "at most 65536 workers"},
          {[](v1::View& v) {
             v.mutable_world()->clear_roles();
             v.mutable_world()->set_min(-1);
           },
           "wanted at least 1 worker"},
          {[](v1::View& v) { v.mutable_members(0)->set_name("ps0\x1b[2J"); },
           "worker name"},
          {[](v1::View& v) { v.mutable_members(0)->set_rank(-1); },
           "rank -1, which has no place"},
          {[](v1::View& v) { v.mutable_members(0)->set_rank(1); },
           "ps0 is role \"ps\", rank 1"},
          {[](v1::View& v) { *v.add_members() = v.members(0); },
           "two members of the name ps0"},
          {[](v1::View& v) {
             *v.add_members() = v.members(0);
             v.mutable_members(1)->set_name("ps1");
             v.mutable_members(1)->set_rank(1);
           },
           "two members of the id 0"},
          {[](v1::View& v) { v.add_departed(); }, "worker name \"\""},
          {[](v1::View& v) {
             while (v.departed_size() < kMaxNames) {
               v.add_departed()->set_name("ps1");
             }
           },
           "at most 131072"},
      };
  for (const auto& [change, message] : cases) {
    v1::View view = ViewOfOne();
    change(view);
    EXPECT_THAT(ReadView(view),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
  }
}

TEST(View, ContainsAdmittedMembers) {
  v1::View view = ViewOfOne();
  v1::WorkerKey key = view.members(0).key();
  EXPECT_THAT(CheckHas(view, "ps0", key), IsOk());
  EXPECT_THAT(
      CheckHas(view, "ps1", key),
      StatusIs(absl::StatusCode::kInvalidArgument, "let ps1 in as 0@1.1"));
  key.set_id(1);
  EXPECT_THAT(
      CheckHas(view, "ps0", key),
      StatusIs(absl::StatusCode::kInvalidArgument, "let ps0 in as 1@1.1"));
  *view.mutable_members(0)->mutable_key() = {};
  key = {};
  EXPECT_THAT(CheckHas(view, "ps0", key),
              StatusIs(absl::StatusCode::kInvalidArgument, "as 0@0.0"));
}

// A view of `size` members, some of them suspect and some names gone.
v1::View SomeView(uint32_t size, Epoch version) {
  v1::View view;
  view.set_version(version);
  *view.mutable_world() = ToWire(World::Fixed(0, static_cast<int>(size)));
  for (uint32_t id = 0; id < size; ++id) {
    v1::Departed departed;
    departed.set_name(absl::StrCat("trainer", id));
    departed.mutable_key()->set_id(id);
    departed.mutable_key()->set_epoch(MakeEpoch(1, id + 1));
    if (id % 3 == 0) *view.add_departed() = departed;
    if (id % 5 == 0) continue;
    v1::Member& member = *view.add_members();
    member.set_name(departed.name());
    member.set_role("trainer");
    member.set_rank(static_cast<int>(id));
    *member.mutable_key() = departed.key();
    member.mutable_key()->set_epoch(MakeEpoch(1, 100 + id));
    member.set_suspect(id % 7 == 0);
  }
  view.set_digest(DigestOf(view));
  return view;
}

// Member 1 has left, 5 has joined, 2 is drained.
v1::View ChangesOf(const v1::View& view, Epoch version) {
  v1::View changes;
  changes.set_version(version);
  changes.set_since(view.version());
  uint64_t digest = view.digest();
  for (const v1::Member& member : view.members()) {
    if (member.key().id() == 1) {
      digest -= DigestOf(member);
      v1::Departed& left = *changes.add_departed();
      left.set_name(member.name());
      *left.mutable_key() = member.key();
      digest += DigestOf(left);
    } else if (member.key().id() == 2) {
      digest -= DigestOf(member);
      v1::Member& drained = *changes.add_members() = member;
      drained.set_phase(v1::DRAINED);
      digest += DigestOf(drained);
    } else if (member.suspect() && TermOf(version) > TermOf(view.version())) {
      v1::Member heard = member;
      heard.set_suspect(false);
      digest += DigestOf(heard) - DigestOf(member);
    }
  }
  v1::Member& joined = *changes.add_members();
  joined.set_name("trainer5");
  joined.set_role("trainer");
  joined.set_rank(5);
  joined.mutable_key()->set_id(5);
  joined.mutable_key()->set_epoch(version);
  changes.set_digest(digest + DigestOf(joined));
  return changes;
}

TEST(View, IsMadeOfAnEarlierOneAndItsChanges) {
  const v1::View before = SomeView(30, MakeEpoch(1, 200));
  const v1::View changes = ChangesOf(before, MakeEpoch(1, 203));
  const auto merged = Merge(before, changes);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(CheckView(*merged), IsOk());
  const View view = FromWire(*merged);
  EXPECT_EQ(view.version(), MakeEpoch(1, 203));
  EXPECT_EQ(view.world(), World::Fixed(0, 30));
  EXPECT_EQ(view.members().size(), FromWire(before).members().size());
  EXPECT_EQ(view.Find("trainer1"), nullptr);
  EXPECT_TRUE(view.IsGone({1, MakeEpoch(1, 101)}));
  EXPECT_EQ(view.Find("trainer2")->phase, Phase::kDrained);
  EXPECT_NE(view.Find("trainer5"), nullptr);
  EXPECT_TRUE(view.Find("trainer7")->suspect);
  EXPECT_FALSE(FromWire(before).Find("trainer7") == nullptr);

  // What a later view has already is no harm; a gap is.
  v1::View later = *merged;
  later.set_version(MakeEpoch(1, 202));
  EXPECT_THAT(Merge(later, changes), IsOk());
  later.set_version(MakeEpoch(1, 199));
  EXPECT_THAT(Merge(later, changes),
              StatusIs(absl::StatusCode::kDataLoss, "do not fit the view"));
}

TEST(View, SuspicionEndsWithTheTermOfItsCoordinator) {
  const v1::View before = SomeView(30, MakeEpoch(1, 200));
  const auto merged = Merge(before, ChangesOf(before, MakeEpoch(2, 1)));
  ASSERT_THAT(merged, IsOk());
  EXPECT_FALSE(FromWire(*merged).Find("trainer7")->suspect);
}

TEST(View, ChangesOfAnotherViewAreRefused) {
  const v1::View changes =
      ChangesOf(SomeView(30, MakeEpoch(1, 200)), MakeEpoch(1, 203));
  for (const int other : {0, 1, 2, 3}) {
    v1::View before = SomeView(30, MakeEpoch(1, 200));
    if (other == 0) before.mutable_members()->RemoveLast();
    if (other == 1) before.mutable_departed()->RemoveLast();
    if (other == 2) before.mutable_members(9)->set_phase(v1::QUIESCING);
    if (other == 3) before.mutable_members(9)->mutable_key()->set_epoch(1);
    EXPECT_THAT(Merge(before, changes), StatusIs(absl::StatusCode::kDataLoss))
        << other;
  }
}

TEST(View, TakesAnUnknownPhaseForTheNearest) {
  v1::View view = ViewOfOne();
  const auto read = [&](int phase) {
    view.mutable_members(0)->set_phase(static_cast<v1::Phase>(phase));
    return FromWire(view).members()[0].phase;
  };
  EXPECT_EQ(read(-7), Phase::kActive);
  EXPECT_EQ(read(1), Phase::kQuiescing);
  EXPECT_EQ(read(99), Phase::kDrained);
}

TEST(View, NamesTheFirstOfManyMissingMembers) {
  v1::View view = ViewOfOne();
  *view.mutable_world() = ToWire(World::Fixed(kMaxWorkers, 0));
  const std::string summary = FromWire(view).Summary();
  EXPECT_THAT(summary, HasSubstr("1/65536 joined, missing ps1, ps2,"));
  EXPECT_TRUE(absl::EndsWith(summary, ", ps32 and 65503 more")) << summary;
}

}  // namespace
}  // namespace weft::rendezvous
