// A roll call as one worker sees it.

#include "weft/rendezvous/core/roll_call_core.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/core/roll_call_members.h"
#include "weft/rendezvous/member.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::vector<std::string> NamesOf(const Roll& roll) {
  std::vector<std::string> names;
  for (const RollEntry& entry : roll.entries) names.push_back(entry.name);
  return names;
}

// --- One worker. -------------------------------------------------------------

View ViewOf(const std::vector<Member>& members,
            std::vector<Departed> departed = {}) {
  return View(MakeEpoch(1, 7), World::Elastic(1, 100), members,
              std::move(departed));
}

// Its value after it has come, as its own write makes it.
std::string Come(const Member& member, const std::string& value,
                 const View& view, const RollTerms& terms,
                 uint64_t ticket = 1) {
  RollCallCore core("g", EntryOf(member, ticket), terms);
  RollCallCore::Step step = core.OnRead(value, view, Instant());
  const auto* const write = std::get_if<RollCallCore::Write>(&step);
  EXPECT_NE(write, nullptr);
  return write == nullptr ? "" : write->value;
}

TEST(RollCallCore, OrderIsOfRolesAndRanksNotOfComing) {
  const std::vector<Member> members = {MemberOf(10, 1), MemberOf(2, 1),
                                       MemberOf(3, 1, "ps")};
  RollTerms terms = TermsOf(1, 10);
  terms.selector = "";
  std::string value;
  for (const Member& member : members) {
    value = Come(member, value, ViewOf(members), terms);
  }
  RollCallCore core("g", EntryOf(members[0], 1), terms);
  RollCallCore::Step step = core.OnRead(value, ViewOf(members), Instant());
  const auto* const roll = std::get_if<Roll>(&step);
  ASSERT_NE(roll, nullptr);
  EXPECT_THAT(NamesOf(*roll), ElementsAre("ps3", "trainer2", "trainer10"));
  EXPECT_EQ(roll->round, 1u);
  EXPECT_EQ(roll->epoch, MakeEpoch(1, 7));
}

TEST(RollCallCore, OtherTermsAreRefusedAndBothAreNamed) {
  const std::vector<Member> members = {MemberOf(0, 1), MemberOf(1, 1)};
  const std::string value =
      Come(members[0], "", ViewOf(members), TermsOf(2, 3));
  RollCallCore core("g", EntryOf(members[1], 1), TermsOf(2, 4, kSecond));
  RollCallCore::Step step = core.OnRead(value, ViewOf(members), Instant());
  const auto* const why = std::get_if<absl::Status>(&step);
  ASSERT_NE(why, nullptr);
  EXPECT_THAT(*why, StatusIs(absl::StatusCode::kFailedPrecondition,
                             "wanted (role=trainer, 2 to 4, last call after "
                             "1s), found (role=trainer, 2 to 3), with which "
                             "trainer0 has come"));
  // Those who came are dead: their terms are nobody's.
  const View alone =
      ViewOf({members[1]}, {{"trainer0", members[0].key, "", false}});
  step = core.OnRead(value, alone, Instant());
  EXPECT_TRUE(std::holds_alternative<RollCallCore::Write>(step));
}

TEST(RollCallCore, LastCallIsCountedFromWhenMinHaveCome) {
  const std::vector<Member> members = {MemberOf(0, 1), MemberOf(1, 1),
                                       MemberOf(2, 1)};
  const RollTerms terms = TermsOf(2, 3, kSecond);
  std::string value = Come(members[0], "", ViewOf(members), terms);
  RollCallCore core("g", EntryOf(members[0], 1), terms);
  const Instant begin = Instant() + absl::Hours(1);
  RollCallCore::Step step = core.OnRead(value, ViewOf(members), begin);
  ASSERT_TRUE(std::holds_alternative<RollCallCore::Wait>(step));
  EXPECT_TRUE(std::get<RollCallCore::Wait>(step).until.is_infinite());
  value = Come(members[1], value, ViewOf(members), terms);
  step = core.OnRead(value, ViewOf(members), begin + absl::Hours(1));
  ASSERT_TRUE(std::holds_alternative<RollCallCore::Wait>(step));
  EXPECT_EQ(std::get<RollCallCore::Wait>(step).until,
            begin + absl::Hours(1) + kSecond);
  EXPECT_THAT(core.Describe(ViewOf(members)),
              AllOf(HasSubstr("round 1: 2 have come (trainer0, trainer1)"),
                    HasSubstr("waiting for trainer2")));
  step = core.OnRead(value, ViewOf(members), begin + absl::Hours(1) + kSecond);
  const auto* const write = std::get_if<RollCallCore::Write>(&step);
  ASSERT_NE(write, nullptr);
  const auto state = RollCallState::Decode(write->value);
  ASSERT_THAT(state, IsOk());
  ASSERT_EQ(state->closed.size(), 1u);
  EXPECT_THAT(NamesOf(state->closed[0]), ElementsAre("trainer0", "trainer1"));
  // A worker that comes later is told where the others are.
  RollCallCore late("g", EntryOf(members[2], 1), terms);
  step = late.OnRead(write->value, ViewOf(members), Instant());
  EXPECT_TRUE(std::holds_alternative<RollCallCore::Write>(step));
  EXPECT_THAT(late.Describe(ViewOf(members)),
              HasSubstr("round 2: 1 have come (trainer2), waiting for trainer0 "
                        "(of round 1), trainer1 (of round 1)"));
}

// As many newcomers as may take part have come, and yet are no group beside the
// one that is there; its members go before them.
TEST(RollCallCore, NewcomersMakeNoGroupWithoutThoseOfTheNewestRoll) {
  const std::vector<Member> members = {MemberOf(0, 1), MemberOf(1, 1),
                                       MemberOf(2, 1)};
  const RollTerms terms = TermsOf(1, 2);
  std::string value = Come(members[2], "", ViewOf({members[2]}), terms);
  value = Come(members[0], value, ViewOf(members), terms);
  value = Come(members[1], value, ViewOf(members), terms);
  auto state = RollCallState::Decode(value);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->round, 2u);
  EXPECT_EQ(state->present.size(), 2u);
  value = Come(members[2], value, ViewOf(members), terms, /*ticket=*/2);
  state = RollCallState::Decode(value);
  ASSERT_THAT(state, IsOk());
  ASSERT_EQ(state->closed.size(), 2u);
  EXPECT_THAT(NamesOf(state->closed[1]), ElementsAre("trainer0", "trainer2"));
  ASSERT_EQ(state->present.size(), 1u);
  EXPECT_EQ(state->present[0].name, "trainer1");
}

TEST(RollCallCore, ClosedRollsThatAreKeptAreBounded) {
  const Member member = MemberOf(0, 1);
  std::string value;
  for (uint64_t ticket = 1; ticket <= 100; ++ticket) {
    value = Come(member, value, ViewOf({member}), TermsOf(1, 1), ticket);
  }
  const auto state = RollCallState::Decode(value);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->round, 101u);
  EXPECT_EQ(state->closed.size(), 8u);
  EXPECT_THAT(state->present, IsEmpty());
}

TEST(RollCallCore, TermsThatCannotBeAreRefused) {
  EXPECT_THAT(TermsOf(1, 1).Validate(), IsOk());
  for (const auto& [min, max] : std::vector<std::pair<int, int>>{
           {0, 1}, {0, 0}, {-1, 2}, {3, 2}, {1, kMostOnARoll + 1}}) {
    EXPECT_THAT(TermsOf(min, max).Validate(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         absl::StrCat("found min ", min, " and max ", max)));
  }
  EXPECT_THAT(TermsOf(1, 1, -kSecond).Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, "last call"));
  RollTerms terms = TermsOf(1, 1);
  terms.selector = "trainer";
  EXPECT_THAT(terms.Validate(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         "selector \"trainer\""));
}

TEST(RollCallState, IsReadAsItWasWrittenAndNoOtherTextIs) {
  const std::vector<Member> members = {MemberOf(0, 1), MemberOf(1, 1)};
  std::string value = Come(members[0], "", ViewOf({members[0]}), TermsOf(1, 3));
  value = Come(members[1], value, ViewOf(members), TermsOf(1, 3, kSecond));
  const auto state = RollCallState::Decode(value);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->Encode(), value);
  EXPECT_EQ(state->terms, TermsOf(1, 3, kSecond));
  ASSERT_EQ(state->present.size(), 1u);
  EXPECT_EQ(state->present[0], EntryOf(members[1], 1));
  int refused = 0;
  for (size_t i = 1; i < value.size(); ++i) {
    std::string other = value;
    other[i] = '\0';
    for (const std::string& text : {value.substr(0, i), other}) {
      const auto read = RollCallState::Decode(text);
      refused += !read.ok();
      if (read.ok()) {
        EXPECT_EQ(read->Encode(), text);
      }
    }
  }
  EXPECT_GT(refused, static_cast<int>(value.size()));
  RollCallCore core("g", EntryOf(members[0], 1), TermsOf(1, 3));
  RollCallCore::Step step = core.OnRead("rubbish", ViewOf(members), Instant());
  ASSERT_TRUE(std::holds_alternative<absl::Status>(step));
  EXPECT_THAT(std::get<absl::Status>(step),
              StatusIs(absl::StatusCode::kInternal, "rubbish"));
}

}  // namespace
}  // namespace weft::rendezvous
