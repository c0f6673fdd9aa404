// Chains, loops and nests of futures so long that one stack frame for each
// link would overflow the stack.

#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/base/thread_pool.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;

constexpr int kLinks = 200'000;
constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr absl::Duration kPatience = absl::Minutes(2);

// An executor whose tasks run, or are dropped, when the test says so.
class HeldExecutor final : public Executor {
 public:
  void Schedule(Task task) override { tasks_.push_back(std::move(task)); }
  bool RunOne() {
    if (tasks_.empty()) return false;
    Task task = std::move(tasks_.back());
    tasks_.pop_back();
    RunTask(std::move(task));
    return true;
  }
  void DropAll() { std::exchange(tasks_, {}).clear(); }

 private:
  std::vector<Task> tasks_;
};

// `first` and kLinks futures, each the one before plus 1.
Future<int> ChainOf(Future<int> first, Executor* executor = nullptr) {
  Future<int> last = std::move(first);
  const auto add = [](int n) { return n + 1; };
  for (int i = 0; i < kLinks; ++i) {
    last = executor == nullptr ? last.Then(add) : last.Then(*executor, add);
  }
  return last;
}

TEST(FutureChain, OfThenEndsWhenItsPromiseIsSet) {
  auto [promise, future] = MakePromise<int>();
  const Future<int> last = ChainOf(future);
  promise.Set(1);
  EXPECT_THAT(last.Wait(kNow), IsOkAndHolds(kLinks + 1));
}

TEST(FutureChain, OfThenOnAnInlineExecutorEndsWhenItsPromiseIsSet) {
  InlineExecutor here;
  auto [promise, future] = MakePromise<int>();
  const Future<int> last = ChainOf(future, &here);
  promise.Set(1);
  EXPECT_THAT(last.Wait(kNow), IsOkAndHolds(kLinks + 1));
}

TEST(FutureChain, OfThenOnAPoolEndsInTheErrorOfItsPromise) {
  WEFT_ASSERT_OK_AND_ASSIGN(auto pool, ThreadPool::Create({}));
  auto [promise, future] = MakePromise<int>();
  const Future<int> last = ChainOf(future, pool.get());
  promise.Set(absl::NotFoundError("no such row"));
  EXPECT_THAT(last.Wait(kNow), StatusIs(absl::StatusCode::kNotFound));
}

TEST(FutureChain, OfThenEndsWhenItsPromiseIsDropped) {
  Future<int> last = MakeReady<int>(0);
  {
    auto [promise, future] = MakePromise<int>();
    last = ChainOf(future);
  }
  EXPECT_THAT(last.Wait(kNow), StatusIs(absl::StatusCode::kCancelled));
}

TEST(FutureChain, OfThenIsFreedWhenBothItsEndsAreDropped) {
  auto held = std::make_shared<int>(0);
  {
    auto [promise, future] = MakePromise<int>();
    Future<int> last = future;
    for (int i = 0; i < kLinks; ++i)
      last = last.Then([held](int n) { return n; });
    EXPECT_EQ(held.use_count(), kLinks + 1);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(FutureChain, OfThenIsCancelledUpToItsPromise) {
  auto [promise, future] = MakePromise<int>();
  absl::Status why;
  promise.OnCancel([&](const absl::Status& reason) { why = reason; });
  const Future<int> last = ChainOf(future);
  last.Cancel(absl::AbortedError("enough"));
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(last.Wait(kNow), StatusIs(absl::StatusCode::kAborted, "enough"));
  EXPECT_TRUE(promise.IsDone());
}

TEST(FutureChain, CancelledChainEndsWithTheProducersResult) {
  auto source = std::make_shared<internal::FutureState<int>>(ParkingDriver());
  source->OnCancel(
      [raw = source.get()](const absl::Status&) {
        raw->Set(absl::DataLossError("half of it is done"));
      },
      /*comes_first=*/true);
  const Future<int> last = ChainOf(internal::FutureAccess::Make<int>(source));
  last.Cancel();
  EXPECT_THAT(last.Wait(kNow), StatusIs(absl::StatusCode::kDataLoss));
}

// Ready after `n` tasks of `executor`, one begun by the other.
Future<int> Loop(Executor& executor, int n) {
  return MakeReady<int>(n).Then(executor, [&executor](int left) {
    return left == 0 ? MakeReady<int>(42) : Loop(executor, left - 1);
  });
}

TEST(FutureLoop, OnAPoolEndsInTheValueOfItsLastTurn) {
  WEFT_ASSERT_OK_AND_ASSIGN(auto pool, ThreadPool::Create({}));
  EXPECT_THAT(Loop(*pool, kLinks).Wait(kPatience), IsOkAndHolds(42));
}

TEST(FutureLoop, IsCancelledDownToItsLastTurn) {
  HeldExecutor held;
  auto [promise, innermost] = MakePromise<int>();
  bool told = false;
  promise.OnCancel([&](const absl::Status&) { told = true; });
  // Each turn is in the future of the turn before.
  Future<int> inner = innermost;
  for (int i = 0; i < kLinks; ++i) {
    inner = MakeReady<int>(i).Then(held, [inner](int) { return inner; });
    held.RunOne();
  }
  inner.Cancel(absl::AbortedError("enough"));
  EXPECT_TRUE(told);
  EXPECT_THAT(inner.Wait(kNow), StatusIs(absl::StatusCode::kAborted));
}

TEST(FutureLoop, EndsWhenItsExecutorDropsTheNextTurn) {
  HeldExecutor held;
  const Future<int> loop = Loop(held, kLinks);
  for (int i = 0; i < kLinks / 2; ++i) held.RunOne();
  EXPECT_FALSE(loop.IsReady());
  held.DropAll();
  EXPECT_THAT(loop.Wait(kNow), StatusIs(absl::StatusCode::kCancelled));
}

TEST(FutureNest, OfWhenAllOkEndsAndIsCancelled) {
  for (const bool cancels : {false, true}) {
    auto [promise, future] = MakePromise<void>();
    Future<void> all = future;
    for (int i = 0; i < kLinks; ++i) {
      all = WhenAllOk<void>({all, MakeReady()});
    }
    if (cancels) {
      all.Cancel(absl::AbortedError("enough"));
      EXPECT_TRUE(promise.IsDone());
      EXPECT_THAT(all.Wait(kNow), StatusIs(absl::StatusCode::kAborted));
    } else {
      promise.Set(absl::OkStatus());
      EXPECT_THAT(all.Wait(kNow), IsOk());
    }
  }
}

TEST(FutureCallbacks, ContinuationsOfACallbackRunBeforeTheNextCallback) {
  auto [promise, future] = MakePromise<int>();
  std::vector<int> order;
  const auto note = [&order](int n) {
    return [&order, n](const auto&...) { order.push_back(n); };
  };
  const Future<void> first = future.Then(note(0));
  const Future<void> second = first.Then(note(1));
  second.OnReady(note(2));
  first.OnReady(note(3));
  future.OnReady(note(4));
  promise.Set(1);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace weft
