// One rank of a training: what it does after each event.

#include "weft/train/core/step_commit.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

// The names of actions, with what matters of them.
struct NameOf {
  std::string operator()(const StepCommit::MeetAhead&) const { return "ahead"; }
  std::string operator()(const StepCommit::Meet& a) const {
    return absl::StrCat("meet", static_cast<int>(a.reason));
  }
  std::string operator()(const StepCommit::TellPlaces&) const { return "tell"; }
  std::string operator()(const StepCommit::TellDifferences& a) const {
    return absl::StrCat("differ", a.source);
  }
  std::string operator()(const StepCommit::Begin&) const { return "begin"; }
  std::string operator()(const StepCommit::KeepState&) const { return "keep"; }
  std::string operator()(const StepCommit::ShareState& a) const {
    return absl::StrCat("share", a.source);
  }
  std::string operator()(const StepCommit::RestoreState&) const {
    return "restore";
  }
  std::string operator()(const StepCommit::TakePlace& a) const {
    return absl::StrCat(a.has_come ? "come" : "place", a.source);
  }
  std::string operator()(const StepCommit::Train&) const { return "train"; }
  std::string operator()(const StepCommit::Reduce& a) const {
    return absl::StrCat("reduce", a.vote.stops, a.vote.newcomers_wait,
                        a.vote.asked_to_leave, a.vote.leaves);
  }
  std::string operator()(const StepCommit::AbandonStep&) const {
    return "abandon";
  }
  std::string operator()(const StepCommit::TakeStep&) const { return "take"; }
  std::string operator()(const StepCommit::Settle&) const { return "settle"; }
  std::string operator()(const StepCommit::Push&) const { return "push"; }
  std::string operator()(const StepCommit::Save&) const { return "save"; }
  std::string operator()(const StepCommit::SaveAlone&) const {
    return "save alone";
  }
  std::string operator()(const StepCommit::Stop&) const { return "stop"; }
  std::string operator()(const StepCommit::Leave&) const { return "leave"; }
  std::string operator()(const StepCommit::End&) const { return "end"; }
};

constexpr int kLost = static_cast<int>(StepCommit::Reason::kLost);
constexpr int kLostMeeting =
    static_cast<int>(StepCommit::Reason::kLostWhileMeeting);
constexpr int kDifferent = static_cast<int>(StepCommit::Reason::kDifferent);
constexpr int kNewcomers = static_cast<int>(StepCommit::Reason::kNewcomers);
constexpr int kLeavers = static_cast<int>(StepCommit::Reason::kLeavers);

std::string Actions(StepCommit& core, const StepCommit::Event& event) {
  std::vector<StepCommit::Action> actions;
  core.OnEvent(event, &actions);
  return absl::StrJoin(actions, " ",
                       [](std::string* out, const StepCommit::Action& action) {
                         *out += std::visit(NameOf(), action);
                       });
}

RankPlace After(int64_t steps, int64_t epoch = 0, uint64_t fingerprint = 0) {
  return {true, fingerprint, {steps, epoch, false}};
}

// The core of a rank in a group of three that has just begun.
StepCommit Begun(int rank = 0, const StepCommit::Options& options = {}) {
  StepCommit core(options);
  EXPECT_EQ(Actions(core, StepCommit::Started{}), "meet0");
  EXPECT_EQ(Actions(core, StepCommit::Met{rank, 3}), "tell");
  EXPECT_EQ(Actions(core, StepCommit::PlacesTold{std::vector<RankPlace>(3)}),
            "begin");
  EXPECT_EQ(Actions(core, StepCommit::Begun{}), "train");
  return core;
}

// What follows a step with these votes of the others.
std::string AfterStep(StepCommit& core, const StepCommit::PassesDone& done,
                      StepVote votes, bool is_last = false) {
  std::vector<StepCommit::Action> actions;
  core.OnEvent(done, &actions);
  const StepVote own = std::get<StepCommit::Reduce>(actions.at(0)).vote;
  votes.stops += own.stops;
  votes.newcomers_wait += own.newcomers_wait;
  votes.asked_to_leave += own.asked_to_leave;
  votes.leaves += own.leaves;
  votes.next_group_is_made += own.next_group_is_made;
  EXPECT_EQ(Actions(core, StepCommit::Reduced{votes, is_last}), "take");
  return Actions(core, StepCommit::StepTaken{});
}

TEST(StepCommit, SourceIsTheLowestRankAfterMostSteps) {
  EXPECT_EQ(SourceOf({}), -1);
  EXPECT_EQ(SourceOf({RankPlace(), RankPlace()}), -1);
  EXPECT_EQ(SourceOf({After(4), After(5), RankPlace(), After(5)}), 1);
  // One place is at the end of an epoch, the other at the beginning of the
  // next.
  EXPECT_EQ(SourceOf({After(4, 0), After(4, 1)}), 1);
  RankPlace stopped = After(4, 1);
  stopped.position.was_stopped = true;
  EXPECT_EQ(SourceOf({After(4, 1), stopped}), 1);
  // A place that is not known is that of one who has just come.
  RankPlace unknown = After(9);
  unknown.is_known = false;
  EXPECT_EQ(SourceOf({unknown, After(0)}), 1);
}

TEST(StepCommit, StepCountsOnceItIsTaken) {
  StepCommit core = Begun();
  EXPECT_EQ(Actions(core, StepCommit::PassesDone{}), "reduce0000");
  EXPECT_EQ(Actions(core, StepCommit::Reduced{}), "take");
  EXPECT_EQ(core.position().steps, 0);
  EXPECT_EQ(Actions(core, StepCommit::StepTaken{}), "train");
  EXPECT_EQ(core.position().steps, 1);
  EXPECT_EQ(Actions(core, StepCommit::EpochEnded{}), "");
  EXPECT_EQ(core.position().epoch, 1);
}

TEST(StepCommit, StepInWhichARankIsLostIsAbandoned) {
  StepCommit core = Begun();
  Actions(core, StepCommit::PassesDone{});
  EXPECT_EQ(Actions(core, StepCommit::Failed{true}),
            absl::StrCat("abandon meet", kLost));
  EXPECT_EQ(core.position().steps, 0);
  // Between two steps, or at the end.
  core = Begun();
  EXPECT_EQ(Actions(core, StepCommit::Failed{true}),
            absl::StrCat("meet", kLost));
}

TEST(StepCommit, OtherErrorsEndTheTrainingAsDoesAStepThatWasTakenInPart) {
  StepCommit core = Begun();
  Actions(core, StepCommit::PassesDone{});
  EXPECT_EQ(Actions(core, StepCommit::Failed{false}), "abandon end");
  core = Begun();
  Actions(core, StepCommit::PassesDone{});
  Actions(core, StepCommit::Reduced{});
  EXPECT_EQ(Actions(core, StepCommit::Failed{true}), "end");
}

TEST(StepCommit, RankThatIsBehindKeepsItsStateUntilItHasTheOther) {
  StepCommit core = Begun();
  Actions(core, StepCommit::Failed{true});
  EXPECT_EQ(Actions(core, StepCommit::Met{0, 2}), "tell");
  EXPECT_EQ(Actions(core, StepCommit::PlacesTold{{After(0), After(1)}}),
            "keep share1");
  EXPECT_EQ(Actions(core, StepCommit::Failed{true}),
            absl::StrCat("restore meet", kLostMeeting));
  EXPECT_EQ(core.position().steps, 0);
  // What cannot be put back is of no use.
  StepCommit broken = core;
  EXPECT_EQ(Actions(broken, StepCommit::Failed{true}), "end");

  Actions(core, StepCommit::Met{0, 2});
  Actions(core, StepCommit::PlacesTold{{After(0), After(1, 1)}});
  EXPECT_EQ(Actions(core, StepCommit::StateShared{}), "place1 train");
  EXPECT_EQ(core.position(), (StepPosition{1, 1, false}));
  // After the same step the bits are the same.
  Actions(core, StepCommit::Failed{true});
  Actions(core, StepCommit::Met{0, 2});
  EXPECT_EQ(Actions(core, StepCommit::PlacesTold{{After(1), After(1, 1)}}),
            "share1");
}

TEST(StepCommit, NewcomerTakesPlaceAndStateOfTheOthers) {
  StepCommit core({true, absl::Seconds(1)});
  Actions(core, StepCommit::Started{});
  Actions(core, StepCommit::Met{2, 3});
  EXPECT_EQ(
      Actions(core, StepCommit::PlacesTold{{After(7), After(8), RankPlace()}}),
      "share1");
  EXPECT_FALSE(core.is_known());
  EXPECT_EQ(Actions(core, StepCommit::StateShared{}), "come1 train");
  EXPECT_TRUE(core.is_known());
  EXPECT_EQ(core.position().steps, 8);
}

TEST(StepCommit, RankThatTrainsSomethingElseEndsAndTheOthersGoOn) {
  for (const int rank : {0, 1, 2}) {
    StepCommit core({true, absl::Seconds(1)});
    Actions(core, StepCommit::Started{});
    Actions(core, StepCommit::Met{rank, 3});
    EXPECT_EQ(Actions(core, StepCommit::PlacesTold{{RankPlace(), After(3, 0, 5),
                                                    After(2, 0, 5)}}),
              "differ1");
    EXPECT_EQ(Actions(core, StepCommit::DifferencesTold{}),
              rank == 0 ? "end" : absl::StrCat("meet", kDifferent));
  }
}

TEST(StepCommit, VotesOfAllSayWhatFollowsAStep) {
  const StepCommit::PassesDone none;
  StepVote newcomers;
  newcomers.newcomers_wait = 1;
  StepCommit core = Begun();
  EXPECT_EQ(AfterStep(core, none, newcomers), "ahead train");
  StepVote stops = newcomers;
  stops.stops = 1;
  core = Begun();
  EXPECT_EQ(AfterStep(core, none, stops), "stop");
  EXPECT_TRUE(core.position().was_stopped);
  // After the last step nothing is left for anybody to do but to end.
  core = Begun();
  StepVote all = stops;
  all.leaves = all.asked_to_leave = 1;
  EXPECT_EQ(AfterStep(core, none, all, /*is_last=*/true), "train");
  EXPECT_FALSE(core.position().was_stopped);
}

// All go over to the next group after the same step, once each has it.
TEST(StepCommit, GroupWithNewcomersIsMadeWhileThisOneTrains) {
  StepCommit core = Begun();
  StepVote votes;
  StepCommit::PassesDone done;
  done.next_group_is_made = true;  // of no meaning before
  EXPECT_EQ(AfterStep(core, done, votes), "train");
  votes.newcomers_wait = 1;
  EXPECT_EQ(AfterStep(core, {}, votes), "ahead train");
  EXPECT_EQ(AfterStep(core, {}, votes), "train");
  votes.next_group_is_made = 1;  // on another, not on the third
  EXPECT_EQ(AfterStep(core, done, votes), "train");
  votes.next_group_is_made = 2;
  EXPECT_EQ(AfterStep(core, done, votes), absl::StrCat("meet", kNewcomers));

  // Where a rank is lost meanwhile the others meet at once, and the next
  // newcomer is the first again.
  core = Begun();
  EXPECT_EQ(AfterStep(core, {}, votes), "ahead train");
  EXPECT_EQ(Actions(core, StepCommit::PassesDone()), "reduce0000");
  EXPECT_EQ(Actions(core, StepCommit::Failed{/*is_lost=*/true}),
            absl::StrCat("abandon meet", kLost));
  Actions(core, StepCommit::Met{0, 2});
  Actions(core, StepCommit::PlacesTold{{After(1), After(1)}});
  Actions(core, StepCommit::StateShared());
  EXPECT_EQ(AfterStep(core, {}, votes), "ahead train");

  StepCommit::Options options;
  options.meets_ahead = false;
  core = Begun(0, options);
  EXPECT_EQ(AfterStep(core, {}, votes), absl::StrCat("meet", kNewcomers));
}

TEST(StepCommit, RankThatIsAskedLeavesAfterAWhileAndTheOthersMeet) {
  StepCommit core = Begun();
  StepCommit::PassesDone asked;
  asked.is_asked_to_leave = true;
  EXPECT_EQ(AfterStep(core, asked, {}), "train");
  asked.now = asked.now + absl::Seconds(1) - absl::Nanoseconds(1);
  EXPECT_EQ(AfterStep(core, asked, {}), "train");
  asked.now = asked.now + absl::Nanoseconds(1);
  EXPECT_EQ(AfterStep(core, asked, {}), "save leave");
  EXPECT_EQ(core.phase(), StepCommit::Phase::kLeft);

  StepCommit other = Begun(1);
  StepVote leaves;
  leaves.asked_to_leave = leaves.leaves = 1;
  EXPECT_EQ(AfterStep(other, {}, leaves), absl::StrCat("save meet", kLeavers));
  // All have been asked by then.
  other = Begun(1);
  leaves.asked_to_leave = 2;
  EXPECT_EQ(AfterStep(other, asked, leaves), "stop");
}

TEST(StepCommit, RankAskedToEndWhileInNoGroupSavesWhatItHas) {
  const auto end = [](bool by_signal, bool has_trained) {
    StepCommit core = has_trained ? Begun() : StepCommit({});
    Actions(core, has_trained ? StepCommit::Event(StepCommit::Failed{true})
                              : StepCommit::Event(StepCommit::Started{}));
    return Actions(core, StepCommit::MeetingFailed{by_signal});
  };
  EXPECT_EQ(end(/*by_signal=*/true, /*has_trained=*/true), "save alone end");
  EXPECT_EQ(end(false, true), "end");
  EXPECT_EQ(end(true, false), "end");
}

// This happens where a rank's device is lost: neither the reduction nor what
// follows works.
TEST(StepCommit, RankEndsWhoseStepCannotBeAbandoned) {
  StepCommit core = Begun();
  Actions(core, StepCommit::PassesDone{});
  EXPECT_EQ(Actions(core, StepCommit::Failed{/*is_lost=*/false}),
            "abandon end");
  EXPECT_EQ(Actions(core, StepCommit::Failed{/*is_lost=*/false}), "end");
  core = Begun();
  Actions(core, StepCommit::PassesDone{});
  EXPECT_EQ(Actions(core, StepCommit::Failed{/*is_lost=*/true}),
            absl::StrCat("abandon meet", kLost));
  EXPECT_EQ(Actions(core, StepCommit::Failed{/*is_lost=*/true}), "end");
}

TEST(StepCommit, StepIsSettledAndPushedBeforeTheNextOneIsTrained) {
  StepCommit::Options options;
  options.has_tables = true;
  StepCommit core(options);
  Actions(core, StepCommit::Started{});
  Actions(core, StepCommit::Met{1, 2});
  Actions(core, StepCommit::PlacesTold{{RankPlace(), RankPlace()}});
  // Nothing is to be pushed yet.
  EXPECT_EQ(Actions(core, StepCommit::Begun{}), "train");
  Actions(core, StepCommit::PassesDone{});
  EXPECT_EQ(Actions(core, StepCommit::Reduced{}), "take");
  EXPECT_EQ(Actions(core, StepCommit::StepTaken{}), "settle");
  EXPECT_THAT(core.ToString(), HasSubstr("settling a step, 1 steps taken"));
  // Nobody may have pushed; if it is repeated nowhere, the next group does.
  EXPECT_EQ(Actions(core, StepCommit::Failed{/*is_lost=*/true}),
            absl::StrCat("meet", kLost));
  Actions(core, StepCommit::Met{0, 1});
  RankPlace own;
  own.is_known = true;
  own.position = core.position();
  EXPECT_EQ(Actions(core, StepCommit::PlacesTold{{own}}), "share0");
  EXPECT_EQ(Actions(core, StepCommit::StateShared{}), "place0 settle");
  EXPECT_EQ(Actions(core, StepCommit::Settled{}), "push");
  EXPECT_EQ(Actions(core, StepCommit::Pushed{}), "train");
}

// It may not tell the others by its place that the training has stopped.
TEST(StepCommit, RankThatLeavesDoesSoOnceItsPartsArePushed) {
  StepCommit::Options options;
  options.has_tables = true;
  options.leave_after = absl::ZeroDuration();
  StepCommit core(options);
  Actions(core, StepCommit::Started{});
  Actions(core, StepCommit::Met{1, 2});
  Actions(core, StepCommit::PlacesTold{{RankPlace(), RankPlace()}});
  Actions(core, StepCommit::Begun{});
  StepCommit::PassesDone asked;
  asked.is_asked_to_leave = true;
  Actions(core, asked);
  StepCommit::Reduced reduced;
  reduced.votes.asked_to_leave = reduced.votes.leaves = 1;
  Actions(core, reduced);
  EXPECT_EQ(Actions(core, StepCommit::StepTaken{}), "settle");
  EXPECT_FALSE(core.position().was_stopped);
  EXPECT_EQ(Actions(core, StepCommit::Settled{}), "push");
  EXPECT_EQ(Actions(core, StepCommit::Pushed{}), "save leave");
}

TEST(StepCommit, FixedGroupBeginsAtOnceAndEndsWhereARankIsLost) {
  StepCommit core({/*is_elastic=*/false, absl::Seconds(1)});
  EXPECT_EQ(Actions(core, StepCommit::Met{0, 2}), "begin");
  EXPECT_EQ(Actions(core, StepCommit::Begun{{12, 3, false}}), "train");
  EXPECT_EQ(core.position().steps, 12);
  Actions(core, StepCommit::PassesDone{});
  EXPECT_THAT(core.ToString(), HasSubstr("reducing, 12 steps taken"));
  EXPECT_EQ(Actions(core, StepCommit::Failed{true}), "abandon end");
}

}  // namespace
}  // namespace weft::train
