// Tests of Membership against a Coordinator: in one process, over the network,
// and across kill -9 of the coordinator's process.

#include "weft/rendezvous/membership.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
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
#include "weft/rendezvous/client/store_client.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/core/member_core.h"
#include "weft/rendezvous/grpc_coordinator.h"
#include "weft/rendezvous/journal/journal.h"
#include "weft/rendezvous/membership_fixture.h"
#include "weft/rendezvous/wire.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

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
  EXPECT_TRUE(Becomes([&] { return link.questions >= 1; }));  // it is sent
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

// ps0 is told of the world only once trainer0 has come and gone: it must not
// wait for a trainer that will not come again.
TEST_F(MembershipTest, WorldThatWasCompleteWhileNoNewsCameIsNotWaitedFor) {
  StartCoordinator();
  auto lossy = std::make_unique<LossyLink>(
      MakeGrpcLink(*loop_, address_, "ps0").value());
  LossyLink& link = *lossy;
  link.loses_news = true;
  JoinOptions options = OptionsOf("ps", 0);
  options.wait_for_world = false;
  const auto late = Membership::Join(*timers_, std::move(lossy), options);
  ASSERT_THAT(late, IsOk());
  EXPECT_THAT((*late)->AwaitWorld(absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "1/2 joined, missing trainer0"));
  const auto trainer = Join(OptionsOf("trainer", 0));
  ASSERT_THAT(trainer, IsOk());
  EXPECT_THAT((*trainer)->Leave(kLong), IsOk());
  EXPECT_THAT((*late)->Refresh(kLong), IsOk());
  EXPECT_FALSE((*late)->view()->IsComplete());
  EXPECT_THAT((*late)->AwaitWorld(kLong), IsOk());
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
  // An operation that is tried again holds up nobody.
  EXPECT_TRUE(IsWoken(disk.asked_again));
  // Again where the last try of one was not answered in time.
  EXPECT_TRUE(Becomes([&] {
    const absl::Status status =
        ps_->store().Get("sum", absl::Seconds(1)).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    return absl::StrContains(status.message(), "waits for its journal");
  }));
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
  // Operations that are begun now end as well.
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
