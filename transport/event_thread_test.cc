#include "weft/transport/event_thread.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/driver.h"
#include "weft/base/failpoint.h"
#include "weft/base/parker.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::transport {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

Instant Now() { return SteadyClock().Now(); }

// Waits until `thread` has run what was posted before, and its due timers.
void AwaitTurn(EventThread& thread) {
  Parker passed;
  thread.Post([&] { passed.Unpark(); });
  EXPECT_TRUE(IsWoken(passed));
}

// A thread that has begun a task, and does not end it before it may.
class BusyThread {
 public:
  BusyThread() : thread_(*EventThread::Create()) {
    thread_->Post([this] {
      began_.Unpark();
      EXPECT_TRUE(IsWoken(may_end_));
    });
    EXPECT_TRUE(IsWoken(began_));
  }
  ~BusyThread() { Free(); }
  EventThread& thread() { return *thread_; }
  void Free() { may_end_.Unpark(); }
  // Once Stop has been called on another thread.
  void StopWhileBusy() {
    std::thread stops([&] { thread_->Stop(); });
    // What is posted is dropped from then on.
    for (bool has_ended = false; !has_ended;) {
      const int64_t id = thread_->RunAt(Now() + absl::Hours(1), [] {});
      has_ended = id == 0;
      if (!has_ended) {
        EXPECT_TRUE(thread_->Cancel(id));
      }
    }
    Free();
    stops.join();
  }

 private:
  Parker began_;
  Parker may_end_;
  const std::unique_ptr<EventThread> thread_;
};

TEST(EventThread, RunsWhatIsPostedInOrderOnAThreadOfItsOwn) {
  const auto thread = *EventThread::Create();
  std::vector<int> ran;
  std::thread::id id;
  for (int i = 0; i < 3; ++i) {
    thread->Post([&, i] {
      ran.push_back(i);
      id = std::this_thread::get_id();
    });
  }
  AwaitTurn(*thread);
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
  EXPECT_NE(id, std::this_thread::get_id());
}

TEST(EventThread, TasksMayNotWaitButMayPost) {
  const auto thread = *EventThread::Create();
  bool is_inline = false;
  Parker ran;
  thread->Post([&] {
    is_inline = InlineScope::IsActive();
    thread->Post([&] { thread->RunAt(Now(), [&] { ran.Unpark(); }); });
  });
  EXPECT_TRUE(IsWoken(ran));
  EXPECT_TRUE(is_inline);
}

TEST(EventThread, TaskThatThrowsEndsNothing) {
  const auto thread = *EventThread::Create();
  thread->Post([] { throw std::runtime_error("of a task"); });
  AwaitTurn(*thread);
}

TEST(EventThread, TimersRunInTheOrderOfTheirTimesAndThenOfTheCalls) {
  BusyThread busy;
  std::vector<int> ran;
  const Instant now = Now();
  busy.thread().RunAt(now - absl::Seconds(1), [&] { ran.push_back(2); });
  busy.thread().RunAt(now - absl::Seconds(2), [&] { ran.push_back(0); });
  busy.thread().RunAt(now - absl::Seconds(1), [&] { ran.push_back(3); });
  busy.thread().RunAt(now - absl::Seconds(2), [&] { ran.push_back(1); });
  busy.Free();
  AwaitTurn(busy.thread());
  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 3));
}

TEST(EventThread, TimerIsNotEarlyAndAnEarlierOneIsNotKeptWaiting) {
  const auto thread = *EventThread::Create();
  const Instant late = Now() + absl::Hours(1);
  const int64_t never = thread->RunAt(late, [] { ADD_FAILURE() << "early"; });
  // The thread waits for that one by now, or will.
  const Instant soon = Now() + absl::Milliseconds(20);
  std::optional<Instant> ran_at;
  Parker ran;
  thread->RunAt(soon, [&] {
    ran_at = Now();
    ran.Unpark();
  });
  ASSERT_TRUE(IsWoken(ran));
  EXPECT_GE(*ran_at, soon);
  EXPECT_TRUE(thread->Cancel(never));
}

TEST(EventThread, TimerIsCancelledOnceAndNotAfterItHasRun) {
  BusyThread busy;
  bool has_run = false;
  const int64_t cancelled =
      busy.thread().RunAt(Now(), [] { ADD_FAILURE() << "cancelled"; });
  const int64_t ran = busy.thread().RunAt(Now(), [&] { has_run = true; });
  EXPECT_TRUE(busy.thread().Cancel(cancelled));
  EXPECT_FALSE(busy.thread().Cancel(cancelled));
  busy.Free();
  AwaitTurn(busy.thread());
  EXPECT_TRUE(has_run);
  EXPECT_FALSE(busy.thread().Cancel(ran));
  for (const int64_t none : {int64_t{0}, int64_t{-1}, int64_t{1} << 40}) {
    EXPECT_FALSE(busy.thread().Cancel(none));
  }
}

// What a task holds is released without a lock: it may use the thread.
TEST(EventThread, WhatACancelledTimerHoldsMayUseTheThread) {
  const auto thread = *EventThread::Create();
  Parker ran;
  auto holds = absl::MakeCleanup([&] { thread->Post([&] { ran.Unpark(); }); });
  const int64_t id =
      thread->RunAt(Now() + absl::Hours(1), [holds = std::move(holds)] {});
  EXPECT_TRUE(thread->Cancel(id));
  EXPECT_TRUE(IsWoken(ran));
}

TEST(EventThread, StopDropsWhatHasNotRunAndWhatComesLater) {
  BusyThread busy;
  EventThread& thread = busy.thread();
  const auto held = std::make_shared<int>(0);
  int64_t cancelled_in_release = 1;
  auto asks = absl::MakeCleanup(
      [&] { cancelled_in_release = thread.Cancel(1) ? 1 : 0; });
  thread.Post([held] { ADD_FAILURE() << "posted before"; });
  const int64_t timer = thread.RunAt(
      Now(), [held, asks = std::move(asks)] { ADD_FAILURE() << "a timer"; });
  EXPECT_EQ(held.use_count(), 3);
  busy.StopWhileBusy();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(cancelled_in_release, 0);
  EXPECT_FALSE(thread.Cancel(timer));
  thread.Post([held] { ADD_FAILURE() << "posted after"; });
  const int64_t none = thread.RunAt(Now(), [held] { ADD_FAILURE(); });
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(thread.Cancel(none));
  thread.Stop();  // again
}

TEST(EventThread, WithoutAThreadCreateSaysWhatItWasFor) {
  const ScopedFailpoint threads("base/start_thread",
                                "error(RESOURCE_EXHAUSTED,no thread)");
  EXPECT_THAT(EventThread::Create().status(),
              StatusIs(absl::StatusCode::kResourceExhausted, "no thread"));
}

}  // namespace
}  // namespace weft::transport
