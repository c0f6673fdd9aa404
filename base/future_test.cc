#include "weft/base/future.h"

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/base/join_scope.h"
#include "weft/tests/support/allocation_count.h"
#include "weft/tests/support/status_matchers.h"

namespace weft {
namespace {

using testing::AllocationCount;
using ::testing::ElementsAre;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::StatusIs;
using Box = std::unique_ptr<int>;

constexpr absl::Duration kNow = absl::ZeroDuration();
constexpr absl::Duration kSoon = absl::Seconds(20);

// An executor whose tasks run, or are dropped, when the test says so.
class HeldExecutor final : public Executor {
 public:
  void Schedule(Task task) override { tasks_.push_back(std::move(task)); }
  void RunAll() {
    for (Task& task : std::exchange(tasks_, {})) RunTask(std::move(task));
  }
  void DropAll() { tasks_.clear(); }
  size_t size() const { return tasks_.size(); }

 private:
  std::vector<Task> tasks_;
};

// Counts its waits, and makes its promise ready in the first.
class SettingDriver final : public Driver {
 public:
  bool Wait(Waitable& what, Instant) override {
    ++waits;
    if (on_wait) std::move(on_wait)();
    return what.IsReady();
  }
  int waits = 0;
  absl::AnyInvocable<void() &&> on_wait;
};

TEST(Future, CarriesTheValueAcrossThreads) {
  auto [promise, future] = MakePromise<int>();
  std::thread producer([p = std::move(promise)]() mutable { p.Set(42); });
  EXPECT_THAT(future.Wait(kSoon), IsOkAndHolds(42));
  producer.join();
}

TEST(Future, FirstSetWins) {
  auto [promise, future] = MakePromise<int>();
  EXPECT_TRUE(promise.Set(1));
  EXPECT_FALSE(promise.Set(2));
  EXPECT_THAT(future.Wait(kNow), IsOkAndHolds(1));
}

TEST(Future, SecondSetReportsTheFirstOutcome) {
  auto [promise, future] = MakePromise<int>();
  EXPECT_THAT(promise.SetOnce(1), IsOk());
  EXPECT_THAT(promise.SetOnce(2),
              StatusIs(absl::StatusCode::kAlreadyExists, "with OK"));
  EXPECT_THAT(future.Wait(kNow), IsOkAndHolds(1));

  auto [lost, cancelled] = MakePromise<void>();
  cancelled.Cancel(absl::AbortedError("enough"));
  EXPECT_THAT(lost.SetOnce(absl::OkStatus()),
              StatusIs(absl::StatusCode::kAlreadyExists, "ABORTED: enough"));
}

TEST(Future, PeekSeesTheResultOnceThereIsOne) {
  auto [promise, future] = MakePromise<Box>();
  EXPECT_EQ(future.Peek(), nullptr);
  promise.Set(std::make_unique<int>(3));
  ASSERT_NE(future.Peek(), nullptr);
  EXPECT_EQ(***future.Peek(), 3);  // and is still there to be taken
  EXPECT_EQ(**std::move(future).Wait(kNow), 3);
  const Future<int> failed = MakeReady<int>(absl::NotFoundError("gone"));
  EXPECT_THAT(*failed.Peek(), StatusIs(absl::StatusCode::kNotFound));
}

TEST(Future, CopiesSeeTheSameResult) {
  auto [promise, future] = MakePromise<std::string>();
  Future<std::string> copy = future;
  promise.Set(std::string("once"));
  EXPECT_THAT(std::move(future).Wait(kNow), IsOkAndHolds("once"));
  EXPECT_THAT(copy.Wait(kNow), IsOkAndHolds("once"));
}

TEST(Future, DroppedPromiseCancelsItsWaiters) {
  auto pair = std::make_unique<std::pair<Promise<void>, Future<void>>>(
      MakePromise<void>());
  Future<void> future = pair->second;
  pair.reset();
  EXPECT_THAT(future.Wait(kNow),
              StatusIs(absl::StatusCode::kCancelled, "dropped"));
}

TEST(Future, ReplacedPromiseIsADroppedOne) {
  auto [promise, future] = MakePromise<int>();
  promise = Promise<int>();
  EXPECT_THAT(future.Wait(kNow), StatusIs(absl::StatusCode::kCancelled));
}

TEST(FutureWait, GivesUpAtItsDeadline) {
  auto [promise, future] = MakePromise<void>();
  EXPECT_THAT(future.Wait(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "after 1ms"));
  EXPECT_TRUE(promise.Set(absl::OkStatus()));
  EXPECT_THAT(future.Wait(kNow), IsOk());
}

TEST(FutureWait, GoesThroughTheDriverUnlessReady) {
  SettingDriver driver;
  auto [promise, future] = MakePromise<int>(driver);
  driver.on_wait = [p = std::move(promise)]() mutable { p.Set(5); };
  Future<int> derived = future.Then([](int n) { return n + 1; });
  EXPECT_THAT(derived.Wait(kNow), IsOkAndHolds(6));
  EXPECT_THAT(future.Wait(kNow), IsOkAndHolds(5));
  EXPECT_EQ(driver.waits, 1);
}

TEST(FutureWait, IsRefusedWhereTheThreadMustNotBlock) {
  auto [promise, future] = MakePromise<int>();
  InlineScope transport_thread;
  EXPECT_THAT(future.Wait(kSoon),
              StatusIs(absl::StatusCode::kFailedPrecondition, "Then"));
  promise.Set(1);
  EXPECT_THAT(future.Wait(kNow), IsOkAndHolds(1));
}

TEST(FutureWait, NotifiesTheListenerOnceThatItBlocks) {
  struct Counter : BlockingListener {
    void BeginBlocking() override { ++begun; }
    void EndBlocking() override { ++ended; }
    int begun = 0, ended = 0;
  } counter;
  BlockingListener::Scope listening(counter);
  auto [promise, future] = MakePromise<int>();
  {
    BlockingScope outer;
    EXPECT_THAT(future.Wait(kNow),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_EQ(counter.ended, 0);
  }
  EXPECT_EQ(counter.begun, 1);
  EXPECT_EQ(counter.ended, 1);
}

TEST(FutureCallbacks, RunInOrderOfRegistration) {
  auto [promise, future] = MakePromise<int>();
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    future.OnReady([&order, i](const auto&) { order.push_back(i); });
  }
  auto derived = future.Then([&order](int) { order.push_back(3); });
  promise.Set(0);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST(FutureCallbacks, OneRegisteredByAnotherRunsAfterThoseBefore) {
  auto [promise, future] = MakePromise<int>();
  std::vector<int> order;
  future.OnReady([&, f = future](const auto&) {
    f.OnReady([&](const auto&) { order.push_back(2); });
    auto later = f.Then([&](int) { order.push_back(3); });
    order.push_back(0);
  });
  future.OnReady([&](const auto&) { order.push_back(1); });
  promise.Set(1);
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
}

TEST(FutureCallbacks, ExceptionOfACallbackIsLoggedAndTheNextRuns) {
  auto [promise, future] = MakePromise<int>();
  int ran = 0;
  future.OnReady([](const auto&) { throw std::runtime_error("clumsy"); });
  future.OnReady([&](const auto&) { ++ran; });
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(promise.Set(1));
  future.OnReady([](const auto&) { throw 42; });  // ready by now
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::AllOf(::testing::HasSubstr("clumsy"),
                       ::testing::HasSubstr("not from std::exception")));
  EXPECT_EQ(ran, 1);
}

TEST(FutureCallbacks, MayDestroyBothEnds) {
  auto ends = std::make_unique<std::pair<Promise<int>, Future<int>>>(
      MakePromise<int>());
  const std::function<void()> destroy = [&] { ends.reset(); };
  int seen = 0;
  ends->second.OnReady([&](const absl::StatusOr<int>& result) {
    destroy();
    seen = *result;  // the state outlives its ends until the callbacks are done
  });
  ends->first.Set(9);
  EXPECT_EQ(seen, 9);
  EXPECT_EQ(ends, nullptr);
}

TEST(FutureCallbacks, MayBeLargerThanTheBuffer) {
  auto [promise, future] = MakePromise<int>();
  struct Large {
    char bytes[256] = {};
  };
  int sum = 0;
  for (int i = 0; i < 2; ++i) {
    future.OnReady([&sum, large = Large()](const absl::StatusOr<int>& n) {
      sum += *n + large.bytes[255];
    });
  }
  promise.Set(4);
  EXPECT_EQ(sum, 8);
}

TEST(FutureThen, ResultHasTheTypeThatTheFunctionReturns) {
  InlineExecutor here;
  auto [promise, future] = MakePromise<int>();
  Future<std::string> value =
      future.Then([](int n) { return std::to_string(n); });
  Future<void> nothing = future.Then([](const int&) {});
  Future<void> status =
      future.Then([](int) { return absl::NotFoundError("no"); });
  Future<int> either =
      future.Then(here, [](int n) -> absl::StatusOr<int> { return n + 1; });
  Future<int> inner = future.Then([](int n) { return MakeReady<int>(n * 2); });
  promise.Set(21);
  EXPECT_THAT(value.Wait(kNow), IsOkAndHolds("21"));
  EXPECT_THAT(nothing.Wait(kNow), IsOk());
  EXPECT_THAT(status.Wait(kNow), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(either.Wait(kNow), IsOkAndHolds(22));
  EXPECT_THAT(inner.Wait(kNow), IsOkAndHolds(42));
}

TEST(FutureThen, WaitsForTheFutureThatTheFunctionReturns) {
  auto [promise, future] = MakePromise<void>();
  auto [inner_promise, inner] = MakePromise<int>();
  Future<int> both = future.Then([&inner = inner] { return inner; });
  promise.Set(absl::OkStatus());
  EXPECT_FALSE(both.IsReady());
  inner_promise.Set(8);
  EXPECT_THAT(both.Wait(kNow), IsOkAndHolds(8));
}

TEST(FutureThen, AnErrorSkipsTheFunctionAndItsExecutor) {
  HeldExecutor held;
  auto [promise, future] = MakePromise<int>();
  int runs = 0;
  auto derived = future.Then([&](int) { ++runs; }).Then(held, [&] { ++runs; });
  promise.Set(absl::UnavailableError("peer gone"));
  EXPECT_THAT(derived.Wait(kNow),
              StatusIs(absl::StatusCode::kUnavailable, "peer gone"));
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(held.size(), 0);
}

TEST(FutureThen, ExceptionOfTheFunctionIsTheResult) {
  auto [promise, future] = MakePromise<int>();
  auto math = future.Then([](int) { ThrowInvalidArgument("shape"); });
  auto other =
      future.Then([](int) -> Future<int> { throw std::runtime_error("oops"); });
  promise.Set(1);
  EXPECT_THAT(math.Wait(kNow),
              StatusIs(absl::StatusCode::kInvalidArgument, "shape"));
  EXPECT_THAT(other.Wait(kNow), StatusIs(absl::StatusCode::kInternal, "oops"));
}

TEST(FutureThen, RunsOnItsExecutorAlsoWhenReady) {
  HeldExecutor held;
  Future<int> derived =
      MakeReady<int>(1).Then(held, [](int n) { return n + 1; });
  EXPECT_FALSE(derived.IsReady());
  held.RunAll();
  EXPECT_THAT(derived.Wait(kNow), IsOkAndHolds(2));
}

TEST(FutureThen, ATaskDroppedByTheExecutorCancels) {
  HeldExecutor held;
  auto derived = MakeReady<int>(1).Then(held, [](int n) { return n + 1; });
  held.DropAll();
  EXPECT_THAT(derived.Wait(kNow),
              StatusIs(absl::StatusCode::kCancelled, "executor"));
}

TEST(FutureThen, MovesAMoveOnlyValueThrough) {
  auto [promise, future] = MakePromise<Box>();
  InlineExecutor here;
  auto derived =
      std::move(future)
          .Then([](Box box) {
            ++*box;
            return box;
          })
          .Then(here, [](Box box) { return MakeReady<Box>(std::move(box)); });
  promise.Set(std::make_unique<int>(1));
  auto result = std::move(derived).Wait(kNow);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(**result, 2);
}

TEST(FutureThen, ReleasesItsFunctionOnceItHasRun) {
  auto [promise, future] = MakePromise<int>();
  auto held = std::make_shared<int>(0);
  auto derived = future.Then([held](int) {});
  EXPECT_EQ(held.use_count(), 2);
  promise.Set(1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(FutureCancel, EndsTheFutureAndNotifiesTheProducer) {
  auto [promise, future] = MakePromise<int>();
  std::string reason;
  promise.OnCancel([&](const absl::Status& why) { reason = why.ToString(); });
  future.Cancel(absl::AbortedError("enough"));
  EXPECT_EQ(reason, "ABORTED: enough");
  EXPECT_THAT(future.Wait(kNow), StatusIs(absl::StatusCode::kAborted));
  EXPECT_TRUE(promise.IsDone());
  EXPECT_FALSE(promise.Set(1));
}

// One whose producer knows more than the reason, if `says` so.
Future<int> MakeKnowing(const absl::Status& says) {
  auto state = std::make_shared<internal::FutureState<int>>(ParkingDriver());
  state->OnCancel(
      [raw = state.get(), says](const absl::Status&) {
        EXPECT_FALSE(raw->IsReady());
        raw->Cancel(absl::UnknownError("again"));  // that is under way
        if (!says.ok()) raw->Set(says);
      },
      /*comes_first=*/true);
  return internal::FutureAccess::Make<int>(std::move(state));
}

// A state that is its own producer.
class OwnProducer final : public internal::FutureState<int>,
                          private internal::FutureCore::CancelListener {
 public:
  explicit OwnProducer(absl::Status says)
      : FutureState<int>(ParkingDriver(), this), says_(std::move(says)) {}
  int told() const { return told_; }

 private:
  void OnCancelled(const absl::Status&) override {
    ++told_;
    EXPECT_FALSE(IsReady());
    Cancel(absl::UnknownError("again"));  // that is under way
    if (!says_.ok()) Set(says_);
  }

  const absl::Status says_;
  int told_ = 0;
};

TEST(FutureCancel, StateThatIsItsOwnProducerIsNotifiedOnceAndFirst) {
  const absl::Status says = absl::DataLossError("half of it is done");
  const auto known = std::make_shared<OwnProducer>(says);
  known->Cancel(absl::AbortedError("enough"));
  known->Cancel(absl::AbortedError("more than enough"));
  EXPECT_EQ(known->Get().status(), says);
  EXPECT_EQ(known->told(), 1);
  const auto silent = std::make_shared<OwnProducer>(absl::OkStatus());
  silent->Cancel(absl::AbortedError("enough"));
  EXPECT_EQ(silent->Get().status(), absl::AbortedError("enough"));
  EXPECT_EQ(silent->told(), 1);
  const auto source = std::make_shared<OwnProducer>(says);
  const Future<int> derived =
      internal::FutureAccess::Make<int>(source).Then([](int x) { return x; });
  derived.Cancel(absl::AbortedError("enough"));
  EXPECT_THAT(derived.Wait(kNow), StatusIs(absl::StatusCode::kDataLoss));
  const auto set = std::make_shared<OwnProducer>(says);
  EXPECT_TRUE(set->Set(1));
  set->Cancel(absl::AbortedError("enough"));
  EXPECT_EQ(set->told(), 0);
}

TEST(FutureCancel, AProducerThatComesFirstMaySayMore) {
  const absl::Status says = absl::DataLossError("half of it is done");
  const Future<int> known = MakeKnowing(says);
  known.Cancel(absl::AbortedError("enough"));
  EXPECT_THAT(known.Wait(kNow), StatusIs(absl::StatusCode::kDataLoss));
  const Future<int> silent = MakeKnowing(absl::OkStatus());
  silent.Cancel(absl::AbortedError("enough"));
  EXPECT_THAT(silent.Wait(kNow), StatusIs(absl::StatusCode::kAborted));
  const Future<int> source = MakeKnowing(says);
  const Future<int> derived =
      source.Then([](int x) { return x; }).Then([](int x) { return x; });
  derived.Cancel(absl::AbortedError("enough"));
  EXPECT_THAT(derived.Wait(kNow), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(FutureCancel, HookSetLateRunsAtOnce) {
  auto [promise, future] = MakePromise<int>();
  future.Cancel();
  bool told = false;
  promise.OnCancel([&](const absl::Status&) { told = true; });
  EXPECT_TRUE(told);
}

TEST(FutureCancel, HookIsDroppedBySet) {
  auto [promise, future] = MakePromise<int>();
  auto held = std::make_shared<bool>(false);
  promise.OnCancel([held](const absl::Status&) { *held = true; });
  promise.Set(1);
  EXPECT_EQ(held.use_count(), 1);
  future.Cancel();
  EXPECT_FALSE(*held);
  EXPECT_THAT(future.Wait(kNow), IsOkAndHolds(1));
}

TEST(FutureCancel, GoesUpAChainOfThen) {
  auto [promise, future] = MakePromise<int>();
  bool told = false;
  int runs = 0;
  promise.OnCancel([&](const absl::Status&) { told = true; });
  auto derived = future.Then([&](int) { ++runs; }).Then([&] { ++runs; });
  derived.Cancel();
  EXPECT_TRUE(told);
  EXPECT_EQ(runs, 0);
  EXPECT_THAT(derived.Wait(kNow), StatusIs(absl::StatusCode::kCancelled));
}

TEST(FutureCancel, GoesToTheInnerFutureOnceThereIsOne) {
  auto [promise, future] = MakePromise<int>();
  auto [inner_promise, inner] = MakePromise<int>();
  bool told = false;
  inner_promise.OnCancel([&](const absl::Status&) { told = true; });
  auto derived = future.Then([&inner = inner](int) { return inner; });
  promise.Set(1);
  derived.Cancel();
  EXPECT_TRUE(told);
}

TEST(FutureCancel, SkipsAFunctionThatHasNotBegun) {
  HeldExecutor held;
  auto [promise, future] = MakePromise<int>();
  int runs = 0;
  auto derived = future.Then(held, [&](int) { ++runs; });
  promise.Set(1);
  derived.Cancel();
  held.RunAll();
  EXPECT_EQ(runs, 0);
}

TEST(FutureCancel, GoesToAllInputsOfWhenAll) {
  auto [p0, f0] = MakePromise<int>();
  auto [p1, f1] = MakePromise<int>();
  int told = 0;
  p0.OnCancel([&](const absl::Status&) { ++told; });
  p1.OnCancel([&](const absl::Status&) { ++told; });
  WhenAll<int>({f0, f1, MakeReady<int>(0)}).Cancel();
  EXPECT_EQ(told, 2);
}

TEST(WhenAll, GathersResultsInOrderErrorsIncluded) {
  auto [p0, f0] = MakePromise<int>();
  auto [p1, f1] = MakePromise<int>();
  auto all = WhenAll<int>({f0, f1, MakeReady<int>(2)});
  p1.Set(absl::NotFoundError("one"));
  EXPECT_FALSE(all.IsReady());
  p0.Set(0);
  WEFT_ASSERT_OK_AND_ASSIGN(auto results, all.Wait(kNow));
  ASSERT_EQ(results.size(), 3u);
  EXPECT_THAT(results[0], IsOkAndHolds(0));
  EXPECT_THAT(results[1], StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(results[2], IsOkAndHolds(2));
}

TEST(WhenAll, OfNoneIsReady) {
  EXPECT_TRUE(WhenAll<int>({}).IsReady());
  EXPECT_THAT(WhenAllOk<void>({}).Wait(kNow), IsOk());
}

TEST(WhenAllOk, EndsWithTheFirstError) {
  auto [p0, f0] = MakePromise<int>();
  auto [p1, f1] = MakePromise<int>();
  auto all = WhenAllOk<int>({f0, f1});
  p1.Set(absl::NotFoundError("one"));
  EXPECT_THAT(all.Wait(kNow), StatusIs(absl::StatusCode::kNotFound, "one"));
  EXPECT_TRUE(p0.Set(0));  // goes on, and is not cancelled
}

TEST(WhenAllOk, GathersValuesOfAnyKind) {
  auto [promise, future] = MakePromise<Box>();
  std::vector<Future<Box>> boxes;
  boxes.push_back(std::move(future));
  boxes.push_back(MakeReady<Box>(std::make_unique<int>(7)));
  auto all = WhenAllOk(std::move(boxes));
  promise.Set(std::make_unique<int>(1));
  auto result = std::move(all).Wait(kNow);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(*(*result)[0] + *(*result)[1], 8);
  EXPECT_THAT(WhenAllOk<void>({MakeReady(), MakeReady()}).Wait(kNow), IsOk());
}

TEST(WhenAllOk, InheritsTheDriverOfPendingFutures) {
  SettingDriver driver;
  auto [promise, future] = MakePromise<int>(driver);
  auto all = WhenAllOk<int>({MakeReady<int>(1), future});
  EXPECT_EQ(&all.driver(), &driver);
}

TEST(WaitAll, ReturnsAllValuesInOrder) {
  auto [promise, future] = MakePromise<int>();
  std::vector<Future<int>> futures = {future, MakeReady<int>(2)};
  promise.Set(1);
  EXPECT_THAT(WaitAll(futures, kNow), IsOkAndHolds(ElementsAre(1, 2)));
  EXPECT_THAT(WaitAll(std::vector<Future<void>>(), kNow), IsOk());
}

TEST(WaitAll, ReturnsTheFirstErrorWithoutTheOthers) {
  auto [promise, pending] = MakePromise<int>();
  EXPECT_THAT(
      WaitAll<int>({pending, MakeReady<int>(absl::AbortedError("b"))}, kSoon),
      StatusIs(absl::StatusCode::kAborted));
  EXPECT_FALSE(pending.IsReady());
  EXPECT_THAT(WaitAll<int>({pending}, absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(JoinScope, JoinWaitsForAll) {
  auto [promise, pending] = MakePromise<int>();
  JoinScope scope;
  scope.Add(pending);
  scope.Add(MakeReady());
  std::thread producer([p = std::move(promise)]() mutable { p.Set(7); });
  EXPECT_THAT(scope.Join(kSoon), IsOk());
  EXPECT_THAT(pending.Wait(kNow), IsOkAndHolds(7));
  EXPECT_THAT(scope.Join(kNow), IsOk());  // empty now
  producer.join();
}

TEST(JoinScope, TheFirstErrorCancelsTheOthers) {
  auto [promise, pending] = MakePromise<int>();
  JoinScope scope;
  scope.Add(pending);
  scope.Add(MakeReady<int>(absl::AbortedError("b")));
  EXPECT_THAT(scope.Join(kSoon), StatusIs(absl::StatusCode::kAborted, "b"));
  EXPECT_THAT(pending.Wait(kNow), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(promise.IsDone());
}

TEST(JoinScope, TimeoutCancelsLateTasks) {
  auto [promise, pending] = MakePromise<void>();
  JoinScope scope;
  scope.Add(pending);
  EXPECT_THAT(scope.Join(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_TRUE(promise.IsDone());
}

TEST(JoinScope, TasksLeftByTheBodyAreCancelled) {
  auto [promise, pending] = MakePromise<int>();
  absl::Status why;
  promise.OnCancel([&](const absl::Status& reason) { why = reason; });
  try {
    JoinScope scope;
    scope.Add(pending);
    throw std::runtime_error("the body fails");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kCancelled, "JoinScope"));
}

TEST(CancelOnDrop, NotifiesTheProducerUnlessReleased) {
  auto [dropped, unwanted] = MakePromise<Box>();
  auto [kept, wanted] = MakePromise<int>();
  auto [replaced, former] = MakePromise<int>();
  {
    CancelOnDrop<Box> drop(std::move(unwanted));
    CancelOnDrop<Box> moved(std::move(drop));
    EXPECT_FALSE(moved.future().IsReady());
    CancelOnDrop<int> keep(former);
    keep = CancelOnDrop<int>(wanted);
    EXPECT_TRUE(replaced.IsDone());
    const Future<int> released = std::move(keep).Release();
  }
  EXPECT_TRUE(dropped.IsDone());
  EXPECT_FALSE(kept.IsDone());
}

TEST(FutureCost, ReadyOnesDoNotAllocate) {
  const int64_t before = AllocationCount();
  Future<int> future = MakeReady<int>(3);
  Future<int> next = future.Then([](int n) { return n + 1; });
  int seen = 0;
  next.OnReady([&](const absl::StatusOr<int>& n) { seen = *n; });
  const absl::StatusOr<int> waited = next.Wait(kNow);
  const int64_t after = AllocationCount();
  EXPECT_EQ(after - before, 0);
  EXPECT_EQ(seen, 4);
  EXPECT_THAT(waited, IsOkAndHolds(4));
}

TEST(FutureCost, PendingOnesAndEachThenAllocateOnce) {
  const int64_t before = AllocationCount();
  auto [promise, future] = MakePromise<int>();
  int64_t sum = 0;
  future.OnReady([&](const absl::StatusOr<int>& n) { sum += *n; });
  const int64_t one = AllocationCount();
  Future<int> next = future.Then([](int n) { return n + 1; });
  const int64_t two = AllocationCount();
  promise.Set(3);
  const absl::StatusOr<int> waited = next.Wait(kNow);
  const int64_t after = AllocationCount();
  EXPECT_EQ(one - before, 1);
  EXPECT_EQ(two - one, 1);
  EXPECT_EQ(after - two, 0);
  EXPECT_EQ(sum, 3);
  EXPECT_THAT(waited, IsOkAndHolds(4));
}

// Threads race to set, cancel, derive from, listen to and wait for one future:
// all must see the same result, and each callback runs once.
TEST(FutureStress, RacingEndsAgreeOnOneResult) {
  constexpr int kRounds = 1000;
  constexpr int kThreads = 5;
  std::vector<std::pair<Promise<int>, Future<int>>> pairs;
  for (int i = 0; i < kRounds; ++i) pairs.push_back(MakePromise<int>());
  std::atomic<int> callbacks{0};
  std::atomic<int> disagreements{0};
  std::atomic<int> hooks{0};
  std::atomic<int> arrived{0};

  auto race = [&](int who, int round) {
    auto& [promise, future] = pairs[round];
    auto check = [&, f = future](const absl::StatusOr<int>& seen) {
      ++callbacks;
      if (seen != f.Wait(kNow)) ++disagreements;
    };
    switch (who) {
      case 0:
        promise.OnCancel([&](const absl::Status&) { ++hooks; });
        promise.Set(round);
        break;
      case 1:
        future.Then([](int n) { return n; }).Cancel();
        break;
      case 2:
        future.OnReady(check);
        future.OnReady(check);
        break;
      case 3:
        future.Then([](int n) { return MakeReady<int>(n); }).OnReady(check);
        WhenAll<int>({future, future}).OnReady([&](const auto&) {
          ++callbacks;
        });
        break;
      case 4:
        if (future.Wait(kSoon).status().code() ==
            absl::StatusCode::kDeadlineExceeded) {
          ++disagreements;
        }
        break;
    }
  };
  std::vector<std::thread> threads;
  for (int who = 0; who < kThreads; ++who) {
    threads.emplace_back([&, who] {
      for (int round = 0; round < kRounds; ++round) {
        ++arrived;  // all begin each round together
        while (arrived < kThreads * (round + 1)) std::this_thread::yield();
        race(who, round);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(callbacks, 4 * kRounds);
  EXPECT_EQ(disagreements, 0);
  EXPECT_LE(hooks, kRounds);
}

}  // namespace
}  // namespace weft
