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
  v1::JoinReply reply;
  *reply.mutable_view() = ViewOfOne();
  *reply.mutable_key() = reply.view().members(0).key();
  EXPECT_THAT(CheckJoined(reply, "ps0"), IsOk());
  EXPECT_THAT(
      CheckJoined(reply, "ps1"),
      StatusIs(absl::StatusCode::kInvalidArgument, "let ps1 in as 0@1.1"));
  reply.mutable_key()->set_id(1);
  EXPECT_THAT(
      CheckJoined(reply, "ps0"),
      StatusIs(absl::StatusCode::kInvalidArgument, "let ps0 in as 1@1.1"));
  *reply.mutable_view()->mutable_members(0)->mutable_key() = {};
  *reply.mutable_key() = {};
  EXPECT_THAT(CheckJoined(reply, "ps0"),
              StatusIs(absl::StatusCode::kInvalidArgument, "as 0@0.0"));
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
