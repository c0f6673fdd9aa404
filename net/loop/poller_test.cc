#include "weft/net/loop/poller.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/tests/support/patience.h"

namespace weft::net {
namespace {

using ::weft::testing::Becomes;

constexpr absl::Duration kSoon =
    absl::Seconds(30);  // longer than any wait that ends well

// Events are functions, put in by any thread.
class FakeQueue final : public EventQueue {
 public:
  Outcome Next(Instant deadline) override {
    EXPECT_EQ(inside_.fetch_add(1), 0) << "two threads inside the queue";
    bool ended = false;
    looks_.fetch_add(1);
    {
      const std::chrono::steady_clock::time_point until{
          std::chrono::nanoseconds(
              std::min(deadline.nanoseconds(), int64_t{1} << 62))};
      MutexLock lock(mu_);
      while (events_.empty() && wakes_ == 0 && !ended_ &&
             changed_.WaitUntil(mu_, until)) {
      }
      if (wakes_ > 0) --wakes_;
      ended = events_.empty() && ended_;
      if (!events_.empty()) {
        taken_ = std::move(events_.front());
        events_.pop_front();
      }
    }
    inside_.fetch_sub(1);
    if (ended) return Outcome::kEnd;
    return taken_ == nullptr ? Outcome::kTimeout : Outcome::kEvent;
  }
  void Handle() override {
    InlineScope scope;
    std::exchange(taken_, nullptr)();
  }
  void Wake() override {
    MutexLock lock(mu_);
    ++wakes_;
    ++all_wakes_;
    changed_.NotifyAll();
  }
  void Put(std::function<void()> event) {
    MutexLock lock(mu_);
    events_.push_back(std::move(event));
    changed_.NotifyAll();
  }
  bool IsInBurst() const override { return in_burst; }
  void Leave() override { ++left; }
  void End() {
    MutexLock lock(mu_);
    ended_ = true;
    changed_.NotifyAll();
  }
  // How often Next was called.
  int looks() const { return looks_.load(); }
  // How often Wake was called.
  int all_wakes() {
    MutexLock lock(mu_);
    return all_wakes_;
  }

  // The thread that polls uses these.
  bool in_burst = false;
  int left = 0;  // how often Leave was called

 private:
  std::atomic<int> inside_{0};
  std::atomic<int> looks_{0};
  std::function<void()> taken_;  // of the thread that polls
  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> events_ ABSL_GUARDED_BY(mu_);
  int wakes_ ABSL_GUARDED_BY(mu_) = 0;
  int all_wakes_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class PollerTest : public ::testing::Test {
 protected:
  ~PollerTest() override {
    queue_.End();
    poller_.Join();
  }

  // Ready when the event that it puts into the queue has been handled.
  Future<void> Echo() {
    auto promise = std::make_shared<Promise<void>>(poller_);
    Future<void> future = promise->future();
    queue_.Put([promise] { promise->Set(absl::OkStatus()); });
    return future;
  }

  FakeQueue queue_;
  Poller poller_{queue_, {}};
};

TEST_F(PollerTest, AWaitingThreadHandlesEventsItself) {
  // No background thread: nobody else could.
  std::thread::id handled_by;
  auto promise = std::make_shared<Promise<void>>(poller_);
  queue_.Put([&handled_by, promise] {
    handled_by = std::this_thread::get_id();
    promise->Set(absl::OkStatus());
  });
  EXPECT_TRUE(promise->future().Wait(kSoon).ok());
  EXPECT_EQ(handled_by, std::this_thread::get_id());
}

TEST_F(PollerTest, BackgroundThreadHandlesEventsWhenNoThreadWaits) {
  ASSERT_TRUE(poller_.Start().ok());
  std::atomic<bool> handled{false};
  queue_.Put([&] { handled = true; });
  EXPECT_TRUE(Becomes([&] { return handled.load(); }));
}

// A thread that makes one call after another shares its core with nobody.
TEST_F(PollerTest, QuickWaitsDoNotWakeTheBackgroundThread) {
  ASSERT_TRUE(poller_.Start().ok());
  // A loaded machine may keep this thread from its core for longer than the
  // background thread waits.
  EXPECT_TRUE(Becomes([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(Echo().Wait(kSoon).ok());
    const uint32_t before = poller_.background_turns();
    // More than the background thread ever waits, and less than this one is
    // left alone on a machine that others share.
    const absl::Time end = absl::Now() + absl::Milliseconds(6);
    while (absl::Now() < end) EXPECT_TRUE(Echo().Wait(kSoon).ok());
    return poller_.background_turns() == before;
  }));
}

TEST_F(PollerTest, BackgroundThreadHandlesEventsSoonAfterQuickWaits) {
  ASSERT_TRUE(poller_.Start().ok());
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Echo().Wait(kSoon).ok());
  std::atomic<bool> handled{false};
  queue_.Put([&] { handled = true; });
  EXPECT_TRUE(Becomes([&] { return handled.load(); }));
}

TEST_F(PollerTest, AWaitEndsAtItsDeadline) {
  ASSERT_TRUE(poller_.Start().ok());
  Promise<void> never(poller_);
  EXPECT_EQ(never.future().Wait(absl::Milliseconds(20)).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PollerTest, AReadyMadeElsewhereWakesTheHolder) {
  Promise<void> promise(poller_);
  Future<void> future = promise.future();
  std::thread elsewhere([&] { promise.Set(absl::OkStatus()); });
  EXPECT_TRUE(future.Wait(kSoon).ok());
  elsewhere.join();
}

TEST(SleepingPoller, IsNotWokenByItsOwnEvents) {
  FakeQueue queue;
  PollerOptions options;
  options.spin = absl::ZeroDuration();  // it sleeps before each event
  Poller poller(queue, options);
  for (int i = 0; i < 10; ++i) {
    auto promise = std::make_shared<Promise<void>>(poller);
    queue.Put([promise] { promise->Set(absl::OkStatus()); });
    EXPECT_TRUE(promise->future().Wait(kSoon).ok());
  }
  EXPECT_EQ(queue.all_wakes(), 0);
  queue.End();
  poller.Join();
}

// A poller whose core others may want: each yield does what `meanwhile` says.
class YieldingPoller : public ::testing::Test {
 protected:
  ~YieldingPoller() override {
    queue_.End();
    poller_->Join();
  }

  void Make(absl::Duration spin, std::function<void()> meanwhile,
            absl::Duration long_yield = PollerOptions().long_yield) {
    PollerOptions options;
    options.spin = spin;
    options.long_yield = long_yield;
    options.yield = [this, meanwhile = std::move(meanwhile)] {
      ++yields_;
      meanwhile();
    };
    poller_.emplace(queue_, options);
    promise_ = std::make_shared<Promise<void>>(*poller_);
  }

  // The event that ends the wait of now.
  void Put() {
    queue_.Put([promise = promise_] { promise->Set(absl::OkStatus()); });
  }

  void Wait() {
    EXPECT_TRUE(promise_->future().Wait(kSoon).ok());
    promise_ = std::make_shared<Promise<void>>(*poller_);
  }

  static void Work(absl::Duration d) {
    const Instant end = SteadyClock().Now() + d;
    while (SteadyClock().Now() < end) {
    }
  }

  FakeQueue queue_;
  std::optional<Poller> poller_;
  std::shared_ptr<Promise<void>> promise_;
  int yields_ = 0;
};

TEST_F(YieldingPoller, ThreadYieldsBeforeItSleeps) {
  // Without a yield the event would never come.
  Make(absl::ZeroDuration(), [this] { Put(); });
  Wait();
  EXPECT_EQ(yields_, 1);
  EXPECT_EQ(queue_.looks(), 1);
}

TEST_F(YieldingPoller, WhereTheCoreIsWantedOthersGoFirst) {
  std::vector<int> looks_before;  // each yield
  Make(
      absl::Hours(1),
      [this, &looks_before] {
        looks_before.push_back(queue_.looks());
        Work(absl::Microseconds(20));
        Put();
      },
      /*long_yield=*/absl::InfiniteDuration());
  Wait();
  ASSERT_EQ(looks_before.size(), 1u);
  EXPECT_GT(looks_before[0], 0) << "nobody was known to want the core";
  const int looks = queue_.looks();
  Wait();
  ASSERT_EQ(looks_before.size(), 2u);
  EXPECT_EQ(looks_before[1], looks);
}

TEST_F(YieldingPoller, OneLongYieldIsNoReasonToSleep) {
  // The event comes at the third yield, which is not reached asleep.
  int before = 0;
  Make(
      absl::Hours(1),
      [this, &before] {
        if (yields_ == before + 1) Work(absl::Microseconds(20));
        if (yields_ == before + 3) Put();
      },
      /*long_yield=*/absl::InfiniteDuration());
  // The second yield may take long too, on a busy machine.
  bool came = false;
  for (int attempt = 0; attempt < 100 && !came; ++attempt) {
    before = yields_;
    came = promise_->future().Wait(absl::Milliseconds(50)).ok();
  }
  EXPECT_TRUE(came);
}

TEST_F(YieldingPoller, TwoLongYieldsInARowMeanThatTheCoreIsWanted) {
  Make(
      absl::Hours(1), [] { Work(absl::Microseconds(20)); },
      /*long_yield=*/absl::InfiniteDuration());
  // Awake it would yield until then; both yields are over long before.
  EXPECT_FALSE(promise_->future().Wait(absl::Seconds(4)).ok());
  EXPECT_EQ(yields_, 2);
}

TEST_F(YieldingPoller, OnASharedCoreOneLongYieldIsEnoughToSleep) {
  bool puts = true;
  Make(
      absl::Hours(1),
      [this, &puts] {
        Work(absl::Microseconds(20));
        if (puts) Put();
      },
      /*long_yield=*/absl::InfiniteDuration());
  // A yield in which the background thread looked in does not count.
  bool slept = false;
  for (int attempt = 0; attempt < 100 && !slept; ++attempt) {
    puts = true;
    Wait();  // the yield before this event was long
    puts = false;
    const int before = yields_;
    EXPECT_FALSE(promise_->future().Wait(absl::Milliseconds(50)).ok());
    slept = yields_ == before + 1;
  }
  EXPECT_TRUE(slept);
}

TEST_F(YieldingPoller, BesideOneThatComputesItSleepsAtOnce) {
  Make(absl::Hours(1), [this] {
    Work(absl::Milliseconds(1));
    Put();
  });
  Wait();
  ASSERT_EQ(yields_, 1);
  // It tries again after 4 events, then 8, 16, 32, 64, 64, ...; the event of a
  // yield is one of them.
  for (const int asleep : {4, 8, 16, 32, 64, 64}) {
    const int before = yields_;
    for (int i = 1; i < asleep; ++i) {
      Put();
      Wait();
    }
    EXPECT_EQ(yields_, before) << asleep;
    Wait();
    EXPECT_EQ(yields_, before + 1) << asleep;
  }
}

TEST_F(YieldingPoller, OneLongTurnOfAnotherThreadCostsFewEventsAsleep) {
  // So long that no other thread of a busy machine makes a yield long.
  constexpr absl::Duration kLongYield = absl::Milliseconds(250);
  bool computes = true;
  Make(
      absl::Hours(1),
      [this, &computes] {
        if (computes) Work(2 * kLongYield);
        Put();
      },
      kLongYield);
  for (int round = 0; round < 2; ++round) {
    computes = true;
    Wait();
    computes = false;
    const int before = yields_;
    for (int i = 1; i < 4; ++i) {
      Put();
      Wait();
    }
    EXPECT_EQ(yields_, before) << round;
    for (int i = 0; i < 64; ++i) Wait();  // calm again
    EXPECT_EQ(yields_, before + 64) << round;
  }
}

TEST_F(PollerTest, WaitThatEndsInABurstTakesTheRestOfIt) {
  for (const bool in_burst : {false, true}) {
    queue_.in_burst = in_burst;
    const Future<void> first = Echo();
    std::vector<Future<void>> rest;
    for (int i = 0; i < 5; ++i) rest.push_back(Echo());
    EXPECT_TRUE(first.Wait(kSoon).ok());
    for (const Future<void>& future : rest) {
      EXPECT_EQ(future.IsReady(), in_burst);
    }
    for (const Future<void>& future : rest) {
      EXPECT_TRUE(future.Wait(kSoon).ok());
    }
  }
}

TEST_F(PollerTest, WaitTakesABoundedNumberOfABurst) {
  queue_.in_burst = true;
  int handled = 0;
  // Each event makes the next: the burst has no end.
  std::function<void()> next = [&] {
    if (++handled < 1000) queue_.Put(next);
  };
  const Future<void> first = Echo();
  queue_.Put(next);
  EXPECT_TRUE(first.Wait(kSoon).ok());
  EXPECT_EQ(handled, 16);
  queue_.in_burst = false;
}

TEST_F(PollerTest, WaitsThatFoundNoRestOfABurstSeldomLookForIt) {
  const auto looks_of = [&](int waits) {
    const int before = queue_.looks();
    for (int i = 0; i < waits; ++i) EXPECT_TRUE(Echo().Wait(kSoon).ok());
    return queue_.looks() - before;
  };
  const int alone = looks_of(500);
  queue_.in_burst = true;  // and no wait finds a second event
  EXPECT_LE(looks_of(500), alone + 25);
  // A rest that is there is found again soon, and then by each wait.
  int found = 0;
  for (int i = 0; i < 100; ++i) {
    const Future<void> first = Echo();
    const Future<void> second = Echo();
    EXPECT_TRUE(first.Wait(kSoon).ok());
    found += second.IsReady() ? 1 : 0;
    EXPECT_TRUE(second.Wait(kSoon).ok());
  }
  EXPECT_GE(found, 60);
}

TEST_F(PollerTest, LeavingThreadNotifiesTheQueue) {
  EXPECT_TRUE(Echo().Wait(kSoon).ok());
  EXPECT_EQ(queue_.left, 1);
}

TEST_F(PollerTest, ThreadsThatWaitAtOnceAllFinish) {
  ASSERT_TRUE(poller_.Start().ok());
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      // So often that some waits are over as they begin: who is listed then
      // must not stay so.
      for (int i = 0; i < 2000; ++i)
        finished += Echo().Wait(kSoon).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished.load(), 16000);
}

TEST_F(PollerTest, WithoutABackgroundThreadTheQueueIsHandedOn) {
  // Each event is handled by one of the waiters, whichever of them has left
  // already.
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) finished += Echo().Wait(kSoon).ok() ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished.load(), 800);
}

// The queue must not go to one who is not there any more.
TEST_F(PollerTest, AWaitThatEndsBeforeItParksLeavesNothingBehind) {
  std::atomic<bool> holds{false};
  std::atomic<bool> tried{false};
  auto promise = std::make_shared<Promise<void>>(poller_);
  Future<void> held = promise->future();
  queue_.Put([&holds, &tried, promise] {
    holds = true;
    while (!tried) std::this_thread::yield();
    promise->Set(absl::OkStatus());
  });
  std::thread holder([&] { EXPECT_TRUE(held.Wait(kSoon).ok()); });
  EXPECT_TRUE(Becomes([&] { return holds.load(); }));
  Promise<void> never(poller_);
  EXPECT_FALSE(never.future().Wait(absl::ZeroDuration()).ok());
  tried = true;
  holder.join();
  std::thread next([&] { EXPECT_TRUE(Echo().Wait(kSoon).ok()); });
  next.join();
}

TEST_F(PollerTest, PostedFunctionsRunInOrder) {
  ASSERT_TRUE(poller_.Start().ok());
  std::vector<int> order;
  auto promise = std::make_shared<Promise<void>>(poller_);
  for (int i = 0; i < 100; ++i)
    poller_.Post([&order, i] { order.push_back(i); });
  poller_.Post([promise] { promise->Set(absl::OkStatus()); });
  ASSERT_TRUE(promise->future().Wait(kSoon).ok());
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(PollerTest, AnEarlierTimerWakesTheSleeper) {
  ASSERT_TRUE(poller_.Start().ok());
  auto promise = std::make_shared<Promise<void>>(poller_);
  poller_.RunAt(SteadyClock().Now() + absl::Hours(1), [] {});
  poller_.RunAt(SteadyClock().Now() + absl::Milliseconds(1),
                [promise] { promise->Set(absl::OkStatus()); });
  EXPECT_TRUE(promise->future().Wait(kSoon).ok());
}

TEST_F(PollerTest, AnIdlePollerBurnsNoCpu) {
  ASSERT_TRUE(poller_.Start().ok());
  ASSERT_TRUE(Echo().Wait(kSoon).ok());
  timespec before;
  timespec after;
  // The wait itself is the pause: this thread and the background thread have
  // nothing to do in it.
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  Promise<void> never(poller_);
  EXPECT_FALSE(never.future().Wait(absl::Milliseconds(500)).ok());
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  const int64_t used_ms = (after.tv_sec - before.tv_sec) * 1000 +
                          (after.tv_nsec - before.tv_nsec) / 1'000'000;
  EXPECT_LT(used_ms, 100);
}

}  // namespace
}  // namespace weft::net
