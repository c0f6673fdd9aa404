#include "weft/dist_autograd/spinning_executor.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/base/strand.h"
#include "weft/base/thread_pool.h"
#include "weft/tests/support/patience.h"

namespace weft::dist_autograd {
namespace {

using ::weft::testing::Becomes;

// A test ends its pool before the executor, which a thread may still look at.
std::unique_ptr<ThreadPool> MakePool(int threads) {
  ThreadPool::Options options;
  options.threads = threads;
  return ThreadPool::Create(options).value();
}

// Keeps each task; runs none by itself.
class HeldExecutor final : public Executor {
 public:
  void Schedule(Task task) override { tasks.push_back(std::move(task)); }
  std::vector<Task> tasks;
};

TEST(SpinningExecutor, ThreadThatLooksTakesTheNextTask) {
  const auto pool = MakePool(2);
  SpinningExecutor executor(*pool, absl::Seconds(2));
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) {
    executor.Schedule([&ran] { ++ran; });
    ASSERT_TRUE(Becomes([&] { return ran == i + 1; }));
  }
  // The first thread to look took the others, but for those that came while
  // it was on its way back.
  EXPECT_GE(pool->stats().started, 1);
  EXPECT_LT(pool->stats().started, 100);
  ASSERT_TRUE(pool->Shutdown().ok());
}

TEST(SpinningExecutor, ZeroSpinGivesEachTaskToTheThreads) {
  const auto pool = MakePool(1);
  SpinningExecutor executor(*pool, absl::ZeroDuration());
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) {
    executor.Schedule([&ran] { ++ran; });
    ASSERT_TRUE(Becomes([&] { return ran == i + 1; }));
  }
  ASSERT_TRUE(pool->Shutdown().ok());
}

TEST(SpinningExecutor, TaskIsNotHeldUpByOneThatRuns) {
  const auto pool = MakePool(2);
  SpinningExecutor executor(*pool, absl::Milliseconds(1));
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> may_end{false}, has_ended{false};
    executor.Schedule([&] {
      EXPECT_TRUE(Becomes([&] { return may_end.load(); }));
      has_ended = true;
    });
    executor.Schedule([&] { may_end = true; });
    ASSERT_TRUE(Becomes([&] { return has_ended.load(); }));
  }
  ASSERT_TRUE(pool->Shutdown().ok());
}

TEST(SpinningExecutor, TaskThatWaitsForAThreadRunsBeforeALaterOne) {
  const auto pool = MakePool(1);
  SpinningExecutor executor(*pool, absl::Seconds(2));
  std::atomic<bool> may_end{false}, has_ended{false};
  std::atomic<int> ran{0};
  std::atomic<int> place_of_second{0}, place_of_third{0};
  executor.Schedule([&] {
    EXPECT_TRUE(Becomes([&] { return may_end.load(); }));
    has_ended = true;
  });
  executor.Schedule([&] { place_of_second = ++ran; });
  may_end = true;
  ASSERT_TRUE(Becomes([&] { return has_ended.load(); }));
  executor.Schedule([&] { place_of_third = ++ran; });
  ASSERT_TRUE(Becomes([&] { return ran == 2; }));
  EXPECT_EQ(place_of_second, 1);
  EXPECT_EQ(place_of_third, 2);
  ASSERT_TRUE(pool->Shutdown().ok());
}

TEST(SpinningExecutor, TaskThatTheThreadsDropIsDestroyed) {
  const auto kept = std::make_shared<int>(1);
  HeldExecutor threads;
  SpinningExecutor executor(threads, absl::Seconds(1));
  executor.Schedule([kept] {});
  EXPECT_EQ(kept.use_count(), 2);
  threads.tasks.clear();
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(SpinningExecutor, ManyThreadsScheduleAndEachTaskRunsOnce) {
  constexpr int kThreads = 4, kTasks = 5000;
  const auto pool = MakePool(2);
  SpinningExecutor executor(*pool, absl::Microseconds(20));
  std::vector<std::atomic<int>> ran(kThreads * kTasks);
  // And those of a strand in their order.
  Strand strand(executor);
  std::vector<int> in_order;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        executor.Schedule([&ran, n = t * kTasks + i] { ++ran[n]; });
        if (t == 0) strand.Schedule([&in_order, i] { in_order.push_back(i); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(pool->Shutdown().ok());
  for (const auto& times : ran) ASSERT_EQ(times, 1);
  ASSERT_EQ(in_order.size(), static_cast<size_t>(kTasks));
  for (int i = 0; i < kTasks; ++i) ASSERT_EQ(in_order[i], i);
}

}  // namespace
}  // namespace weft::dist_autograd
