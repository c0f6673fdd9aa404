#include "weft/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/parker.h"
#include "weft/base/strand.h"
#include "weft/tests/support/run_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::IsOk;
using testing::IsOkAndHolds;
using testing::RunRanks;
using testing::StatusIs;

constexpr absl::Duration kSoon = absl::Seconds(20);

std::unique_ptr<ThreadPool> MakePool(
    int threads, int max_threads, absl::Duration spin = absl::ZeroDuration()) {
  ThreadPool::Options options;
  options.threads = threads;
  options.spin = spin;
  options.max_threads = max_threads;
  options.spare_idle_time = absl::ZeroDuration();
  auto pool = ThreadPool::Create(options);
  WEFT_CHECK(pool.ok()) << pool.status();
  return *std::move(pool);
}

// Looks until `claim` holds; false if it does not within a long time.
template <typename Claim>
bool Eventually(Claim claim) {
  const Instant deadline = SteadyClock().Now() + kSoon;
  while (!claim()) {
    if (SteadyClock().Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(ThreadPool, RefusesNumbersThatMakeNoSense) {
  ThreadPool::Options options;
  options.threads = 3;
  options.max_threads = 2;
  EXPECT_THAT(ThreadPool::Create(options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "threads=3"));
}

TEST(ThreadPool, RunsTasksInOrderOnOneThread) {
  auto pool = MakePool(1, 1);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) pool->Schedule([&, i] { order.push_back(i); });
  ASSERT_THAT(pool->Shutdown(), IsOk());
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(ThreadPool, ReplacesAWorkerThatBlocks) {
  auto pool = MakePool(1, 4);
  auto [promise, future] = MakePromise<int>();
  auto [answer_promise, answer] = MakePromise<int>();
  pool->Schedule([f = future, p = std::move(answer_promise)]() mutable {
    p.Set(f.Wait(kSoon));
  });
  pool->Schedule([p = std::move(promise)]() mutable { p.Set(6); });
  EXPECT_THAT(answer.Wait(kSoon), IsOkAndHolds(6));
  EXPECT_TRUE(Eventually([&] { return pool->stats().threads == 1; }));
}

TEST(ThreadPool, DoesNotExceedItsCap) {
  auto pool = MakePool(1, 3);
  std::vector<Promise<void>> promises;
  std::atomic<int> woken{0};
  for (int i = 0; i < 5; ++i) {
    auto [promise, future] = MakePromise<void>();
    promises.push_back(std::move(promise));
    pool->Schedule([&, f = future] { woken += f.Wait(kSoon).ok(); });
  }
  ASSERT_TRUE(Eventually([&] { return pool->stats().blocked == 3; }));
  EXPECT_EQ(pool->stats().threads, 3);
  EXPECT_EQ(pool->stats().queued, 2);
  for (auto& promise : promises) promise.Set(absl::OkStatus());
  ASSERT_THAT(pool->Shutdown(), IsOk());
  EXPECT_EQ(woken, 5);
}

// Neither for one that has yet to begin, nor for one between two tasks.
TEST(ThreadPool, AddsNoSpareBesideAThreadThatIsAboutToLook) {
  for (int round = 0; round < 100; ++round) {
    auto pool = *ThreadPool::Create({"pool", /*threads=*/2});
    for (int i = 0; i < 20; ++i) {
      for (int more = 0; more < 4; ++more) pool->Schedule([] {});
      auto [promise, future] = MakePromise<void>();
      pool->Schedule(
          [p = std::move(promise)]() mutable { p.Set(absl::OkStatus()); });
      ASSERT_THAT(future.Wait(kSoon), IsOk());
    }
    ASSERT_EQ(pool->stats().threads, 2);
  }
}

TEST(ThreadPool, AddsNoSpareForATaskThatAThreadWillTakeOnceItHasBegun) {
  for (int round = 0; round < 300; ++round) {
    auto pool = *ThreadPool::Create({"pool", /*threads=*/2});
    auto [promise, future] = MakePromise<void>();
    pool->Schedule([&, p = std::move(promise)]() mutable {
      auto [other, ran] = MakePromise<void>();
      pool->Schedule(
          [o = std::move(other)]() mutable { o.Set(absl::OkStatus()); });
      p.Set(ran.Wait(kSoon));
    });
    ASSERT_THAT(future.Wait(kSoon), IsOk());
    ASSERT_EQ(pool->stats().threads, 2);
  }
}

// One task blocks, so a spare runs another; when both run, a third must wait
// until one thread is the normal number again.
TEST(ThreadPool, ReturnsToTheNormalNumberAfterBlocking) {
  auto pool = MakePool(1, 8);
  auto [promise, future] = MakePromise<void>();
  Parker blocked_task_may_end, spare_task_may_end;
  std::atomic<bool> went_on{false}, third_ran{false};
  pool->Schedule([&, f = future] {
    f.Wait(kSoon).IgnoreError();
    went_on = true;
    blocked_task_may_end.Park();
  });
  pool->Schedule([&] { spare_task_may_end.Park(); });
  pool->Schedule([&] { third_ran = true; });
  ASSERT_TRUE(Eventually(
      [&] { return pool->stats().threads == 2 && pool->stats().queued == 1; }));
  promise.Set(absl::OkStatus());
  ASSERT_TRUE(Eventually([&] { return went_on.load(); }));
  spare_task_may_end.Unpark();
  // The spare goes, rather than take the third task.
  EXPECT_TRUE(Eventually([&] { return pool->stats().threads == 1; }));
  EXPECT_FALSE(third_ran);
  blocked_task_may_end.Unpark();
  ASSERT_THAT(pool->Shutdown(), IsOk());
  EXPECT_TRUE(third_ran);
}

TEST(ThreadPool, OutlivesATaskThatThrows) {
  auto pool = MakePool(1, 1);
  bool ran = false;
  pool->Schedule([] { throw std::runtime_error("a task's own fault"); });
  pool->Schedule([&] { ran = true; });
  ASSERT_THAT(pool->Shutdown(), IsOk());
  EXPECT_TRUE(ran);
}

TEST(ThreadPool, ShutdownRunsTasksScheduledByTasks) {
  auto pool = MakePool(2, 2);
  std::atomic<int> depth{0};
  std::function<void()> deeper = [&] {
    if (++depth < 50) pool->Schedule(deeper);
  };
  pool->Schedule(deeper);
  ASSERT_THAT(pool->Shutdown(), IsOk());
  EXPECT_EQ(depth, 50);
}

TEST(ThreadPool, DropsTasksAfterShutdown) {
  auto pool = MakePool(1, 1);
  ASSERT_THAT(pool->Shutdown(), IsOk());
  auto [promise, future] = MakePromise<int>();
  pool->Schedule([p = std::move(promise)]() mutable { p.Set(1); });
  EXPECT_THAT(future.Wait(kSoon), StatusIs(absl::StatusCode::kCancelled));
}

TEST(ThreadPool, ShutdownGivesUpAtItsDeadline) {
  auto pool = MakePool(1, 1);
  auto [promise, future] = MakePromise<void>();
  auto [queued_promise, queued] = MakePromise<void>();
  pool->Schedule([f = future] { f.Wait(kSoon).IgnoreError(); });
  pool->Schedule(
      [p = std::move(queued_promise)]() mutable { p.Set(absl::OkStatus()); });
  EXPECT_THAT(pool->Shutdown(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "dropped"));
  promise.Set(absl::OkStatus());
  EXPECT_TRUE(Eventually([&late = queued] { return late.IsReady(); }));
}

TEST(ThreadPool, RefusesToShutDownOnItsOwnThread) {
  auto pool = MakePool(1, 1);
  auto [promise, future] = MakePromise<void>();
  pool->Schedule(
      [&, p = std::move(promise)]() mutable { p.Set(pool->Shutdown()); });
  EXPECT_THAT(future.Wait(kSoon),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Many threads schedule tasks, half of which wait for one another.
// With and without threads that spin.
class ThreadPoolStress : public ::testing::TestWithParam<int> {
 protected:
  absl::Duration spin() const { return absl::Microseconds(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Spin, ThreadPoolStress, ::testing::Values(0, 20, 5000),
                         [](const auto& info) {
                           return absl::StrCat(info.param, "us");
                         });

TEST_P(ThreadPoolStress, TaskThatFollowsAnotherRuns) {
  auto pool = MakePool(2, 4, spin());
  std::atomic<int> ran{0};
  for (int i = 0; i < 500; ++i) {
    pool->Schedule([&ran] { ++ran; });
    ASSERT_TRUE(Eventually([&] { return ran == i + 1; }));
  }
  ASSERT_THAT(pool->Shutdown(), IsOk());
}

// One of them goes to the thread that spins, the other to one that sleeps.
TEST_P(ThreadPoolStress, TwoTasksThatComeTogetherRunAtOnce) {
  auto pool = MakePool(2, 2, spin());
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> second_runs{false}, first_ended{false};
    pool->Schedule([&] {
      EXPECT_TRUE(Eventually([&] { return second_runs.load(); }));
      first_ended = true;
    });
    pool->Schedule([&] { second_runs = true; });
    ASSERT_TRUE(Eventually([&] { return first_ended.load(); }));
  }
  ASSERT_THAT(pool->Shutdown(), IsOk());
}

TEST_P(ThreadPoolStress, TaskThatBlocksAfterASpinIsReplaced) {
  auto pool = MakePool(1, 2, spin());
  for (int i = 0; i < 200; ++i) {
    auto [promise, future] = MakePromise<void>();
    auto [ended_promise, ended] = MakePromise<void>();
    pool->Schedule([f = future, p = std::move(ended_promise)]() mutable {
      p.Set(f.Wait(kSoon));
    });
    pool->Schedule(
        [p = std::move(promise)]() mutable { p.Set(absl::OkStatus()); });
    ASSERT_THAT(ended.Wait(kSoon), IsOk());
  }
  ASSERT_THAT(pool->Shutdown(), IsOk());
}

TEST_P(ThreadPoolStress, LosesNoTask) {
  constexpr int kTasks = 300;
  auto pool = MakePool(2, 32, spin());
  std::atomic<int> ran{0};
  auto statuses = RunRanks(4, [&](int) {
    for (int i = 0; i < kTasks; ++i) {
      auto [promise, future] = MakePromise<void>();
      pool->Schedule([&, p = std::move(promise)]() mutable {
        ++ran;
        p.Set(absl::OkStatus());
      });
      if (i % 8 != 0) continue;
      pool->Schedule([&, f = future] { ran += f.Wait(kSoon).ok(); });
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
  ASSERT_THAT(pool->Shutdown(), IsOk());
  EXPECT_EQ(ran, 4 * (kTasks + (kTasks + 7) / 8));
}

TEST(Strand, RunsOneAtATimeInOrder) {
  auto pool = MakePool(3, 3);
  Strand strand(*pool);
  int unguarded = 0;
  for (int i = 0; i < 500; ++i) {
    strand.Schedule([&, i] {
      EXPECT_EQ(unguarded, i);
      ++unguarded;
    });
  }
  ASSERT_THAT(pool->Shutdown(), IsOk());
  EXPECT_EQ(unguarded, 500);
}

TEST(Strand, ATaskScheduledByATaskRunsAfterIt) {
  InlineExecutor here;
  Strand strand(here);
  std::vector<int> order;
  strand.Schedule([&] {
    strand.Schedule([&] { order.push_back(2); });
    order.push_back(1);
  });
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2));
}

TEST(Strand, GoesOnAfterATaskThatThrows) {
  InlineExecutor here;
  Strand strand(here);
  bool ran = false;
  strand.Schedule([&] {
    strand.Schedule([&] { ran = true; });
    throw std::runtime_error("a task's own fault");
  });
  EXPECT_TRUE(ran);
}

TEST(Strand, DropsTasksWithItsExecutor) {
  auto pool = MakePool(1, 1);
  Strand strand(*pool);
  ASSERT_THAT(pool->Shutdown(), IsOk());
  auto [promise, future] = MakePromise<int>();
  strand.Schedule([p = std::move(promise)]() mutable { p.Set(1); });
  EXPECT_THAT(future.Wait(kSoon), StatusIs(absl::StatusCode::kCancelled));
}

// The order under the caller's lock is the order in which tasks run, whichever
// threads schedule and run them.
TEST(StrandStress, KeepsTheOrderOfEmission) {
  constexpr int kEach = 500;
  auto pool = MakePool(2, 8);
  Strand strand(*pool);
  Mutex mu;
  int64_t emitted = 0;
  int64_t ran = 0;
  int64_t out_of_order = 0;
  auto statuses = RunRanks(4, [&](int) {
    for (int i = 0; i < kEach; ++i) {
      MutexLock lock(mu);
      strand.Schedule([&, sequence = emitted++] {
        if (sequence != ran++) ++out_of_order;
        if (sequence % 16 == 0) BlockingScope blocking;
      });
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_THAT(status, IsOk());
  ASSERT_THAT(pool->Shutdown(), IsOk());
  EXPECT_EQ(ran, 4 * kEach);
  EXPECT_EQ(out_of_order, 0);
}

}  // namespace
}  // namespace weft
