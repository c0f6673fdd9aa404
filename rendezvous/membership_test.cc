// Tests of Membership against a Coordinator: in one process, over the network,
// and across kill -9 of the coordinator's process.

#include "weft/rendezvous/membership.h"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/failpoint.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/parker.h"
#include "weft/base/thread_pool.h"
#include "weft/net/call/connection_reset.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/journal/coordinator_log.h"
#include "weft/rendezvous/journal/journal.h"
#include "weft/rendezvous/store_client.h"
#include "weft/rendezvous/wire.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

v1::LogRecord Opened(uint32_t term, const std::string& job) {
  v1::LogRecord record;
  record.mutable_opened()->set_term(term);
  record.mutable_opened()->set_job(job);
  return record;
}

TEST(CoordinatorLog, KeepsRecordsAndDropsATornEnd) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  {
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk());
    EXPECT_EQ(LastTermOf((*log)->history()), 0u);
    EXPECT_THAT((*log)->Append({Opened(1, "a"), Opened(2, "a")}), IsOk());
  }
  std::ofstream(path, std::ios::app | std::ios::binary) << "\x10";
  {
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk());
    EXPECT_EQ(LastTermOf((*log)->history()), 2u);
    EXPECT_EQ((*log)->history().size(), 2u);
    EXPECT_THAT((*log)->Append({Opened(3, "a")}), IsOk());
    EXPECT_THAT((*log)->Rewrite({Opened(9, "a")}), IsOk());
    EXPECT_THAT((*log)->Append({Opened(10, "a")}), IsOk());
  }
  auto log = CoordinatorLog::Open(path);
  ASSERT_THAT(log, IsOk());
  EXPECT_EQ((*log)->history().size(), 2u);
  EXPECT_EQ(LastTermOf((*log)->history()), 10u);
}

// A power loss may leave the new size of a file without what was written there.
TEST(CoordinatorLog, DropsAnAppendThatEndsInZeros) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  const std::string zeros(4096, '\0');
  const std::string append = FrameRecords({Opened(2, "aaaa"), Opened(3, "b")});
  for (size_t written = 0; written < append.size(); ++written) {
    std::ofstream(path, std::ios::binary)
        << "WEFTCRD1" << FrameRecords({Opened(1, "a")})
        << append.substr(0, written) << zeros;
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk()) << written;
    EXPECT_EQ((*log)->history().front().opened().term(), 1u);
    EXPECT_LE((*log)->history().size(), 2u);
    EXPECT_THAT((*log)->Append({Opened(4, "a")}), IsOk());
    log->reset();
    log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk()) << written;
    EXPECT_EQ((*log)->history().back().opened().term(), 4u);
  }
}

TEST(CoordinatorLog, RefusesADamagedOrForeignFileAndASecondUser) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  {
    auto log = CoordinatorLog::Open(path);
    ASSERT_THAT(log, IsOk());
    EXPECT_THAT((*log)->Append({Opened(1, "aaaa"), Opened(2, "bbbb")}), IsOk());
    EXPECT_THAT(CoordinatorLog::Open(path),
                StatusIs(absl::StatusCode::kFailedPrecondition, "has it open"));
  }
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(22);  // within the first record
    file.put('!');
  }
  EXPECT_THAT(CoordinatorLog::Open(path),
              StatusIs(absl::StatusCode::kDataLoss, "at byte 8"));
  std::ofstream(dir.Path("other")) << "something else entirely";
  EXPECT_THAT(CoordinatorLog::Open(dir.Path("other")),
              StatusIs(absl::StatusCode::kDataLoss,
                       "not a log of Weft's coordinator; name another file"));
  EXPECT_THAT(CoordinatorLog::Open(dir.Path("no/log")),
              StatusIs(absl::StatusCode::kNotFound, "name another file"));
  // Has no end.
  EXPECT_THAT(CoordinatorLog::Open("/dev/zero"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "wanted a file, found a device"));
}

TEST(CoordinatorLog, HasOneUserAlsoWhileItIsWrittenAnew) {
  testing::TempDir dir;
  const std::string path = dir.Path("log");
  auto log = CoordinatorLog::Open(path);
  ASSERT_THAT(log, IsOk());
  std::atomic<bool> is_over{false};
  std::atomic<int> taken{0};
  std::atomic<int> tries{0};
  std::thread other([&] {
    while (!is_over) {
      taken += CoordinatorLog::Open(path).ok();
      ++tries;
    }
  });
  int rewrites = 0;
  EXPECT_TRUE(Becomes([&] {
    EXPECT_THAT((*log)->Rewrite({Opened(1, "a")}), IsOk());
    return ++rewrites >= 50 && tries >= 50;
  }));
  is_over = true;
  other.join();
  EXPECT_EQ(taken, 0);
}

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

// Without a log; with one it is waited for as long anyway.
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

// Else it would blame the coordinator, which may have declared it gone.
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
  // As a coordinator that is started again.
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

// A coordinator whose answers wait for the test.
class HeldLink final : public CoordinatorLink {
 public:
  Future<std::string> Call(absl::string_view, std::string,
                           absl::Duration) override {
    Promise<std::string> promise;
    Future<std::string> answer = promise.future();
    MutexLock lock(mu_);
    asked_.push_back(std::move(promise));
    return answer;
  }
  const std::string& address() const override { return address_; }

  // Answers the change that is asked for now.
  ::testing::AssertionResult Answer(uint64_t version) {
    std::optional<Promise<std::string>> promise;
    const auto asked = Becomes([&] {
      MutexLock lock(mu_);
      if (asked_.size() != 1) return false;
      promise = std::move(asked_.front());
      asked_.clear();
      return true;
    });
    if (!asked) return asked;
    v1::StoreReply reply;
    reply.set_version(version);
    promise->Set(reply.SerializeAsString());
    return ::testing::AssertionSuccess();
  }
  bool IsAsked() {
    MutexLock lock(mu_);
    return !asked_.empty();
  }

 private:
  const std::string address_ = "nowhere:1";
  Mutex mu_;
  std::vector<Promise<std::string>> asked_ ABSL_GUARDED_BY(mu_);
};

class NoTimers final : public TimerSource {
 public:
  Driver& driver() override { return ParkingDriver(); }
  void RunAfter(absl::Duration, absl::AnyInvocable<void() &&>) override {}
};

TEST(StoreClient, AChangeWaitsForTheOneBeforeAsLongAsItMay) {
  NoTimers timers;
  const auto link = std::make_shared<HeldLink>();
  const auto store = MakeStoreClient(timers, link, "job", 1);
  std::thread first([&] {
    EXPECT_THAT(store->Set("a", "", absl::InfiniteDuration()),
                IsOkAndHolds(1u));
  });
  EXPECT_TRUE(Becomes([&] { return link->IsAsked(); }));
  std::thread second([&] {
    EXPECT_THAT(store->Set("b", "", absl::InfiniteDuration()),
                IsOkAndHolds(2u));
  });
  EXPECT_THAT(store->Set("c", "", absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "store: key \"c\": an earlier change"));
  EXPECT_TRUE(link->Answer(1));
  EXPECT_TRUE(link->Answer(2));
  first.join();
  second.join();
}

TEST(StoreClient, AChangeDoesNotBlockAThreadThatMustNot) {
  NoTimers timers;
  const auto link = std::make_shared<HeldLink>();
  const auto store = MakeStoreClient(timers, link, "job", 1);
  std::thread first(
      [&] { EXPECT_THAT(store->Set("a", "", kLong), IsOkAndHolds(1u)); });
  EXPECT_TRUE(Becomes([&] { return link->IsAsked(); }));
  {
    const InlineScope within_a_callback;
    EXPECT_THAT(store->Set("b", "", absl::Milliseconds(100)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "store: key \"b\": an earlier change"));
  }
  EXPECT_TRUE(link->Answer(1));
  first.join();
}

class MembershipTest : public ::testing::Test {
 protected:
  void SetUp() override {
    chmod(dir_.path().c_str(), 0700);
    auto loop = net::Loop::Create();
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
    timers_ = MakeLoopTimers(*loop_);
    auto executor = ThreadPool::Create({});
    ASSERT_THAT(executor, IsOk());
    executor_ = *std::move(executor);
    address_ = absl::StrCat("unix:", dir_.Path("c.sock"));
  }

  void StartCoordinator(CoordinatorOptions options = {}) {
    auto coordinator =
        Coordinator::Create(*timers_, *executor_, std::move(options));
    ASSERT_THAT(coordinator, IsOk());
    coordinator_ = *std::move(coordinator);
    auto endpoint = net::Endpoint::Open(*loop_, {"ps0", address_, "", {}});
    ASSERT_THAT(endpoint, IsOk());
    endpoint_ = *std::move(endpoint);
    Serve(*coordinator_, *endpoint_);
    ASSERT_THAT(endpoint_->Start(), IsOk());
  }

  JoinOptions OptionsOf(const std::string& role, int rank) {
    JoinOptions options;
    options.job = "job";
    options.role = role;
    options.rank = rank;
    options.address = "unix:/nowhere";
    options.world = World::Fixed(1, 1);
    options.timeout = kLong;
    options.heartbeat_interval = absl::Milliseconds(50);
    options.progress = [](const std::string&) {};
    return options;
  }

  absl::StatusOr<std::unique_ptr<Membership>> Join(JoinOptions options) {
    auto link = MakeGrpcLink(*loop_, address_, "ps0");
    if (!link.ok()) return link.status();
    return Membership::Join(*timers_, *std::move(link), std::move(options));
  }

  // ps0 and trainer0, each joined on a thread of its own.
  void JoinBoth() {
    std::thread other([&] {
      auto joined = Join(OptionsOf("trainer", 0));
      EXPECT_THAT(joined, IsOk());
      if (joined.ok()) trainer_ = *std::move(joined);
    });
    auto joined = Join(OptionsOf("ps", 0));
    EXPECT_THAT(joined, IsOk());
    if (joined.ok()) ps_ = *std::move(joined);
    other.join();
    ASSERT_NE(ps_, nullptr);
    ASSERT_NE(trainer_, nullptr);
  }

  testing::TempDir dir_;
  std::string address_;
  std::unique_ptr<net::Loop> loop_;
  std::unique_ptr<TimerSource> timers_;
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<net::Endpoint> endpoint_;
  std::unique_ptr<Membership> ps_;
  std::unique_ptr<Membership> trainer_;
};

// Answers of Watches that may be held for news, or of those that ask for the
// view of the moment, do not come.
class LossyLink final : public CoordinatorLink {
 public:
  explicit LossyLink(std::unique_ptr<CoordinatorLink> link)
      : link_(std::move(link)) {}

  Future<std::string> Call(absl::string_view method, std::string request,
                           absl::Duration timeout) override {
    v1::WatchRequest watch;
    if (method == "Watch" && watch.ParseFromString(request)) {
      const bool may_be_held = watch.wait_ms() > 0;
      if (!may_be_held) ++questions;
      if (may_be_held ? loses_news.load() : loses_answers.load()) {
        Promise<std::string> promise;
        Future<std::string> never = promise.future();
        MutexLock lock(mu_);
        lost_.push_back(std::move(promise));
        return never;
      }
    }
    return link_->Call(method, std::move(request), timeout);
  }
  const std::string& address() const override { return link_->address(); }

  std::atomic<bool> loses_news{false};
  std::atomic<bool> loses_answers{false};
  std::atomic<int> questions{0};

 private:
  const std::unique_ptr<CoordinatorLink> link_;
  Mutex mu_;
  std::vector<Promise<std::string>> lost_ ABSL_GUARDED_BY(mu_);
};

TEST_F(MembershipTest, RefreshSeesAJoinThatTheWatchHasNotReported) {
  StartCoordinator();
  auto lossy = std::make_unique<LossyLink>(
      MakeGrpcLink(*loop_, address_, "ps0").value());
  LossyLink& link = *lossy;
  link.loses_news = true;
  JoinOptions options = OptionsOf("trainer", 0);
  options.world = World::Elastic(1, 20);
  const auto first = Membership::Join(*timers_, std::move(lossy), options);
  ASSERT_THAT(first, IsOk());
  std::vector<std::unique_ptr<Membership>> others;
  for (options.rank = 1; options.rank < 5; ++options.rank) {
    auto joined = Join(options);
    ASSERT_THAT(joined, IsOk());
    const std::string name = (*joined)->self().name;
    others.push_back(*std::move(joined));
    EXPECT_EQ((*first)->view()->Find(name), nullptr);
    EXPECT_THAT((*first)->Refresh(kLong), IsOk());
    EXPECT_NE((*first)->view()->Find(name), nullptr);
  }
}

TEST_F(MembershipTest, RefreshesOfManyThreadsShareRequests) {
  StartCoordinator();
  auto lossy = std::make_unique<LossyLink>(
      MakeGrpcLink(*loop_, address_, "ps0").value());
  LossyLink& link = *lossy;
  JoinOptions options = OptionsOf("trainer", 0);
  options.world = World::Elastic(1, 2);
  const auto member = Membership::Join(*timers_, std::move(lossy), options);
  ASSERT_THAT(member, IsOk());
  constexpr int kThreads = 8;
  constexpr int kEach = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < kEach; ++n) {
        EXPECT_THAT((*member)->Refresh(kLong), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(link.questions, kEach);
  EXPECT_LT(link.questions, kThreads * kEach);
}

TEST_F(MembershipTest, RefreshFailsAtOnceWhileTheCoordinatorIsSilent) {
  StartCoordinator();
  auto lossy = std::make_unique<LossyLink>(
      MakeGrpcLink(*loop_, address_, "ps0").value());
  LossyLink& link = *lossy;
  JoinOptions options = OptionsOf("trainer", 0);
  options.world = World::Elastic(1, 2);
  const auto member = Membership::Join(*timers_, std::move(lossy), options);
  ASSERT_THAT(member, IsOk());
  link.loses_answers = true;
  EXPECT_THAT((*member)->Refresh(absl::Seconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT((*member)->Refresh(kLong),
                StatusIs(absl::StatusCode::kUnavailable, "has not answered"));
  }
  EXPECT_EQ(link.questions, 1);
  EXPECT_THAT((*member)->Leave(kLong), IsOk());
  EXPECT_THAT((*member)->Refresh(kLong),
              StatusIs(absl::StatusCode::kFailedPrecondition, "has left"));
}

TEST_F(MembershipTest, JoinNamesTheHostOfTheCoordinatorThatIsNotThere) {
  for (const std::string host : {"", "coordinator0"}) {
    JoinOptions options = OptionsOf("trainer", 0);
    options.world = World::Fixed(0, 1);
    options.timeout = absl::Milliseconds(200);
    options.host_of_coordinator = host;
    EXPECT_THAT(Join(options),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         absl::StrCat("is ", host.empty() ? "trainer0" : host,
                                      " running, with this --coordinator?")));
  }
}

TEST_F(MembershipTest, JoinWaitsForACoordinatorThatIsNotThereYet) {
  Parker waiting;
  JoinOptions options = OptionsOf("trainer", 0);
  options.world = World::Fixed(0, 1);
  options.progress = [&](const std::string& text) {
    EXPECT_THAT(text, HasSubstr("no coordinator"));
    waiting.Unpark();
  };
  std::thread joining([&] {
    auto joined = Join(options);
    EXPECT_THAT(joined, IsOk());
    if (joined.ok()) trainer_ = *std::move(joined);
  });
  EXPECT_TRUE(IsWoken(waiting));
  StartCoordinator();
  joining.join();
  ASSERT_NE(trainer_, nullptr);
  EXPECT_TRUE(trainer_->view()->IsComplete());
  EXPECT_EQ(trainer_->self().name, "trainer0");
}

TEST_F(MembershipTest, DeadlineOfJoinNamesMissingMembers) {
  StartCoordinator();
  JoinOptions options = OptionsOf("ps", 0);
  options.timeout = absl::Seconds(3);
  EXPECT_THAT(Join(options), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                      "1/2 joined, missing trainer0"));
}

// A coordinator of the test's own making, which answers at once.
class MadeUpLink final : public CoordinatorLink {
 public:
  using Answer = std::function<std::string(absl::string_view method)>;
  MadeUpLink(ThreadPool& pool, Answer answer)
      : pool_(pool), answer_(std::make_shared<Answer>(std::move(answer))) {}

  Future<std::string> Call(absl::string_view method, std::string,
                           absl::Duration) override {
    auto [promise, future] = MakePromise<std::string>();
    pool_.Schedule(
        [answer = answer_, method = std::string(method),
         p = std::move(promise)]() mutable { p.Set((*answer)(method)); });
    return std::move(future);
  }
  const std::string& address() const override { return address_; }

 private:
  ThreadPool& pool_;
  const std::shared_ptr<Answer> answer_;
  const std::string address_ = "nowhere:1";
};

// The first member is admitted, and each Watch returns a newer view, in which
// trainer0 is still missing.
std::string AlwaysNews(absl::string_view method) {
  static std::atomic<uint32_t> version{0};
  v1::JoinReply joined;
  joined.mutable_key()->set_epoch(1);
  v1::View* view = joined.mutable_view();
  view->set_version(MakeEpoch(1, ++version));
  *view->mutable_world() = ToWire(World::Fixed(1, 1));
  v1::Member* member = view->add_members();
  member->set_name("ps0");
  member->set_role("ps");
  *member->mutable_key() = joined.key();
  if (method == "Join") return joined.SerializeAsString();
  v1::WatchReply watched;
  *watched.mutable_view() = *view;
  return method == "Watch" ? watched.SerializeAsString() : "";
}

TEST_F(MembershipTest, ADeadlineHoldsThoughViewsComeFasterThanTheyAreJudged) {
  JoinOptions options = OptionsOf("ps", 0);
  options.wait_for_world = false;
  auto joined = Membership::Join(
      *timers_, std::make_unique<MadeUpLink>(*executor_, AlwaysNews), options);
  ASSERT_THAT(joined, IsOk());
  const Instant too_late = SteadyClock().Now() + absl::Seconds(10);
  const auto judge = [&](const View& view) {
    // There is always another to judge.
    while ((*joined)->view()->version() == view.version()) {
      if (SteadyClock().Now() > too_late) break;
      std::this_thread::yield();
    }
    return SteadyClock().Now() > too_late;
  };
  EXPECT_THAT((*joined)->WaitFor(judge, absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "1/2 joined, missing trainer0 after 300ms"));
}

TEST_F(MembershipTest, EmptyAnswersArePolledWithBackoff) {
  const auto asked = std::make_shared<std::atomic<int>>(0);
  JoinOptions options = OptionsOf("ps", 0);
  options.wait_for_world = false;
  auto joined = Membership::Join(
      *timers_,
      std::make_unique<MadeUpLink>(*executor_,
                                   [asked](absl::string_view method) {
                                     if (method == "Watch")
                                       return std::string();
                                     *asked += method == "Barrier" ||
                                               method == "Store";
                                     return AlwaysNews(method);
                                   }),
      options);
  ASSERT_THAT(joined, IsOk());
  const absl::Duration soon = absl::Milliseconds(500);
  EXPECT_THAT((*joined)->Barrier("begin", {}, soon),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "Barrier begin"));
  EXPECT_LE(asked->exchange(0), 6);  // after 50, 100, 200 ms ...
  EXPECT_THAT((*joined)->store().Wait("key", 0, soon),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "did not change"));
  EXPECT_LE(*asked, 6);
}

TEST_F(MembershipTest, ABarrierGathersFromItsMembersAlone) {
  JoinOptions options = OptionsOf("ps", 0);
  options.wait_for_world = false;
  auto joined = Membership::Join(
      *timers_,
      std::make_unique<MadeUpLink>(*executor_,
                                   [](absl::string_view method) {
                                     if (method != "Barrier")
                                       return AlwaysNews(method);
                                     v1::BarrierReply reply;
                                     reply.set_released(true);
                                     reply.add_brought()->set_name("trainer7");
                                     return reply.SerializeAsString();
                                   }),
      options);
  ASSERT_THAT(joined, IsOk());
  EXPECT_THAT((*joined)->AllGather("begin", "", {}, kLong),
              StatusIs(absl::StatusCode::kInternal,
                       "nowhere:1 answered Barrier with what none says: "
                       "\"trainer7\" is at begin"));
}

TEST_F(MembershipTest, SecondWorkerOfTheSameNameGetsAlreadyExists) {
  StartCoordinator();
  JoinBoth();
  EXPECT_THAT(Join(OptionsOf("ps", 0)),
              StatusIs(absl::StatusCode::kAlreadyExists, "ps0"));
  EXPECT_THAT(ps_->status(), IsOk());
  JoinOptions other = OptionsOf("trainer", 1);
  other.job = "other";
  EXPECT_THAT(Join(other),
              StatusIs(absl::StatusCode::kFailedPrecondition, "two jobs"));
}

TEST_F(MembershipTest, MemberThatLeftMayComeBackWithAHigherEpoch) {
  StartCoordinator();
  JoinBoth();
  const WorkerKey old_key = trainer_->self().key;
  std::atomic<int> changes{0};
  const auto follow =
      ps_->OnChange([&](const std::shared_ptr<const View>&) { ++changes; });
  EXPECT_THAT(trainer_->Leave(kLong), IsOk());
  EXPECT_THAT(trainer_->status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "has left"));
  const auto view =
      ps_->WaitFor([&](const View& v) { return v.IsGone(old_key); }, kLong);
  ASSERT_THAT(view, IsOk());
  EXPECT_TRUE((*view)->departed().front().left);
  auto again = Join(OptionsOf("trainer", 0));
  ASSERT_THAT(again, IsOk());
  EXPECT_GT((*again)->self().key.epoch, old_key.epoch);
  EXPECT_THAT(ps_->WaitFor([](const View& v) { return v.IsComplete(); }, kLong),
              IsOk());
  // A view is there before those who follow are told of it.
  EXPECT_TRUE(Becomes([&] { return changes.load() >= 1; }));
}

TEST_F(MembershipTest, WorkerThatRejoinsDoesNotWaitForThoseWhoHaveGone) {
  StartCoordinator();
  JoinBoth();
  EXPECT_THAT(trainer_->Leave(kLong), IsOk());
  EXPECT_THAT(ps_->Leave(kLong), IsOk());
  JoinOptions options = OptionsOf("ps", 0);
  options.wait_for_world = false;
  const auto waits = Join(options);
  ASSERT_THAT(waits, IsOk());
  EXPECT_THAT((*waits)->AwaitWorld(absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "1/2 joined, missing trainer0"));
  EXPECT_THAT((*waits)->Leave(kLong), IsOk());
  options.rejoins = true;
  const auto rejoins = Join(options);
  ASSERT_THAT(rejoins, IsOk());
  EXPECT_THAT((*rejoins)->AwaitWorld(kLong), IsOk());
  EXPECT_FALSE((*rejoins)->view()->IsComplete());
}

TEST_F(MembershipTest, WorkerThatRejoinsWaitsForThoseWhoHaveNotComeYet) {
  StartCoordinator();
  JoinOptions options = OptionsOf("ps", 0);
  options.wait_for_world = false;
  auto first = Join(options);
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT((*first)->Leave(kLong), IsOk());
  options.rejoins = true;
  const auto again = Join(options);
  ASSERT_THAT(again, IsOk());
  EXPECT_THAT((*again)->AwaitWorld(absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "1/2 joined, missing trainer0"));
}

TEST_F(MembershipTest, UserCallbacksMayThrowAndUseTheMembership) {
  StartCoordinator();
  JoinBoth();
  Parker told;
  {
    const auto follow = ps_->OnChange([&](const std::shared_ptr<const View>&) {
      told.Unpark();
      throw std::runtime_error("no");
    });
    EXPECT_TRUE(IsWoken(told));
  }
  const auto asks = [&](const View&) { return ps_->view()->IsComplete(); };
  EXPECT_THAT(ps_->WaitFor(asks, kLong), IsOk());
  Parker waits;
  std::thread waiting([&] {
    const auto throws = [&](const View& view) {
      waits.Unpark();
      if (view.IsComplete()) return false;
      throw std::runtime_error("no");
    };
    EXPECT_THAT(ps_->WaitFor(throws, kLong),
                StatusIs(absl::StatusCode::kInternal, "no"));
  });
  EXPECT_TRUE(IsWoken(waits));
  EXPECT_THAT(trainer_->Leave(kLong), IsOk());
  waiting.join();
  trainer_ = nullptr;
  const auto again = Join(OptionsOf("trainer", 0));
  EXPECT_THAT(again, IsOk());
  EXPECT_THAT(ps_->WaitFor(asks, kLong), IsOk()) << "it follows no more";
}

// Cannot be reached while it is out.
class FakeJournal final : public Journal {
 public:
  struct Disk {
    std::atomic<bool> is_out{false};
    std::atomic<int> refused{0};
    std::vector<v1::LogRecord> records;  // of the coordinator's thread
    Parker refused_often;
    std::atomic<bool> is_closed{false};
    // The second try of an outage takes as long as the promise is not kept.
    int slow_try = 2;
    Promise<void> answer{ParkingDriver()};
    Future<void> answered = answer.future();
    Parker asked_again;
  };
  explicit FakeJournal(Disk& disk) : disk_(disk) {}
  ~FakeJournal() override { disk_.is_closed = true; }

  const std::vector<v1::LogRecord>& history() const override {
    return disk_.records;
  }
  absl::Status Append(const std::vector<v1::LogRecord>& records) override {
    if (disk_.is_out) {
      const int refused = ++disk_.refused;
      if (refused == disk_.slow_try) {
        disk_.asked_again.Unpark();
        (void)disk_.answered.Wait(kLong);
      }
      if (refused == 9) disk_.refused_often.Unpark();
      return absl::UnavailableError("it is out");
    }
    disk_.records.insert(disk_.records.end(), records.begin(), records.end());
    return absl::OkStatus();
  }
  absl::Status Rewrite(const std::vector<v1::LogRecord>&) override {
    return absl::OkStatus();
  }
  int64_t bytes() const override { return 0; }
  std::string where() const override { return "a journal"; }

 private:
  Disk& disk_;
};

TEST_F(MembershipTest, ACoordinatorOutlivesAnOutageOfItsJournal) {
  FakeJournal::Disk disk;
  CoordinatorOptions options;
  options.journal = std::make_unique<FakeJournal>(disk);
  options.core.dead_after = absl::Seconds(4);  // as long as the outage
  StartCoordinator(std::move(options));
  JoinBoth();
  disk.is_out = true;
  std::thread writer([&] {
    EXPECT_THAT(trainer_->store().Add("sum", 1, kLong), IsOkAndHolds(1));
  });
  // Nobody waits for what is tried again.
  EXPECT_TRUE(IsWoken(disk.asked_again));
  EXPECT_THAT(
      ps_->store().Get("sum", absl::Seconds(1)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "waits for its journal"));
  disk.answer.Set(absl::OkStatus());
  EXPECT_TRUE(IsWoken(disk.refused_often));
  disk.is_out = false;
  writer.join();
  EXPECT_THAT(ps_->store().Add("sum", 1, kLong), IsOkAndHolds(2));
  EXPECT_THAT(trainer_->status(), IsOk());
  EXPECT_TRUE(ps_->view()->departed().empty());
  EXPECT_THAT(trainer_->Leave(kLong), IsOk());
  EXPECT_THAT(
      ps_->WaitFor([](const View& v) { return !v.IsComplete(); }, kLong),
      IsOk());
  endpoint_.reset();  // ps0 still asks
  coordinator_.reset();
  EXPECT_EQ(std::count_if(disk.records.begin(), disk.records.end(),
                          [](const v1::LogRecord& record) {
                            return record.has_stored();
                          }),
            2);
}

TEST_F(MembershipTest, AnEndedCoordinatorUsesItsJournalAndTimersNoMore) {
  for (const int slow_try : {1, 2}) {  // on the strand, and beside it
    FakeJournal::Disk disk;
    disk.slow_try = slow_try;
    CoordinatorOptions options;
    options.journal = std::make_unique<FakeJournal>(disk);
    StartCoordinator(std::move(options));
    disk.is_out = true;
    v1::JoinRequest join;
    join.set_job("job");
    *join.mutable_world() = ToWire(World::Fixed(1, 0));
    join.mutable_member()->set_name("ps0");
    join.mutable_member()->set_role("ps");
    join.mutable_member()->set_incarnation(7);
    coordinator_->Handle({"somebody", ""}, "Join", join.SerializeAsString(),
                         [](const absl::StatusOr<std::string>&) {});
    EXPECT_TRUE(IsWoken(disk.asked_again));
    timers_->RunAfter(absl::Milliseconds(300),
                      [answer = std::move(disk.answer)]() mutable {
                        answer.Set(absl::OkStatus());
                      });
    endpoint_.reset();
    coordinator_.reset();
    EXPECT_TRUE(disk.is_closed) << "try " << slow_try;
  }
}

TEST_F(MembershipTest, SilentMemberIsDeclaredGone) {
  CoordinatorOptions options;
  options.core.suspect_after = absl::Milliseconds(300);
  options.core.dead_after = absl::Seconds(4);  // on a slow machine too
  StartCoordinator(std::move(options));
  JoinBoth();
  const WorkerKey key = trainer_->self().key;
  trainer_.reset();  // tells nobody
  const auto view =
      ps_->WaitFor([&](const View& v) { return v.IsGone(key); }, kLong);
  ASSERT_THAT(view, IsOk());
  EXPECT_THAT((*view)->departed().front().reason, HasSubstr("silent"));
  EXPECT_THAT(ps_->Barrier("b", {}, kLong),
              StatusIs(absl::StatusCode::kUnavailable, "trainer0 is gone"));
}

TEST_F(MembershipTest, MemberDeclaredGoneIsNotifiedOnceWithTheReason) {
  StartCoordinator();
  JoinBoth();
  std::atomic<int> losses{0};
  Parker lost;
  absl::Status early;
  const auto ignore = [](const std::shared_ptr<const View>&) {};
  const auto follow = trainer_->OnChange(ignore, [&](const absl::Status& why) {
    early = why;
    ++losses;
    lost.Unpark();
  });
  const auto other =
      ps_->OnChange(ignore, [&](const absl::Status&) { losses += 100; });
  v1::ReportExitRequest report;
  report.set_job("job");
  report.set_name("trainer0");
  report.set_incarnation(trainer_->self().incarnation);
  report.set_reason("killed");
  coordinator_->Handle({"somebody", ""}, "ReportExit",
                       report.SerializeAsString(),
                       [](const absl::StatusOr<std::string>&) {});
  EXPECT_TRUE(IsWoken(lost));
  EXPECT_THAT(early, StatusIs(absl::StatusCode::kAborted,
                              "trainer0 is out of job \"job\": declared gone: "
                              "killed; start it again"));
  EXPECT_EQ(trainer_->status(), early);
  absl::Status late;  // a later registration is notified too
  const auto after = trainer_->OnChange(ignore, [&](const absl::Status& why) {
    late = why;
    lost.Unpark();
  });
  EXPECT_TRUE(IsWoken(lost));
  EXPECT_EQ(late, early);
  EXPECT_THAT(trainer_->Leave(kLong), IsOk());
  EXPECT_THAT(ps_->Leave(kLong), IsOk());  // which is no loss
  EXPECT_EQ(losses, 1);
}

// None of them knows of the loss but by the membership: the coordinator would
// hold the requests on.
TEST_F(MembershipTest, EveryWaitOfAMemberThatIsOutOfTheJobEndsWithTheReason) {
  StartCoordinator();
  JoinBoth();
  constexpr absl::Duration kFar = absl::Minutes(30);
  std::vector<std::function<absl::Status()>> waits = {
      [&] { return trainer_->store().Wait("never", 0, kFar).status(); },
      [&] {
        return trainer_->store().WaitAll({"never", "ever"}, kFar);
      },
      [&] {
        return trainer_->Barrier("b", {"ps0", "trainer0"}, kFar);
      },
      [&] {
        return trainer_->AllGather("g", "x", {"ps0", "trainer0"}, kFar)
            .status();
      },
      [&] {
        return trainer_->WaitFor([](const View&) { return false; }, kFar)
            .status();
      },
  };
  std::vector<absl::Status> ends(waits.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < waits.size(); ++i) {
    threads.emplace_back([&, i] { ends[i] = waits[i](); });
  }
  v1::ReportExitRequest report;
  report.set_job("job");
  report.set_name("trainer0");
  report.set_incarnation(trainer_->self().incarnation);
  report.set_reason("killed");
  coordinator_->Handle({"somebody", ""}, "ReportExit",
                       report.SerializeAsString(),
                       [](const absl::StatusOr<std::string>&) {});
  for (std::thread& thread : threads) thread.join();
  // And what is begun now.
  waits.push_back(
      [&] { return trainer_->store().Set("k", "", kFar).status(); });
  waits.push_back([&] { return trainer_->store().NumKeys(kFar).status(); });
  waits.push_back([&] { return trainer_->Refresh(kFar); });
  waits.push_back([&] { return trainer_->Announce(Phase::kDrained, kFar); });
  for (const auto& wait : waits) ends.push_back(wait());
  for (const absl::Status& end : ends) {
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kAborted,
                              "trainer0 is out of job \"job\": declared gone: "
                              "killed; start it again"));
  }
}

TEST_F(MembershipTest, SubscriberDuringTheLossOfThisWorkerGetsTheLossLast) {
  const ScopedFailpoint amid("rendezvous/on_change", "block");
  JoinOptions options = OptionsOf("ps", 0);
  options.wait_for_world = false;
  const auto answer = [&](absl::string_view method) {
    if (method == "Watch") return std::string();
    if (method == "Heartbeat" && amid.hits() == 1) return std::string("\xff");
    return AlwaysNews(method);
  };
  auto joined = Membership::Join(
      *timers_, std::make_unique<MadeUpLink>(*executor_, answer), options);
  ASSERT_THAT(joined, IsOk());
  std::vector<std::string> told;
  Parker lost;
  Membership::Subscription follow;
  std::thread asking([&] {
    follow = (*joined)->OnChange(
        [&](const std::shared_ptr<const View>&) { told.push_back("view"); },
        [&](const absl::Status&) {
          told.push_back("lost");
          lost.Unpark();
        });
  });
  EXPECT_TRUE(Becomes([&] { return !(*joined)->status().ok(); }));
  DisarmFailpoint("rendezvous/on_change");
  EXPECT_TRUE(IsWoken(lost));
  asking.join();
  EXPECT_THAT(told, ElementsAre("view", "lost"));
}

TEST_F(MembershipTest, BarriersOpenTogetherAndNameMissingMembers) {
  StartCoordinator();
  JoinBoth();
  EXPECT_THAT(ps_->Barrier("alone", {}, absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "trainer0"));
  std::thread other([&] {
    for (int i = 0; i < 20; ++i) {
      EXPECT_THAT(trainer_->Barrier("step", {}, kLong), IsOk());
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(ps_->Barrier("step", {}, kLong), IsOk());
  }
  other.join();
}

TEST_F(MembershipTest, AllGatherReturnsAllPayloads) {
  StartCoordinator();
  JoinBoth();
  const std::map<std::string, std::string> all = {{"ps0", ""},
                                                  {"trainer0", "y"}};
  std::thread other([&] {
    EXPECT_THAT(trainer_->AllGather("a", "y", {}, kLong), IsOkAndHolds(all));
  });
  EXPECT_THAT(ps_->AllGather("a", "", {}, kLong), IsOkAndHolds(all));
  other.join();
  EXPECT_THAT(ps_->AllGather("b", "x", {"ps0"}, kLong),
              IsOkAndHolds(std::map<std::string, std::string>{{"ps0", "x"}}));
  EXPECT_THAT(ps_->AllGather("c", "x", {}, absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "trainer0"));
  EXPECT_THAT(ps_->AllGather("d", std::string(1 << 20, 'x'), {}, kLong),
              StatusIs(absl::StatusCode::kResourceExhausted, "may bring"));
}

TEST_F(MembershipTest, TwoThreadsOfAWorkerAreNotAtOneBarrier) {  // F23, F24
  StartCoordinator();
  JoinBoth();
  Parker refused;
  const auto told = [&](absl::Status status) {
    if (!status.ok()) refused.Unpark();
    return status;
  };
  absl::Status ends[2];
  std::thread first([&] { ends[0] = told(ps_->Barrier("step", {}, kLong)); });
  std::thread second(
      [&] { ends[1] = told(ps_->AllGather("step", "", {}, kLong).status()); });
  EXPECT_TRUE(IsWoken(refused));
  EXPECT_THAT(trainer_->Barrier("step", {}, kLong), IsOk());
  first.join();
  second.join();
  EXPECT_THAT(ends, UnorderedElementsAre(
                        IsOk(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         "Barrier step: another thread of ps0 "
                                         "is there")));
}

TEST_F(MembershipTest, ABarrierOfAnElasticWorldIsOfNamedMembers) {  // F23, F24
  StartCoordinator();
  JoinOptions options = OptionsOf("trainer", 0);
  options.world = World::Elastic(1, 2);
  const auto alone = Join(options);
  ASSERT_THAT(alone, IsOk());
  const auto is_refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               "Barrier step: an elastic world wants the members named");
  EXPECT_THAT((*alone)->Barrier("step", {}, kLong), is_refused);
  EXPECT_THAT((*alone)->AllGather("step", "x", {}, kLong), is_refused);
  EXPECT_THAT((*alone)->Barrier("step", {"trainer0"}, kLong), IsOk());
}

TEST_F(MembershipTest, SubsetsMeetByThemselvesAndManyAtATime) {
  StartCoordinator();
  JoinBoth();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    for (Membership* member : {ps_.get(), trainer_.get()}) {
      threads.emplace_back([member, i] {
        EXPECT_THAT(member->Barrier(absl::StrCat("tag", i), {}, kLong), IsOk());
      });
    }
  }
  EXPECT_THAT(ps_->Barrier("alone", {"ps0"}, kLong), IsOk());
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(ps_->Barrier("others", {"trainer0"}, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument, "not among"));
}

TEST_F(MembershipTest, LongBarrierWaitDoesNotLimitOtherBarriers) {
  CoordinatorOptions options;
  options.core.barriers.arrivals = 8;
  StartCoordinator(std::move(options));
  JoinBoth();
  std::thread waits(
      [&] { EXPECT_THAT(ps_->Barrier("end", {}, kLong), IsOk()); });
  // Opens at once, unless somebody is there who waits for others too.
  EXPECT_TRUE(testing::Becomes([&] {
    return absl::IsFailedPrecondition(
        trainer_->Barrier("end", {"trainer0"}, kLong));
  }));
  for (int i = 0; i < 40; ++i) {
    EXPECT_THAT(ps_->Barrier("step", {"ps0"}, kLong), IsOk());
  }
  EXPECT_THAT(trainer_->Barrier("end", {}, kLong), IsOk());
  waits.join();
}

TEST_F(MembershipTest, PhasesOfTheOthersAreSeen) {
  StartCoordinator();
  JoinBoth();
  EXPECT_THAT(trainer_->Announce(Phase::kQuiescing, kLong), IsOk());
  EXPECT_THAT(ps_->WaitFor(
                  [](const View& v) {
                    return v.Find("trainer0")->phase == Phase::kQuiescing;
                  },
                  kLong),
              IsOk());
}

TEST_F(MembershipTest, TheStoreIsOneForAll) {
  StartCoordinator();
  JoinBoth();
  Store& a = ps_->store();
  Store& b = trainer_->store();
  std::thread waiting([&] {
    const auto entry = b.Wait("port", 0, kLong);
    ASSERT_THAT(entry, IsOk());
    EXPECT_EQ(entry->value, "4711");
  });
  EXPECT_THAT(a.Set("port", "4711", kLong), IsOk());
  waiting.join();
  EXPECT_THAT(a.Get("nothing", kLong), StatusIs(absl::StatusCode::kNotFound));
  std::thread adding([&] {
    for (int i = 0; i < 50; ++i) EXPECT_THAT(b.Add("n", 1, kLong), IsOk());
  });
  for (int i = 0; i < 50; ++i) EXPECT_THAT(a.Add("n", 1, kLong), IsOk());
  adding.join();
  EXPECT_THAT(a.Add("n", 0, kLong), IsOkAndHolds(100));
  const auto swap = a.CompareSet("n", 1, "x", kLong);
  ASSERT_THAT(swap, IsOk());
  EXPECT_FALSE(swap->applied);
  EXPECT_THAT(a.Delete("n", kLong), IsOkAndHolds(true));
  EXPECT_THAT(a.Wait("n", 0, absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "\"n\""));
}

TEST_F(MembershipTest,
       AMemberThatFillsItsShareOfTheStoreLeavesTheOthersTheirs) {
  CoordinatorOptions options;
  options.core.store.max_owner_bytes = 1000;
  StartCoordinator(std::move(options));
  JoinBoth();
  const std::string large(700, 'x');
  EXPECT_THAT(trainer_->store().Set("a", large, kLong), IsOk());
  EXPECT_THAT(trainer_->store().Set("b", large, kLong),
              StatusIs(absl::StatusCode::kResourceExhausted, "trainer0"));
  EXPECT_THAT(ps_->store().Set("b", large, kLong), IsOk());
  // The certificate decides whose share it is, not the name in the request.
  v1::StoreRequest request;
  request.set_job("job");
  request.set_operation(v1::StoreRequest::SET);
  request.set_key("c");
  request.set_value("x");
  request.set_owner("trainer7");
  auto [promise, future] = MakePromise<std::string>();
  coordinator_->Handle(
      {"somebody", "trainer0"}, "Store", request.SerializeAsString(),
      [p = std::move(promise)](absl::StatusOr<std::string> answer) mutable {
        p.Set(std::move(answer));
      });
  EXPECT_THAT(future.Wait(kLong),
              StatusIs(absl::StatusCode::kResourceExhausted, "trainer0"));
}

TEST_F(MembershipTest, CallerMaySpeakOnlyForTheNameOfItsCertificate) {
  StartCoordinator();
  JoinBoth();
  const auto ask = [&](const std::string& name, absl::string_view method,
                       const std::string& request) {
    auto [promise, future] = MakePromise<std::string>();
    coordinator_->Handle(
        {"somebody", name}, method, request,
        [p = std::move(promise)](absl::StatusOr<std::string> answer) mutable {
          p.Set(std::move(answer));
        });
    return future.Wait(kLong);
  };
  const auto as_ps0 = [&](auto request) {
    request.set_job("job");
    request.mutable_key()->set_id(ps_->self().key.id);
    request.mutable_key()->set_epoch(ps_->self().key.epoch);
    return request;
  };
  const auto as_its_incarnation = [&](auto request) {
    request = as_ps0(std::move(request));
    request.set_incarnation(ps_->self().incarnation);
    return request.SerializeAsString();
  };
  v1::JoinRequest join;
  join.set_job("job");
  *join.mutable_world() = ToWire(World::Fixed(1, 1));
  join.mutable_member()->set_name("ps0");
  join.mutable_member()->set_role("ps");
  join.mutable_member()->set_address("unix:/mine");
  join.mutable_member()->set_incarnation(4711);
  v1::AnnounceRequest announce;
  announce.set_phase(v1::DRAINED);
  v1::BarrierRequest barrier = as_ps0(v1::BarrierRequest());
  barrier.set_tag("mine");
  barrier.add_members("ps0");
  barrier.set_arrival(1);
  const auto view = [&] {
    v1::WatchRequest watch;
    watch.set_job("job");
    const auto now = ask("trainer0", "Watch", watch.SerializeAsString());
    v1::WatchReply reply;
    EXPECT_TRUE(now.ok() && reply.ParseFromString(*now));
    return reply.view().version();  // which each change raises
  };
  const uint64_t before = view();
  for (const auto& [method, request] :
       {std::pair("Join", join.SerializeAsString()),
        std::pair("Heartbeat", as_its_incarnation(v1::HeartbeatRequest())),
        std::pair("Announce", as_its_incarnation(announce)),
        std::pair("Leave", as_its_incarnation(v1::LeaveRequest())),
        std::pair("Barrier", barrier.SerializeAsString())}) {
    EXPECT_THAT(
        ask("trainer0", method, request),
        StatusIs(absl::StatusCode::kPermissionDenied,
                 "somebody has the certificate of trainer0 and speaks as ps0"))
        << method;
  }
  v1::ReportExitRequest report;
  report.set_job("job");
  report.set_name("ps0");
  EXPECT_THAT(ask("trainer0", "ReportExit", report.SerializeAsString()),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "speaks as a witness (role admin)"));
  EXPECT_EQ(view(), before);
  EXPECT_THAT(ask("", "Nonsense", ""),
              StatusIs(absl::StatusCode::kUnimplemented, "Nonsense"));
  EXPECT_THAT(ask("", "Join", "\xff\xff\xff"),
              StatusIs(absl::StatusCode::kInvalidArgument, "Join"));
}

TEST_F(MembershipTest, RefusalOfTheCoordinatorIsLogged) {
  std::ostringstream log;
  telemetry::Telemetry::Options logging;
  logging.log_output = &log;
  telemetry::Telemetry telemetry(logging);
  CoordinatorOptions options;
  options.telemetry = &telemetry;
  auto coordinator =
      Coordinator::Create(*timers_, *executor_, std::move(options));
  ASSERT_THAT(coordinator, IsOk());
  const auto answer_to = [&](absl::string_view method,
                             absl::string_view request) {
    auto [promise, future] = MakePromise<std::string>();
    (*coordinator)
        ->Handle({"somebody", "trainer0"}, method, request,
                 [p = std::move(promise)](
                     absl::StatusOr<std::string> answer) mutable {
                   p.Set(std::move(answer));
                 });
    return future.Wait(kLong).status();
  };
  EXPECT_THAT(answer_to("Join", "\xff\xff\xff"),
              StatusIs(absl::StatusCode::kInvalidArgument, "Join"));
  // Before it is parsed; and before it waits for its turn.
  EXPECT_THAT(answer_to("Store", std::string((8 << 20) + 1, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "Store has 8388609 bytes, at most 8388608"));
  v1::BarrierRequest barrier;
  for (int i = 0; i < 16385; ++i) barrier.add_members("ps0");
  EXPECT_THAT(answer_to("Barrier", barrier.SerializeAsString()),
              StatusIs(absl::StatusCode::kInvalidArgument, "16385 members"));
  coordinator->reset();
  for (const char* method : {"Join", "Store", "Barrier"}) {
    EXPECT_THAT(log.str(),
                HasSubstr(absl::StrCat("refused kind=coordinator who=somebody "
                                       "what=",
                                       method, " why=")));
  }
}

TEST_F(MembershipTest, MemberOfAnEarlierTermIsStillSpokenForByItselfAlone) {
  {
    auto log = CoordinatorLog::Open(dir_.Path("log"));
    ASSERT_THAT(log, IsOk());
    v1::LogRecord joined;
    joined.mutable_joined()->set_name("ps0");
    joined.mutable_joined()->set_incarnation(7);
    joined.mutable_joined()->mutable_key()->set_epoch(MakeEpoch(1, 2));
    EXPECT_THAT((*log)->Append({Opened(1, "job"), joined}), IsOk());
  }
  CoordinatorOptions options;
  auto log = CoordinatorLog::Open(dir_.Path("log"));
  ASSERT_THAT(log, IsOk());
  options.journal = *std::move(log);
  StartCoordinator(std::move(options));
  v1::LeaveRequest leave;
  leave.set_job("job");
  leave.mutable_key()->set_epoch(MakeEpoch(1, 2));
  leave.set_incarnation(7);
  for (const bool is_self : {false, true}) {
    auto [promise, future] = MakePromise<std::string>();
    coordinator_->Handle(
        {"somebody", is_self ? "ps0" : "trainer0"}, "Leave",
        leave.SerializeAsString(),
        [p = std::move(promise)](absl::StatusOr<std::string> answer) mutable {
          p.Set(std::move(answer));
        });
    EXPECT_EQ(absl::IsPermissionDenied(future.Wait(kLong).status()), !is_self);
  }
}

TEST_F(MembershipTest, KilledCoordinatorComesBackWithoutOtherRestarts) {
  const auto start = [&] {
    auto host = testing::Process::Start(
        {{testing::RunfilePath("rendezvous/test_coordinator"), address_,
          dir_.Path("log")},
         {}});
    EXPECT_THAT(host, IsOk());
    EXPECT_THAT((*host)->WaitForOutput("serving", kLong), IsOk());
    return *std::move(host);
  };
  auto host = start();
  JoinBoth();
  const WorkerKey ps = ps_->self().key;
  EXPECT_THAT(ps_->store().Add("n", 5, kLong), IsOk());
  const Epoch before = ps_->view()->version();
  host->Signal(SIGKILL);
  EXPECT_THAT(host->Wait(kLong), IsOkAndHolds(128 + SIGKILL));
  host = start();
  EXPECT_THAT(
      ps_->WaitFor([&](const View& v) { return TermOf(v.version()) == 2; },
                   kLong),
      IsOk());
  EXPECT_GT(ps_->view()->version(), before);
  EXPECT_THAT(ps_->store().Add("n", 1, kLong), IsOkAndHolds(6));
  EXPECT_THAT(ps_->status(), IsOk());
  EXPECT_EQ(ps_->view()->Find("ps0")->key, ps);
  const WorkerKey old_key = trainer_->self().key;
  EXPECT_THAT(trainer_->Leave(kLong), IsOk());
  auto again = Join(OptionsOf("trainer", 0));
  ASSERT_THAT(again, IsOk());
  EXPECT_GT((*again)->self().key.epoch, old_key.epoch);
  EXPECT_EQ(TermOf((*again)->self().key.epoch), 2u);
}

}  // namespace
}  // namespace weft::rendezvous
