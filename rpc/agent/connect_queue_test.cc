#include "weft/rpc/agent/connect_queue.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/fake_clock.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

int64_t Twice(int64_t number) { return 2 * number; }
WEFT_RPC(Twice);

// A queue whose timers run when the test says so.
class ConnectQueueTest : public ::testing::Test {
 protected:
  // So that places_, as it ends, makes no room for others.
  ~ConnectQueueTest() override { queue_ = nullptr; }

  void Enter(uint32_t peer) {
    queue_->Enter(peer, [this, peer](ConnectQueue::Place place) {
      begun_.push_back(peer);
      places_[peer] = std::move(place);
    });
  }
  std::vector<uint32_t> Begun() { return std::exchange(begun_, {}); }
  void Fail(uint32_t peer) { Take(peer) = nullptr; }
  void Succeed(uint32_t peer) { Take(peer)->Succeeded(); }
  // It is let go of outside of the map, to which the next is added then.
  ConnectQueue::Place Take(uint32_t peer) {
    ConnectQueue::Place place = std::move(places_.at(peer));
    places_.erase(peer);
    return place;
  }
  void PassTime(absl::Duration time) {
    const Instant until = clock_.Now() + time;
    while (!timers_.empty() && timers_.begin()->first <= until) {
      clock_.Advance(timers_.begin()->first - clock_.Now());
      const auto run = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      run();
    }
    clock_.Advance(until - clock_.Now());
  }

  FakeClock clock_;
  std::multimap<Instant, std::function<void()>> timers_;
  std::vector<uint32_t> begun_;
  std::shared_ptr<ConnectQueue> queue_ = std::make_shared<ConnectQueue>(
      clock_,
      [this](Instant when, std::function<void()> fn) {
        timers_.emplace(when, std::move(fn));
      },
      /*first=*/10);
  std::map<uint32_t, ConnectQueue::Place> places_;
};

TEST_F(ConnectQueueTest, OneThatLeavesMakesRoomForTheNextByItsId) {
  for (uint32_t peer = 100; peer < 108; ++peer) Enter(peer);
  EXPECT_EQ(Begun().size(), 8);
  for (const uint32_t peer : {9, 300, 200, 11}) Enter(peer);
  EXPECT_THAT(Begun(), IsEmpty());
  Fail(107);
  EXPECT_THAT(Begun(), ElementsAre(11));
  Fail(11);
  Fail(100);
  EXPECT_THAT(Begun(), ElementsAre(200, 300));
  Fail(101);
  EXPECT_THAT(Begun(), ElementsAre(9));  // the last, seen from 10
  Fail(102);
  Enter(5);
  EXPECT_THAT(Begun(), ElementsAre(5));
}

TEST_F(ConnectQueueTest, ThoseThatDoNotAnswerKeepNobodyWaitingForLong) {
  for (uint32_t peer = 100; peer < 200; ++peer) Enter(peer);
  EXPECT_EQ(Begun().size(), 8);
  PassTime(absl::Milliseconds(999));
  EXPECT_THAT(Begun(), IsEmpty());
  PassTime(absl::Milliseconds(1));
  EXPECT_EQ(Begun().size(), 16);
  // Places of the first round make no room.
  Fail(100);
  EXPECT_THAT(Begun(), IsEmpty());
  PassTime(absl::Seconds(1));
  EXPECT_EQ(Begun().size(), 32);
  PassTime(absl::Seconds(1));
  EXPECT_EQ(Begun().size(), 44);
}

TEST_F(ConnectQueueTest, WhileConnectionsTakeLongFewAreMadeAtOnce) {
  for (uint32_t peer = 100; peer < 140; ++peer) Enter(peer);
  EXPECT_EQ(Begun().size(), 8);
  // Each begins as one ends, but for the first that make no room.
  for (uint32_t peer = 100; peer < 130; ++peer) {
    PassTime(absl::Milliseconds(600));
    Succeed(peer);
    EXPECT_EQ(Begun().size(), peer < 106 ? 0 : 1) << peer;
  }
}

TEST_F(ConnectQueueTest, WhileConnectionsAreQuickMoreAreMadeAtOnce) {
  for (uint32_t peer = 100; peer < 500; ++peer) Enter(peer);
  EXPECT_EQ(Begun().size(), 8);
  uint32_t peer = 100;
  for (int round = 0; round < 6; ++round) {
    PassTime(absl::Milliseconds(150));
    const size_t under_way = places_.size();
    for (size_t i = 0; i < under_way; ++i) Succeed(peer++);
    EXPECT_EQ(places_.size(), std::min<size_t>(64, 2 * under_way));
  }
}

// So it is where agents end, or their calls have ended while they waited.
TEST_F(ConnectQueueTest, ManyThatEndAsTheyBeginNeedNoDeepStack) {
  constexpr int kMany = 200000;
  for (uint32_t peer = 20; peer < 28; ++peer) Enter(peer);
  int begun = 0;
  for (int i = 0; i < kMany; ++i) {
    queue_->Enter(100, [&begun](ConnectQueue::Place) { ++begun; });
  }
  EXPECT_EQ(begun, 0);
  Fail(20);
  EXPECT_EQ(begun, kMany);
  Enter(30);  // and there is a place
  EXPECT_THAT(Begun(), Contains(30));
}

TEST_F(ConnectQueueTest, PlaceMayBeLeftAtOnceAndAfterTheQueue) {
  for (int i = 0; i < 3; ++i) {
    queue_->Enter(1, [&](ConnectQueue::Place) { begun_.push_back(1); });
  }
  EXPECT_EQ(Begun().size(), 3);
  Enter(2);
  queue_ = nullptr;
  places_.clear();
}

// An agent calls 70 peers that do not answer before one that does.
TEST(ConnectQueue, ManySilentPeersDelayTheFirstCallToAnotherByFewSeconds) {
  constexpr int kSilent = 70;
  SimulatedRanks ranks(kSilent + 2, {});
  std::vector<Future<int64_t>> silent;
  for (int peer = 1; peer <= kSilent; ++peer) {
    ranks.network().Cut("w0", absl::StrCat("w", peer));
    silent.push_back(
        CallAsync(ranks[0].To(absl::StrCat("w", peer)), Twice, int64_t{1}));
  }
  const Instant began = ranks.simulator().Now();
  EXPECT_THAT(
      Call(ranks[0].To(absl::StrCat("w", kSilent + 1)), Twice, int64_t{21}),
      IsOkAndHolds(42));
  EXPECT_LE(ranks.simulator().Now() - began, absl::Seconds(4));
  for (Future<int64_t>& call : silent) {
    EXPECT_THAT(call.Wait(absl::Minutes(2)).status(),
                StatusIs(absl::StatusCode::kUnavailable));
  }
}

}  // namespace
}  // namespace weft::rpc
