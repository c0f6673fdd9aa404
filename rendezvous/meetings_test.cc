// Barriers, gatherings, phases and the store of members; who may speak for
// whom.

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/driver.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"
#include "weft/base/parker.h"
#include "weft/net/loop/loop.h"
#include "weft/rendezvous/client/store_client.h"
#include "weft/rendezvous/coordinator.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/journal/coordinator_log.h"
#include "weft/rendezvous/membership.h"
#include "weft/rendezvous/membership_fixture.h"
#include "weft/rendezvous/wire.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

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
  // Too long a request is refused before it is parsed or waits for its turn.
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

}  // namespace
}  // namespace weft::rendezvous
