// What a member does by itself: joins, hears of its coordinator, and is out.

#include "weft/rendezvous/core/member_core.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/base/parker.h"
#include "weft/net/call/connection_reset.h"
#include "weft/rendezvous/client/store_client.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/membership_fixture.h"
#include "weft/rendezvous/wire.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

// A worker that has joined, and what it sends next.
class JoinedMember {
 public:
  explicit JoinedMember(bool is_durable) {
    const auto sent = SentBy(core_.OnEvent(now_, MemberCore::Start{}));
    v1::JoinReply joined = Admission();
    joined.set_is_durable(is_durable);
    Take(core_.OnEvent(now_, MemberCore::Replied{sent.at(0), joined}));
  }

  static MemberCore::Options OptionsOfIt() {
    MemberCore::Options options;
    options.job = "job";
    options.coordinator = "10.0.0.1:7000";
    options.self.set_name("trainer1");
    return options;
  }
  static v1::JoinReply Admission() {
    v1::JoinReply joined;
    joined.mutable_key()->set_id(1);
    joined.mutable_key()->set_epoch(MakeEpoch(1, 1));
    joined.mutable_view()->set_version(MakeEpoch(1, 2));
    joined.mutable_view()->add_members()->set_name("trainer1");
    *joined.mutable_view()->mutable_members(0)->mutable_key() = joined.key();
    return joined;
  }

  // Each held Watch is answered at once.
  int AnswerWatchesFor(absl::Duration time, const v1::WatchReply& reply) {
    int asked = 0;
    const Instant until = now_ + time;
    for (; now_ < until; now_ += absl::Milliseconds(10)) {
      Take(core_.OnEvent(now_, MemberCore::Timer{}));
      while (watch_ != 0 && state() != MemberCore::State::kEnded) {
        ++asked;
        if (asked > 100000) return asked;
        Take(core_.OnEvent(
            now_, MemberCore::Replied{std::exchange(watch_, 0), reply}));
      }
    }
    return asked;
  }

  // Every request fails for so long.
  void FailFor(absl::Duration time, const absl::Status& why) {
    const Instant until = now_ + time;
    while (now_ < until && state() != MemberCore::State::kEnded) {
      now_ += absl::Milliseconds(100);
      Take(core_.OnEvent(now_, MemberCore::Timer{}));
      for (const uint64_t call : std::exchange(open_, {})) {
        Take(core_.OnEvent(now_, MemberCore::Replied{call, why}));
      }
    }
  }
  // Each heartbeat is answered `delay` after it was sent, or given up before.
  // Timers fire when they are due and no earlier. Returns how many were sent.
  int AnswerHeartbeatsLate(absl::Duration delay, absl::Duration time) {
    int sent = 0;
    const Instant until = now_ + time;
    Instant given_up;
    uint64_t call = 0;
    // The first was set as it joined.
    std::vector<Instant> timers = {now_ + OptionsOfIt().heartbeat_interval};
    Instant answered;
    const auto take = [&](const MemberCore::Actions& actions) {
      Take(actions);
      for (const auto& action : actions) {
        if (const auto* timer = std::get_if<MemberCore::SetTimer>(&action)) {
          timers.push_back(now_ + timer->after);
        }
        const auto* send = std::get_if<MemberCore::Send>(&action);
        if (send == nullptr ||
            !std::holds_alternative<v1::HeartbeatRequest>(send->request)) {
          continue;
        }
        ++sent;
        call = send->call;
        answered = now_ + delay;
        given_up = now_ + send->timeout;
      }
    };
    for (; now_ < until && state() != MemberCore::State::kEnded;
         now_ += absl::Milliseconds(10)) {
      for (size_t i = 0; i < timers.size();) {
        if (timers[i] > now_) {
          ++i;
          continue;
        }
        timers.erase(timers.begin() + i);
        take(core_.OnEvent(now_, MemberCore::Timer{}));
      }
      if (call != 0 && now_ >= std::min(answered, given_up)) {
        absl::StatusOr<MemberCore::Reply> reply = v1::HeartbeatReply();
        if (given_up < answered) reply = absl::DeadlineExceededError("late");
        take(core_.OnEvent(now_,
                           MemberCore::Replied{std::exchange(call, 0), reply}));
      }
    }
    return sent;
  }
  // This worker itself does not run for so long; the answers that it waited for
  // are late then.
  void BeStoppedFor(absl::Duration time) {
    now_ += time;
    for (const uint64_t call : std::exchange(open_, {})) {
      Take(core_.OnEvent(now_, MemberCore::Replied{
                                   call, absl::DeadlineExceededError("late")}));
    }
    Take(core_.OnEvent(now_, MemberCore::Timer{}));
  }
  void SeeEndOf(WorkerKey key) {
    Take(core_.OnEvent(now_, MemberCore::MemberEnded{key}));
  }
  void SeeView(const v1::View& view) {
    v1::WatchReply seen;
    *seen.mutable_view() = view;
    Take(core_.OnEvent(now_, MemberCore::Replied{watch_, seen}));
  }
  void PassTime(absl::Duration time) {
    now_ += time;
    Take(core_.OnEvent(now_, MemberCore::Timer{}));
  }
  // The last that it has shown.
  const v1::View& shown() const { return shown_; }
  // The last that it has sent.
  const v1::WatchRequest& watching() const { return watching_; }
  const v1::HeartbeatRequest& beating() const { return beating_; }
  void SeeHostRun() { Take(core_.OnEvent(now_, MemberCore::HostRan{})); }
  void SeeHostEnd() { Take(core_.OnEvent(now_, MemberCore::HostEnded{"ps0"})); }
  void WantToLeave() { Take(core_.OnEvent(now_, MemberCore::WantToLeave{})); }
  // The held Watch is answered by the view in which this worker has left.
  void SeeItselfGone() {
    v1::WatchReply seen;
    seen.mutable_view()->set_version(MakeEpoch(1, 9));
    auto* gone = seen.mutable_view()->add_departed();
    gone->mutable_key()->set_id(1);
    gone->mutable_key()->set_epoch(MakeEpoch(1, 1));
    Take(core_.OnEvent(now_, MemberCore::Replied{watch_, seen}));
  }

  MemberCore::State state() const { return core_.state(); }
  const absl::Status& end() const { return end_; }

 private:
  std::vector<uint64_t> SentBy(const MemberCore::Actions& actions) {
    std::vector<uint64_t> sent;
    for (const auto& action : actions) {
      if (const auto* send = std::get_if<MemberCore::Send>(&action)) {
        sent.push_back(send->call);
        if (auto* watch = std::get_if<v1::WatchRequest>(&send->request)) {
          watch_ = send->call;
          watching_ = *watch;
        } else if (auto* beat =
                       std::get_if<v1::HeartbeatRequest>(&send->request)) {
          beating_ = *beat;
        }
      } else if (const auto* end = std::get_if<MemberCore::Ended>(&action)) {
        end_ = end->status;
      } else if (const auto* now = std::get_if<MemberCore::NewView>(&action)) {
        shown_ = *now->view;
      }
    }
    return sent;
  }
  void Take(const MemberCore::Actions& actions) {
    for (const uint64_t call : SentBy(actions)) open_.push_back(call);
  }

  Instant now_;
  MemberCore core_{OptionsOfIt(), now_};
  std::vector<uint64_t> open_;
  uint64_t watch_ = 0;
  v1::WatchRequest watching_;
  v1::HeartbeatRequest beating_;
  v1::View shown_;
  absl::Status end_ = absl::UnknownError("goes on");
};

TEST(MemberCore,
     WaitsAMinuteForACoordinatorWithALogAndTenSecondsForOneWithout) {
  const absl::Status refused = absl::UnavailableError("connection refused");
  for (const bool is_durable : {true, false}) {
    JoinedMember member(is_durable);
    member.FailFor(absl::Seconds(is_durable ? 59 : 9), refused);
    EXPECT_EQ(member.state(), MemberCore::State::kIn);
    member.FailFor(absl::Seconds(2), refused);
    EXPECT_THAT(member.end(),
                StatusIs(absl::StatusCode::kUnavailable, "connection refused"));
    EXPECT_EQ(absl::StrContains(member.end().message(), "--coordinator-log"),
              !is_durable);
  }
}

TEST(MemberCore, CoordinatorThatAnswersLateIsHeard) {
  for (const bool is_durable : {true, false}) {
    JoinedMember member(is_durable);
    EXPECT_GE(member.AnswerHeartbeatsLate(absl::Seconds(5), absl::Minutes(3)),
              20);
    EXPECT_EQ(member.state(), MemberCore::State::kIn) << member.end();
  }
}

TEST(MemberCore, CoordinatorThatDoesNotAnswerIsSilentAsLongAsOneThatRefuses) {
  for (const bool is_durable : {true, false}) {
    JoinedMember member(is_durable);
    member.AnswerHeartbeatsLate(absl::Hours(1),
                                absl::Seconds(is_durable ? 59 : 9));
    EXPECT_EQ(member.state(), MemberCore::State::kIn);
    JoinedMember other(is_durable);
    other.AnswerHeartbeatsLate(absl::Hours(1),
                               absl::Seconds(is_durable ? 64 : 14));
    EXPECT_THAT(other.end(), StatusIs(absl::StatusCode::kUnavailable,
                                      "the coordinator has been silent for "));
  }
}

// The coordinator has no log; one with a log is waited for as long anyway.
TEST(MemberCore, CoordinatorWhoseProcessRunsIsWaitedForAMinute) {
  const absl::Status late = absl::DeadlineExceededError("late");
  JoinedMember member(/*is_durable=*/false);
  for (int i = 0; i < 11; ++i) {
    member.SeeHostRun();
    member.FailFor(absl::Seconds(5), late);
  }
  EXPECT_EQ(member.state(), MemberCore::State::kIn);
  for (int i = 0; i < 2; ++i) {
    member.SeeHostRun();
    member.FailFor(absl::Seconds(5), late);
  }
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kUnavailable,
                                     "the coordinator has been silent for 1m"));
}

TEST(MemberCore, CoordinatorWhoseProcessRunsNoMoreIsGivenUpTenSecondsLater) {
  const absl::Status late = absl::DeadlineExceededError("late");
  JoinedMember member(/*is_durable=*/false);
  member.FailFor(absl::Seconds(8), late);
  member.SeeHostRun();
  member.FailFor(absl::Seconds(9), late);
  EXPECT_EQ(member.state(), MemberCore::State::kIn);
  member.FailFor(absl::Seconds(2), late);
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kUnavailable,
                                     "the coordinator has been silent for 1"));
}

TEST(MemberCore, EndOfTheCoordinatorsProcessIsTheEndUnlessThereIsALog) {
  JoinedMember lost(/*is_durable=*/false);
  lost.SeeHostEnd();
  EXPECT_THAT(lost.end(), StatusIs(absl::StatusCode::kUnavailable,
                                   "the process of ps0, which hosted the "
                                   "coordinator, has ended"));
  JoinedMember waits(/*is_durable=*/true);
  waits.SeeHostEnd();
  EXPECT_EQ(waits.state(), MemberCore::State::kIn);
  JoinedMember leaves(/*is_durable=*/false);
  leaves.WantToLeave();
  leaves.SeeHostEnd();
  EXPECT_THAT(leaves.end(), IsOk());
}

// Otherwise it would blame the coordinator, which may have declared it gone.
TEST(MemberCore, StoppedMemberDoesNotTakeItsOwnPauseForTheCoordinatorsSilence) {
  const absl::Status refused = absl::UnavailableError("connection refused");
  JoinedMember member(/*is_durable=*/false);
  member.BeStoppedFor(absl::Seconds(15));
  EXPECT_EQ(member.state(), MemberCore::State::kIn);
  // Silence afterwards counts as ever.
  member.FailFor(absl::Seconds(5), refused);
  EXPECT_EQ(member.state(), MemberCore::State::kIn);
  member.FailFor(absl::Seconds(7), refused);
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kUnavailable,
                                     "the coordinator has been silent for 1"));
}

v1::Member MemberOf(const std::string& name, uint32_t id, uint32_t counter) {
  v1::Member member;
  member.set_name(name);
  *member.mutable_key() = ToWire(WorkerKey{id, MakeEpoch(1, counter)});
  return member;
}

v1::Departed GoneOf(const std::string& name, uint32_t id, uint32_t counter) {
  v1::Departed departed;
  departed.set_name(name);
  departed.mutable_key()->set_id(id);
  departed.mutable_key()->set_epoch(MakeEpoch(1, counter));
  departed.set_reason("silent");
  return departed;
}

TEST(MemberCore, MembersSeenToEndWhileTheCoordinatorIsAwayHaveDeparted) {
  JoinedMember member(/*is_durable=*/true);
  v1::View view = JoinedMember::Admission().view();
  view.set_version(MakeEpoch(1, 7));
  *view.add_members() = MemberOf("ps0", 0, 5);
  view.mutable_members(1)->set_hosts_coordinator(true);
  *view.add_members() = MemberOf("trainer2", 2, 6);
  member.SeeView(view);
  EXPECT_EQ(member.shown().members_size(), 3);
  member.SeeHostEnd();
  member.SeeEndOf({2, MakeEpoch(1, 6)});
  member.SeeEndOf({2, MakeEpoch(1, 9)});  // no member
  member.SeeEndOf({1, MakeEpoch(1, 1)});  // itself
  ASSERT_EQ(member.shown().members_size(), 1);
  EXPECT_EQ(member.shown().members(0).name(), "trainer1");
  ASSERT_EQ(member.shown().departed_size(), 2);
  for (const v1::Departed& gone : member.shown().departed()) {
    EXPECT_EQ(gone.reason(), "its process has ended");
    EXPECT_FALSE(gone.left());
  }
  EXPECT_EQ(member.state(), MemberCore::State::kIn);
  // The restarted coordinator has another ps0, and has not seen the other end.
  view.set_version(MakeEpoch(2, 1));
  *view.mutable_members(1) = MemberOf("ps0", 0, 0);
  *view.mutable_members(1)->mutable_key() =
      ToWire(WorkerKey{0, MakeEpoch(2, 1)});
  member.SeeView(view);
  ASSERT_EQ(member.shown().members_size(), 2);
  EXPECT_EQ(member.shown().members(1).name(), "ps0");
  ASSERT_EQ(member.shown().departed_size(), 1);
  EXPECT_EQ(member.shown().departed(0).name(), "trainer2");
}

// Joins, and is answered by `answers` in turn, one each second, the last for
// ever; nothing once it has ended.
absl::Status JoinFor(int seconds, const std::vector<absl::Status>& answers) {
  Instant now;
  MemberCore core(MemberCore::Options(), now);
  uint64_t call = 0;
  absl::Status end = absl::UnknownError("goes on");
  const auto take = [&](const MemberCore::Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* send = std::get_if<MemberCore::Send>(&action)) {
        call = send->call;
      } else if (const auto* ended = std::get_if<MemberCore::Ended>(&action)) {
        end = ended->status;
      }
    }
  };
  take(core.OnEvent(now, MemberCore::Start{}));
  for (int second = 0; second < seconds; ++second) {
    const size_t answer =
        std::min<size_t>(static_cast<size_t>(second), answers.size() - 1);
    take(core.OnEvent(now, MemberCore::Replied{call, answers[answer]}));
    now = now + absl::Seconds(1);
    take(core.OnEvent(now, MemberCore::Timer{}));
  }
  return end;
}

TEST(MemberCore, AppliesChangesAndAsksForAWholeViewWhereTheyDoNotFit) {
  JoinedMember member(/*is_durable=*/true);
  EXPECT_TRUE(member.watching().takes_changes());
  const v1::View before = JoinedMember::Admission().view();
  v1::View changes;
  changes.set_version(MakeEpoch(1, 3));
  changes.set_since(before.version());
  *changes.add_members() = MemberOf("ps0", 0, 3);
  changes.set_digest(DigestOf(before) + DigestOf(changes.members(0)));
  member.SeeView(changes);
  EXPECT_EQ(member.shown().members_size(), 2);
  EXPECT_EQ(member.watching().known_version(), changes.version());
  EXPECT_TRUE(member.watching().takes_changes());

  v1::View other;
  other.set_version(MakeEpoch(1, 5));
  other.set_since(changes.version());
  *other.add_departed() = GoneOf("trainer2", 2, 4);
  other.set_digest(1);
  member.SeeView(other);
  EXPECT_EQ(member.state(), MemberCore::State::kIn);
  EXPECT_EQ(member.shown().version(), changes.version());
  EXPECT_EQ(member.watching().known_version(), changes.version());
  EXPECT_FALSE(member.watching().takes_changes());

  v1::View whole = member.shown();
  whole.set_version(other.version());
  *whole.add_departed() = other.departed(0);
  member.SeeView(whole);
  EXPECT_EQ(member.shown().departed_size(), 1);
  EXPECT_TRUE(member.watching().takes_changes());
}

TEST(MemberCore, SeesItselfGoneInChanges) {
  JoinedMember member(/*is_durable=*/true);
  const v1::View before = JoinedMember::Admission().view();
  v1::View changes;
  changes.set_version(MakeEpoch(1, 3));
  changes.set_since(before.version());
  *changes.add_departed() = GoneOf("trainer1", 1, 1);
  changes.set_digest(DigestOf(changes.departed(0)));
  member.SeeView(changes);
  EXPECT_THAT(member.end(),
              StatusIs(absl::StatusCode::kAborted, "declared gone: silent"));
}

TEST(MemberCore, RepeatsToALaterTermTheDeadThatItHasAsMembers) {
  JoinedMember member(/*is_durable=*/true);
  v1::View view = JoinedMember::Admission().view();
  view.set_version(MakeEpoch(1, 7));
  *view.add_departed() = GoneOf("ps0", 0, 5);
  *view.add_departed() = GoneOf("trainer2", 2, 6);
  *view.add_departed() = GoneOf("trainer3", 3, 6);
  member.SeeView(view);
  v1::View later = JoinedMember::Admission().view();
  later.set_version(MakeEpoch(2, 1));
  *later.add_departed() = GoneOf("ps0", 0, 5);
  *later.add_members() = MemberOf("trainer2", 2, 6);
  *later.add_members() = MemberOf("trainer3", 3, 8);  // a later incarnation
  member.SeeView(later);
  member.PassTime(absl::Seconds(1));
  ASSERT_EQ(member.beating().departed_size(), 1);
  EXPECT_EQ(member.beating().departed(0).name(), "trainer2");
}

TEST(MemberCore, RepeatedConnectionResetsFailTheJoinEarly) {
  const absl::Status refused = absl::UnavailableError("connection refused");
  const absl::Status reset =
      net::MarkConnectionReset(absl::UnavailableError("reset"));
  EXPECT_THAT(JoinFor(60, {refused}),
              StatusIs(absl::StatusCode::kUnknown, "goes on"));
  EXPECT_THAT(JoinFor(5, {reset}),
              StatusIs(absl::StatusCode::kUnknown, "goes on"));
  const absl::Status end = JoinFor(6, {reset});
  EXPECT_THAT(end, StatusIs(absl::StatusCode::kUnavailable, "reset"));
  EXPECT_TRUE(net::WasConnectionReset(end));
  // These are the errors while a coordinator is started again.
  EXPECT_THAT(JoinFor(60, {reset, reset, reset, reset, refused}),
              StatusIs(absl::StatusCode::kUnknown, "goes on"));
}

TEST(MemberCore, LostAnswerDoesNotDelayALeavingMember) {
  const absl::Status refused = absl::UnavailableError("connection refused");
  JoinedMember told(/*is_durable=*/true);
  told.WantToLeave();
  told.SeeItselfGone();
  EXPECT_THAT(told.end(), IsOk());
  JoinedMember alone(/*is_durable=*/false);
  alone.WantToLeave();
  alone.FailFor(absl::Seconds(3), refused);
  EXPECT_THAT(alone.end(), IsOk());
  JoinedMember waiting(/*is_durable=*/true);  // it will be there again
  waiting.WantToLeave();
  waiting.FailFor(absl::Seconds(30), refused);
  EXPECT_EQ(waiting.state(), MemberCore::State::kLeaving);
}

TEST(MemberCore, AnswerBeforeTheLeaveIsNoLoss) {
  JoinedMember member(/*is_durable=*/true);  // its Watch is held
  member.WantToLeave();
  member.FailFor(absl::Seconds(1), absl::FailedPreconditionError("is gone"));
  EXPECT_THAT(member.end(), IsOk());
  JoinedMember other(/*is_durable=*/true);
  other.FailFor(absl::Seconds(1), absl::FailedPreconditionError("is gone"));
  EXPECT_THAT(other.end(),
              StatusIs(absl::StatusCode::kAborted, "is gone; start it again"));
}

TEST(MemberCore, DoesNotJoinByAnAnswerThatNoCoordinatorGives) {
  v1::JoinReply huge = JoinedMember::Admission();
  (*huge.mutable_view()->mutable_world()->mutable_roles())["ps"] = 2147483647;
  v1::JoinReply other = JoinedMember::Admission();
  other.mutable_key()->set_id(2);
  for (const auto& [reply, why] :
       {std::pair<v1::JoinReply, std::string>{huge, "65536 workers"},
        {other, "let trainer1 in as 2@1.1 with a view"}}) {
    MemberCore core(JoinedMember::OptionsOfIt(), Instant());
    (void)core.OnEvent(Instant(), MemberCore::Start{});
    const auto actions = core.OnEvent(Instant(), MemberCore::Replied{1, reply});
    ASSERT_EQ(actions.size(), 1u);
    const auto* end = std::get_if<MemberCore::Ended>(&actions[0]);
    ASSERT_NE(end, nullptr);
    EXPECT_THAT(end->status,
                StatusIs(absl::StatusCode::kInternal,
                         "the coordinator at 10.0.0.1:7000 answered Join"));
    EXPECT_THAT(end->status, StatusIs(absl::StatusCode::kInternal, why));
  }
  EXPECT_THAT(MemberCore::ParseReply(0, "\xff", "10.0.0.1:7000"),
              StatusIs(absl::StatusCode::kInternal,
                       "10.0.0.1:7000 answered Join with what none says: it "
                       "cannot be read"));
}

TEST(MemberCore, IsOutByAViewThatNoCoordinatorSends) {
  JoinedMember member(/*is_durable=*/true);
  v1::WatchReply bad;
  bad.mutable_view()->set_version(MakeEpoch(1, 3));
  bad.mutable_view()->mutable_world()->set_max(-1);
  EXPECT_EQ(member.AnswerWatchesFor(absl::Seconds(1), bad), 1);
  EXPECT_THAT(member.end(),
              StatusIs(absl::StatusCode::kInternal,
                       "trainer1 is out of job \"job\": the coordinator at "
                       "10.0.0.1:7000 answered Watch with what none says: "
                       "world: elastic 0 to -1"));
}

TEST(MemberCore, PollsAgainAtOnceOnlyAfterANewView) {
  JoinedMember member(/*is_durable=*/true);
  v1::WatchReply none;
  none.mutable_view()->set_version(MakeEpoch(1, 2));
  // After 50, 100, 200, 400, 800 ms, then each second.
  EXPECT_EQ(member.AnswerWatchesFor(absl::Seconds(30), none), 34);
  v1::WatchReply news = none;
  news.mutable_view()->set_version(MakeEpoch(1, 3));
  // News, then anew: nothing at once, after 50, 150 and 350 ms.
  EXPECT_EQ(member.AnswerWatchesFor(absl::Milliseconds(1010), news), 5);
}

TEST(MemberCore, RefreshedViewIsTakenOnlyIfItIsNewer) {
  Instant now;
  MemberCore core(JoinedMember::OptionsOfIt(), now);
  core.OnEvent(now, MemberCore::Start{});
  core.OnEvent(now, MemberCore::Replied{1, JoinedMember::Admission()});
  ASSERT_EQ(core.state(), MemberCore::State::kIn);
  const uint64_t version = core.view().version();
  MemberCore::Refreshed refreshed{core.view()};
  for (const uint64_t told : {version, version - 1}) {
    refreshed.view.set_version(told);
    EXPECT_THAT(core.OnEvent(now, refreshed), ::testing::IsEmpty());
  }
  refreshed.view.set_version(version + 1);
  const MemberCore::Actions taken = core.OnEvent(now, refreshed);
  ASSERT_EQ(taken.size(), 1u);  // and no request
  EXPECT_TRUE(std::holds_alternative<MemberCore::NewView>(taken[0]));
  EXPECT_EQ(core.view().version(), version + 1);
}

}  // namespace
}  // namespace weft::rendezvous
