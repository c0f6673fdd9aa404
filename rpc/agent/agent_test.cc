#include "weft/rpc/agent.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/error.h"
#include "weft/base/parker.h"
#include "weft/base/thread_pool.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/detail.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

// ---------------------------------------------------- what the ranks can do

Tensor Scale(const Tensor& x, double k) {
  Tensor y = x.Clone();
  for (float& v : y.span<float>()) v *= static_cast<float>(k);
  return y;
}
WEFT_RPC(Scale);

int64_t Add(int64_t a, int64_t b) { return a + b; }
WEFT_RPC_INLINE(Add);

Tensor Overwrite(Tensor x) {
  x.Fill(0);
  return x;
}
WEFT_RPC(Overwrite);

absl::Status Refuse(const std::string& why) {
  return absl::OutOfRangeError(why);
}
WEFT_RPC(Refuse);

void Throw(int64_t) { ThrowInvalidArgument("shapes do not match"); }
WEFT_RPC(Throw);

void ThrowDetailed(int64_t detail) {
  absl::Status status = absl::OutOfRangeError("beyond the end");
  status.SetPayload("test/payload", absl::Cord("kept"));
  throw Error(WithDetail(status, detail));
}
WEFT_RPC(ThrowDetailed);

absl::StatusOr<std::string> Join(const std::vector<std::string>& words,
                                 std::map<std::string, int64_t> numbers) {
  std::string text;
  for (const std::string& word : words) absl::StrAppend(&text, word, " ");
  for (const auto& [key, n] : numbers) absl::StrAppend(&text, key, "=", n, " ");
  return text;
}
WEFT_RPC(Join);

// What handlers share with a test. As all that they use, before the ranks: the
// last call may run after the test's last line.
struct Counters {
  std::atomic<int> runs{0};
  std::atomic<int> lingered{0};
  std::atomic<int> cancelled{0};
  Parker began;
  Mutex mu;
  std::vector<Promise<int64_t>> parked ABSL_GUARDED_BY(mu);
};

int64_t Count(CallContext& context) {
  return ++context.Local<Counters>()->runs;
}
WEFT_RPC(Count);

// Runs until it is cancelled.
absl::Status Linger(CallContext& context) {
  auto* counters = context.Local<Counters>();
  ++counters->lingered;
  counters->began.Unpark();
  Promise<void> stopped;
  const auto registration = context.cancel().OnCancel(
      [&](const absl::Status& why) { stopped.Set(why); });
  const absl::Status why = stopped.future().Wait(absl::Seconds(60));
  ++counters->cancelled;
  return why;
}
WEFT_RPC(Linger);

// Runs until it is cancelled, and returns what it has by then.
int64_t CountUntilStopped(CallContext& context) {
  Linger(context).IgnoreError();
  return context.Local<Counters>()->lingered;
}
WEFT_RPC(CountUntilStopped);

// Answers when the test says so; holds no thread meanwhile.
Future<int64_t> Later(CallContext& context) {
  auto* counters = context.Local<Counters>();
  auto [promise, future] = MakePromise<int64_t>();
  {
    MutexLock lock(counters->mu);
    counters->parked.push_back(std::move(promise));
  }
  counters->began.Unpark();
  return future;
}
WEFT_RPC(Later);

std::string CallerName(CallContext& context) { return context.peer().name; }
WEFT_RPC(CallerName);

// What a function gives away without losing it.
struct Shelf {
  Tensor tensor;
};
Tensor TakeFromShelf(CallContext& context) {
  return context.Local<Shelf>()->tensor;
}
WEFT_RPC(TakeFromShelf);

absl::StatusOr<Worker> NextIncarnation(Worker worker) {
  if (!worker.role.empty()) return absl::InternalError("a role has travelled");
  ++worker.key.epoch;
  return worker;
}
WEFT_RPC(NextIncarnation);

// The sum of depths, by calls to and fro.
absl::StatusOr<int64_t> PingPong(CallContext& context, std::string other,
                                 int64_t depth) {
  if (depth == 0) return 0;
  absl::StatusOr<int64_t> below =
      Call(context.To(other), PingPong, context.agent().name(), depth - 1);
  if (!below.ok()) return below.status();
  return *below + 1;
}
WEFT_RPC(PingPong);

absl::StatusOr<int64_t> WaitInline(CallContext& context) {
  return Call(context.To(context.peer().name), Count);
}
WEFT_RPC_INLINE(WaitInline);

double RemainingSeconds(CallContext& context) {
  return absl::ToDoubleSeconds(context.Remaining());
}
WEFT_RPC(RemainingSeconds);

absl::StatusOr<double> RemainingBelow(CallContext& context,
                                      const std::string& other) {
  return Call(context.To(other, absl::Hours(1)), RemainingSeconds);
}
WEFT_RPC(RemainingBelow);

absl::StatusOr<double> RemainingWithin(CallContext& context,
                                       const std::string& other,
                                       double seconds) {
  return Call(context.To(other, absl::Seconds(seconds)), RemainingSeconds);
}
WEFT_RPC(RemainingWithin);

absl::Status LingerBelow(CallContext& context, const std::string& other) {
  return Call(context.To(other, absl::Hours(1)), Linger);
}
WEFT_RPC(LingerBelow);

// As Later, with a tensor.
Future<int64_t> LaterWith(CallContext& context, const Tensor&) {
  return Later(context);
}
WEFT_RPC(LaterWith);

// Keeps its thread until the test releases it, also when cancelled.
struct Blocker {
  Parker began;
  Parker go_on;
};
void Block(CallContext& context) {
  auto* blocker = context.Local<Blocker>();
  blocker->began.Unpark();
  EXPECT_TRUE(IsWoken(blocker->go_on));
}
WEFT_RPC(Block);

// How many items each batch had. Batches run side by side.
struct BatchSizes {
  Mutex mu;
  std::vector<int64_t> sizes ABSL_GUARDED_BY(mu);
};
BatchSizes& Batches() {
  static auto* const batches = new BatchSizes();
  return *batches;
}
absl::StatusOr<std::vector<int64_t>> SquareAll(std::vector<int64_t> items) {
  {
    MutexLock lock(Batches().mu);
    Batches().sizes.push_back(static_cast<int64_t>(items.size()));
  }
  for (int64_t& item : items) {
    if (item < 0) return absl::OutOfRangeError("below 0");
    if (item == 99) return std::vector<int64_t>();
    item *= item;
  }
  return items;
}
// The delay is longer than any test: what fills no batch is seen to wait.
WEFT_RPC_BATCHED(SquareAll, 4, absl::Minutes(10));

std::vector<std::string> GreetAll(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) all.push_back("hello " + name);
  return all;
}
WEFT_RPC_BATCHED(GreetAll, 1000, absl::Milliseconds(20));

absl::StatusOr<double> RemainingOfAll(CallContext& context,
                                      const std::string& selector) {
  double least = 1e9;
  WEFT_ASSIGN_OR_RETURN(const std::vector<Target> targets,
                        context.agent().ToAll(selector, absl::Hours(1)));
  for (const Target& target : targets) {
    WEFT_ASSIGN_OR_RETURN(const double seconds,
                          Call(target.Within(context), RemainingSeconds));
    least = std::min(least, seconds);
  }
  return least;
}
WEFT_RPC(RemainingOfAll);

int64_t NotRegistered(int64_t x) { return x; }

// A function that waits keeps the others from running.
RanksOptions OneThread() {
  RanksOptions options;
  options.threads = options.max_threads = 1;
  return options;
}

// In which order calls began, and how many ran at a time.
struct Order {
  Mutex mu;
  std::vector<int64_t> began ABSL_GUARDED_BY(mu);
  int running ABSL_GUARDED_BY(mu) = 0;
  int most ABSL_GUARDED_BY(mu) = 0;
  bool was_given_up ABSL_GUARDED_BY(mu) = false;  // the first
  Parker first_began;
  Parker first_may_end;
};

// The first keeps its thread until the test releases it.
absl::StatusOr<int64_t> Ordered(CallContext& context, int64_t i,
                                const std::string& text) {
  auto* order = context.Local<Order>();
  {
    MutexLock lock(order->mu);
    order->began.push_back(i);
    order->most = std::max(order->most, ++order->running);
  }
  if (i == 0) {
    order->first_began.Unpark();
    EXPECT_TRUE(IsWoken(order->first_may_end));
  }
  MutexLock lock(order->mu);
  if (i == 0) order->was_given_up = context.cancel().IsCancelled();
  --order->running;
  if (text == "fail") return absl::AbortedError("as its argument asks");
  return i;
}
WEFT_RPC(Ordered);

// Adds by a call of the Target that is the callee's Local, by which it may have
// come itself.
absl::StatusOr<int64_t> AddByQueue(CallContext& context, int64_t a, int64_t b) {
  return Call(context.Local<Target>()->Within(context), Add, a, b);
}
WEFT_RPC(AddByQueue);

// ------------------------------------------------------------------- calls

TEST(Agent, CallsAFunctionOnAnotherWorker) {
  Ranks ranks(2);
  const Target b = ranks[0].To("w1");
  EXPECT_EQ(*Call(b, Add, 2, 3), 5);
  const Tensor x = Tensor::FromVector<float>({1, 2, 3});
  const absl::StatusOr<Tensor> y = Call(b, Scale, x, 2);
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(y->ToVector<float>(), ElementsAre(2, 4, 6));
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2, 3));
  EXPECT_EQ(*Call(b, Join, std::vector<std::string>{"a", "b"},
                  std::map<std::string, int64_t>{{"n", 7}}),
            "a b n=7 ");
  EXPECT_EQ(*Call(b, CallerName), "w0");
}

TEST(Agent, ALargeTensorTravelsInChunksBothWays) {
  Ranks ranks(2);
  const Tensor x = Tensor::Full({1 << 20}, 3);  // 4 MiB
  const absl::StatusOr<Tensor> y = Call(ranks[0].To("w1"), Scale, x, 2);
  ASSERT_THAT(y, IsOk());
  EXPECT_EQ(y->shape(), x.shape());
  EXPECT_EQ(y->span<float>()[0], 6);
  EXPECT_EQ(y->span<float>()[(1 << 20) - 1], 6);
}

TEST(Agent, AMovedTensorIsNotSeenToChange) {
  Counters counters;
  Ranks ranks(2, OneThread());
  ranks[1].SetLocal(&counters);
  Future<void> holding = CallAsync(ranks[0].To("w1"), Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  Tensor x = Tensor::Full({1 << 16}, 1);
  const Tensor alias = x;
  // Not the only handle: copied, so the write below is not sent.
  Future<Tensor> y = CallAsync(ranks[0].To("w1"), Scale, std::move(x), 1);
  alias.Fill(5);
  holding.Cancel();
  EXPECT_EQ(y.Wait(absl::Seconds(10))->span<float>()[0], 1);
}

// Of a size that travels in the message, and of one that travels by reference.
TEST(Agent, CallsItselfWithCopies) {  // PROBE-P16
  Ranks ranks(1);
  const Target self = ranks[0].To("w0");
  for (const int64_t n : {2, 1 << 16}) {
    Tensor x = Tensor::Full({n}, 1);
    EXPECT_EQ(Call(self, Scale, x, 3)->span<float>()[n - 1], 3);
    EXPECT_EQ(Call(self, Overwrite, x)->span<float>()[n - 1], 0);
    EXPECT_EQ(x.span<float>()[n - 1], 1);
    // Moved, but seen by another handle; and lent.
    const Tensor alias = x;
    EXPECT_THAT(Call(self, Overwrite, std::move(x)), IsOk());
    EXPECT_THAT(Call(self, Overwrite, Borrow(alias)), IsOk());
    EXPECT_EQ(alias.span<float>()[n - 1], 1);
    // The result is a copy too.
    Shelf shelf{Tensor::Full({n}, 7)};
    ranks[0].SetLocal(&shelf);
    Call(self, TakeFromShelf)->Fill(0);
    EXPECT_EQ(shelf.tensor.span<float>()[n - 1], 7);
    Call(self.AllowingAlias(), TakeFromShelf)->Fill(0);
    EXPECT_EQ(shelf.tensor.span<float>()[n - 1], 0);
  }
  EXPECT_THAT(Call(self, Refuse, "no"),
              StatusIs(absl::StatusCode::kOutOfRange, "Refuse: no"));
}

TEST(Agent, AWorkerIsAValueOfACall) {  // F8
  Ranks ranks(2);
  Worker told = *ranks.directory().Find("w1");
  told.role = "admin";
  const auto next = Call(ranks[0].To("w1"), NextIncarnation, told);
  ASSERT_THAT(next, IsOk());
  EXPECT_EQ(next->key, (WorkerKey{1, 2}));
  EXPECT_EQ(next->address, "w1");
  EXPECT_EQ(next->role, "");  // which nobody proved
  EXPECT_NE(*next, told);
  Worker same{"w1", WorkerKey{1, 1}, "elsewhere"};
  EXPECT_EQ(same, told);
  EXPECT_EQ(absl::HashOf(same), absl::HashOf(told));
  EXPECT_NE((Worker{"w2", WorkerKey{1, 1}, ""}), told);
  // A Worker value that was received can be called.
  EXPECT_EQ(*Call(ranks[0].To(same), Add, 2, 3), 5);
  EXPECT_EQ(*Call(ranks[0].To(same.key), Add, 2, 3), 5);
}

TEST(Agent, SharesWithItselfWhereThatIsAllowed) {
  Ranks ranks(2);
  Tensor x = Tensor::FromVector<float>({1, 2});
  const Target self = ranks[0].To("w0");
  ASSERT_THAT(Call(self, Overwrite, x), IsOk());
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2));
  ASSERT_THAT(Call(ranks[0].To("w1").AllowingAlias(), Overwrite, x), IsOk());
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(1, 2));
  const absl::StatusOr<Tensor> y = Call(self.AllowingAlias(), Overwrite, x);
  ASSERT_THAT(y, IsOk());
  EXPECT_THAT(x.ToVector<float>(), ElementsAre(0, 0));
  EXPECT_EQ(y->raw(), x.raw());
  EXPECT_THAT(Call(self.AllowingAlias(), Refuse, "no"),
              StatusIs(absl::StatusCode::kOutOfRange, "Refuse: no"));
  EXPECT_EQ(*Call(self.AllowingAlias(), Add, 2, 3), 5);  // inline
}

TEST(Agent, ABorrowedTensorIsReadWhereItLies) {
  Ranks ranks(2);
  const Tensor x = Tensor::Full({1 << 18}, 3);
  for (const char* name : {"w0", "w1"}) {
    const auto y = Call(ranks[0].To(name), Scale, Borrow(x), 2);
    ASSERT_THAT(y, IsOk());
    EXPECT_EQ(y->span<float>()[(1 << 18) - 1], 6);
  }
}

TEST(Agent, SelfCallCopiesBorrowedTensors) {
  RanksOptions options;
  options.threads = options.max_threads = 1;
  Counters counters;
  Ranks ranks(1, options);
  ranks[0].SetLocal(&counters);
  const Target self = ranks[0].To("w0");
  Future<void> busy = CallAsync(self, Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  const Tensor x = Tensor::Full({1 << 16}, 3);
  const Future<Tensor> late = CallAsync(self, Scale, Borrow(x), 2);
  x.Fill(4);  // as who gives it up may do before the function reads it
  busy.Cancel();
  const auto y = late.Wait(absl::Seconds(30));
  ASSERT_THAT(y, IsOk());
  EXPECT_EQ(y->span<float>()[0], 6);
}

TEST(Agent, ABorrowedTensorThatWasWrittenToIsNotSentAgain) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  const Tensor x = Tensor::Full({1 << 16}, 3);
  Future<int64_t> call = CallAsync(ranks[0].To("w1"), LaterWith, Borrow(x));
  EXPECT_TRUE(IsWoken(counters.began));
  x.Fill(4);
  ranks.network().Break("w1");
  const absl::Status status = call.Wait(absl::Seconds(30)).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kDataLoss, "w1: Payload: borrowed"));
  EXPECT_TRUE(OutcomeUnknown(status));
}

TEST(Agent, CallWithoutCreditWaitsOrFailsByOption) {
  RanksOptions options;
  options.limits.calls = 1;
  Counters counters;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&counters);
  const Target b = ranks[0].To("w1");
  Future<int64_t> out = CallAsync(b, Later);
  EXPECT_TRUE(IsWoken(counters.began));
  const absl::Status refused =
      Call(b.FailingWithoutCredit(), Add, 1, 2).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                "Add: no credit is left: 1 calls of 1"));
  EXPECT_FALSE(OutcomeUnknown(refused));
  Future<int64_t> waits = CallAsync(b, Add, 1, 2);
  EXPECT_FALSE(waits.IsReady());
  {
    MutexLock lock(counters.mu);
    counters.parked[0].Set(9);
  }
  EXPECT_EQ(*waits.Wait(absl::Seconds(10)), 3);
}

TEST(Agent, ABatchedFunctionServesSeveralCallsAtOnce) {
  Ranks ranks(3);
  {
    MutexLock lock(Batches().mu);
    Batches().sizes.clear();
  }
  const Target targets[] = {ranks[0].To("w2"), ranks[1].To("w2")};
  std::vector<Future<int64_t>> squares;
  for (int64_t i = 0; i < 8; ++i) {
    squares.push_back(CallOneAsync(targets[i % 2], SquareAll, i));
  }
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(*squares[i].Wait(absl::Seconds(30)), i * i);
  }
  MutexLock lock(Batches().mu);
  EXPECT_THAT(Batches().sizes, ElementsAre(4, 4));
}

TEST(Agent, ABatchThatDoesNotFillIsServedAfterItsDelay) {
  Ranks ranks(2);
  EXPECT_EQ(*CallOne(ranks[0].To("w1"), GreetAll, "you"), "hello you");
  EXPECT_EQ(*CallOne(ranks[0].To("w0"), GreetAll, "me"), "hello me");
}

TEST(Agent, AnErrorOfABatchIsThatOfEachCallInIt) {
  Ranks ranks(2);
  const auto all = [&](int64_t last) {
    std::vector<Future<int64_t>> squares;
    for (const int64_t i : {int64_t{1}, int64_t{2}, int64_t{3}, last}) {
      squares.push_back(CallOneAsync(ranks[0].To("w1"), SquareAll, i));
    }
    std::vector<absl::StatusCode> codes;
    for (const auto& square : squares) {
      codes.push_back(square.Wait(absl::Seconds(30)).status().code());
    }
    return codes;
  };
  EXPECT_THAT(all(-1), ::testing::Each(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(all(99), ::testing::Each(absl::StatusCode::kInternal));
}

TEST(Agent, CallThatWaitsForABatchEndsAtItsDeadlineAndWithTheAgent) {
  Ranks ranks(2);
  // A time-out of Wait alone has no such word in its message.
  EXPECT_THAT(
      CallOneAsync(ranks[0].To("w1", absl::Milliseconds(100)), SquareAll, 2)
          .Wait(kPatience),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  (void)CallOneAsync(ranks[0].To("w1"), SquareAll, 2);
  (void)CallOneAsync(ranks[0].To("w0"), SquareAll, 2);
}

// ------------------------------------------------------------------- credit

TEST(Agent, ASecondWithoutCreditIsAWarningWithThePeerAndTheCounts) {
  std::ostringstream log;
  telemetry::Telemetry::Options to_log;
  to_log.log_output = &log;
  telemetry::Telemetry telemetry(to_log);
  {
    RanksOptions options;
    options.limits.calls = 1;
    options.telemetries = {&telemetry, nullptr};
    Counters counters;
    Ranks ranks(2, options);
    ranks[1].SetLocal(&counters);
    Future<void> holds = CallAsync(ranks[0].To("w1"), Linger);
    EXPECT_TRUE(IsWoken(counters.began));
    EXPECT_THAT(
        Call(ranks[0].To("w1", absl::Seconds(3)), Add, 2, 3),
        StatusIs(absl::StatusCode::kDeadlineExceeded, "waited for credit"));
    holds.Cancel();
  }
  EXPECT_THAT(log.str(),
              HasSubstr("calls to w1 have waited for credit for 1s: 1 wait; 1 "
                        "calls of 1 are out, 0 of them streams"));
  EXPECT_THAT(log.str(), HasSubstr("at w1 by --limits=rpc_calls=VALUE"));
}

int64_t ReleaseParked(CallContext& context) {
  auto* counters = context.Local<Counters>();
  std::vector<Promise<int64_t>> parked;
  {
    MutexLock lock(counters->mu);
    parked.swap(counters->parked);
  }
  for (Promise<int64_t>& promise : parked) promise.Set(1);
  return static_cast<int64_t>(parked.size());
}
WEFT_RPC(ReleaseParked);

// Calls of w1 that wait there, once all of them do.
std::vector<Future<int64_t>> Park(Ranks& ranks, Counters& counters, int n) {
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < n; ++i) {
    calls.push_back(CallAsync(ranks[0].To("w1"), Later));
  }
  EXPECT_TRUE(Becomes([&] {
    MutexLock lock(counters.mu);
    return counters.parked.size() == static_cast<size_t>(n);
  }));
  return calls;
}

TEST(Agent, CallThatReleasesAThousandParkedCallsPasses) {
  constexpr int kParked = 1000;
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  const auto calls = Park(ranks, counters, kParked);
  EXPECT_THAT(Call(ranks[0].To("w1"), ReleaseParked), IsOkAndHolds(kParked));
  for (const auto& call : calls) {
    EXPECT_THAT(call.Wait(kPatience), IsOkAndHolds(1));
  }
}

TEST(Agent, CancellingAParkedCallFreesItsPlaceForTheCallThatWaits) {
  RanksOptions options;
  options.limits.calls = 2;
  Counters counters;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&counters);
  const auto calls = Park(ranks, counters, 2);
  const Future<int64_t> waits = CallAsync(ranks[0].To("w1"), ReleaseParked);
  EXPECT_THAT(waits.Wait(absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
  calls[0].Cancel();
  EXPECT_THAT(waits.Wait(kPatience), IsOk());
  EXPECT_THAT(calls[1].Wait(kPatience), IsOkAndHolds(1));
}

// ------------------------------------------------------------------ threads

// Calls back and forth, each within the one before.
std::vector<Future<int64_t>> StartChains(Ranks& ranks, int chains,
                                         int64_t depth,
                                         absl::Duration timeout) {
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < chains; ++i) {
    calls.push_back(CallAsync(ranks[0].To("w1", timeout), PingPong,
                              std::string("w0"), depth));
  }
  return calls;
}

TEST(HandlerThreads, SixtyFourChainsOfDepth32FinishOnPoolsOfFour) {
  Ranks ranks(2);
  for (Future<int64_t>& call : StartChains(ranks, 64, 32, absl::Seconds(120))) {
    EXPECT_THAT(call.Wait(absl::Seconds(130)), IsOkAndHolds(32));
  }
}

TEST(HandlerThreads, ACallThatGetsNoneNamesThePoolItsSizeAndTheOption) {
  RanksOptions options;
  options.threads = 2;
  options.max_threads = 4;
  Ranks ranks(2, options);
  auto calls = StartChains(ranks, 4, 32, absl::Seconds(8));
  for (Future<int64_t>& call : calls) {
    const absl::Status end = call.Wait(absl::Seconds(20)).status();
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kResourceExhausted,
                              "all 4 threads of the pool 'rpc' of w"));
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kResourceExhausted,
                              "more than 4 by AgentOptions::max_threads"));
  }
  // They have released their threads.
  EXPECT_EQ(*Call(ranks[0].To("w1"), Add, 2, 3), 5);
}

// -------------------------------------------------------------------- queues

TEST(OrderedQueue, CallsRunInTheOrderInWhichTheyWereMade) {
  for (const char* callee : {"w1", "w0"}) {
    Order order;
    Ranks ranks(2);
    for (int i = 0; i < 2; ++i) ranks[i].SetLocal(&order);
    const Target queue = ranks[0].To(callee).Serialized();
    std::vector<int64_t> wanted;
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < 200; ++i) {
      // A large body is slower than the small one after it.
      const std::string text = i % 50 == 1  ? std::string(1 << 20, 'x')
                               : i % 7 == 3 ? "fail"
                                            : "";
      calls.push_back(CallAsync(queue, Ordered, i, text));
      wanted.push_back(i);
      if (i % 60 == 59) ranks.network().Break("w1");
    }
    EXPECT_TRUE(IsWoken(order.first_began));
    EXPECT_EQ(ranks[0].Metrics().client_active_calls, 200);
    order.first_may_end.Unpark();
    for (int64_t i = 0; i < 200; ++i) {
      const auto result = calls[i].Wait(absl::Seconds(30));
      EXPECT_EQ(result.status().code(), i % 7 == 3 && i % 50 != 1
                                            ? absl::StatusCode::kAborted
                                            : absl::StatusCode::kOk);
    }
    MutexLock lock(order.mu);
    EXPECT_EQ(order.began, wanted) << callee;
    EXPECT_EQ(order.most, 1);
  }
}

TEST(OrderedQueue, CancelledCallKeepsTheOrderOfTheOthers) {
  for (const char* callee : {"w1", "w0"}) {
    Order order;
    Ranks ranks(3);
    for (int i = 0; i < 2; ++i) ranks[i].SetLocal(&order);
    const Target queue = ranks[0].To(callee).Serialized();
    std::vector<Future<int64_t>> calls;
    for (int64_t i = 0; i < 5; ++i) {
      calls.push_back(CallAsync(queue, Ordered, i, ""));
    }
    EXPECT_TRUE(IsWoken(order.first_began));
    calls[2].Cancel();  // it waits here
    EXPECT_THAT(calls[2].Wait(absl::Seconds(10)),
                StatusIs(absl::StatusCode::kCancelled));
    calls[0].Cancel();  // it runs, and goes on
    EXPECT_THAT(calls[0].Wait(absl::Seconds(10)),
                StatusIs(absl::StatusCode::kCancelled));
    calls[1].Cancel();  // it is there, and waits
    EXPECT_THAT(calls[1].Wait(absl::Seconds(10)),
                StatusIs(absl::StatusCode::kCancelled));
    // Other calls, another queue, and another's queue do not wait for it.
    EXPECT_EQ(*Call(ranks[0].To(callee), Add, 1, 2), 3);
    EXPECT_EQ(*Call(ranks[0].To(callee).Serialized(), Ordered, 9, ""), 9);
    EXPECT_EQ(*Call(ranks[2].To(callee).Serialized(), Ordered, 8, ""), 8);
    order.first_may_end.Unpark();
    for (int i = 3; i < 5; ++i) {
      EXPECT_EQ(*calls[i].Wait(absl::Seconds(10)), i);
    }
    MutexLock lock(order.mu);
    EXPECT_THAT(order.began, ElementsAre(0, 9, 8, 3, 4)) << callee;
    EXPECT_TRUE(order.was_given_up) << callee;
  }
}

TEST(OrderedQueue, ACallThatWaitsForOthersEndsByItsDeadline) {
  Order order;
  Ranks ranks(2);
  ranks[1].SetLocal(&order);
  const Target queue = ranks[0].To("w1").Serialized();
  const Future<int64_t> first = CallAsync(queue, Ordered, 0, "");
  EXPECT_TRUE(IsWoken(order.first_began));
  const absl::Status late =
      CallAsync(queue.WithTimeout(absl::Milliseconds(100)), Ordered, 1, "")
          .Wait(kPatience)
          .status();
  EXPECT_THAT(late,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "waited for those before it in its ordered queue"));
  EXPECT_EQ(PhaseOf(late), Phase::kQueue);
  EXPECT_FALSE(OutcomeUnknown(late));
  order.first_may_end.Unpark();
  EXPECT_EQ(*first.Wait(absl::Seconds(10)), 0);
  MutexLock lock(order.mu);
  EXPECT_THAT(order.began, ElementsAre(0));
}

TEST(OrderedQueue, EndsWithItsPeerAndWithItsAgent) {
  Order order;
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&order);
  const Target queue = ranks[0].To("w1").Serialized();
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 2000; ++i) {
    calls.push_back(CallAsync(queue, Ordered, i, ""));
  }
  EXPECT_TRUE(IsWoken(order.first_began));
  EXPECT_THAT(ranks[0].OpenCalls(),
              ElementsAre("1 calls to w1",
                          "1999 calls that wait in an ordered queue to w1"));
  ranks[0].PeerGone(WorkerKey{1, 1}, "its process has ended");
  for (size_t i = 0; i < calls.size(); ++i) {
    const absl::Status end = calls[i].Wait(absl::Seconds(10)).status();
    ASSERT_THAT(end, StatusIs(absl::StatusCode::kUnavailable, "is gone"));
    ASSERT_EQ(OutcomeUnknown(end), i == 0);
  }
  order.first_may_end.Unpark();
  const Target self = ranks[0].To("w0").Serialized();
  ranks[0].SetLocal(&counters);
  const Future<void> runs = CallAsync(self, Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  const Future<void> waits = CallAsync(self, Linger);
  EXPECT_THAT(ranks[0].Shutdown(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "in an ordered queue to w0"));
  EXPECT_FALSE(runs.Wait(absl::Seconds(10)).ok());
  EXPECT_FALSE(waits.Wait(absl::Seconds(10)).ok());
}

TEST(OrderedQueue, CallsThatWaitAreAmongThePendingOnes) {
  Order order;
  Ranks ranks(2);
  ranks[1].SetLocal(&order);
  const Target queue = ranks[0].To("w1").Serialized();
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 3; ++i) {
    calls.push_back(CallAsync(queue, Ordered, i, ""));
  }
  EXPECT_TRUE(IsWoken(order.first_began));
  std::vector<Phase> phases;
  std::set<uint64_t> ids;
  for (const PendingCall& call : ranks[0].Pending()) {
    EXPECT_EQ(call.peer, "w1");
    EXPECT_THAT(call.function, HasSubstr("Ordered"));
    EXPECT_GT(call.remaining, absl::ZeroDuration());
    phases.push_back(call.phase);
    ids.insert(call.id);
  }
  EXPECT_THAT(phases,
              ElementsAre(Phase::kHandler, Phase::kQueue, Phase::kQueue));
  EXPECT_EQ(ids.size(), 3u);
  order.first_may_end.Unpark();
  for (const auto& call : calls) EXPECT_THAT(call.Wait(kPatience), IsOk());
  EXPECT_THAT(ranks[0].Pending(), IsEmpty());
}

TEST(OrderedQueue, ACallThatWaitsForItsOwnQueueIsSeenToWaitForItself) {
  Ranks ranks(1);
  Target queue = ranks[0].To("w0").Serialized();
  ranks[0].SetLocal(&queue);
  Future<int64_t> outer = CallAsync(queue, AddByQueue, 2, 3);
  EXPECT_TRUE(Becomes([&] {
    WaitsFor waits;
    waits.Add("w0", ranks[0].Pending());
    return waits.LongestChain().size() == 2;
  }));
  WaitsFor waits;
  waits.Add("w0", ranks[0].Pending());
  EXPECT_THAT(waits.Tree(), HasSubstr("\n  w0 waits for w0:"));
  outer.Cancel();
  EXPECT_THAT(outer.Wait(kPatience), StatusIs(absl::StatusCode::kCancelled));
}

TEST(OrderedQueue, OfACallThatIsTriedAgain) {
  Ranks ranks(2);
  const Target to = ranks[0].To("w1");
  const Target retrying = to.WithRetry(RetryPolicy()).Serialized();
  EXPECT_EQ(*Call(retrying, Add, 2, 3), 5);
  EXPECT_THAT(Call(to.Serialized().WithRetry(RetryPolicy()), Add, 2, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, "comes before"));
  EXPECT_THAT(Call(ranks[0].To("w9").Serialized(), Add, 2, 3),
              StatusIs(absl::StatusCode::kNotFound, "w9"));
}

TEST(Agent, ManyCallsOfManyThreadsEachGetTheirOwnReply) {
  Ranks ranks(2);
  const Target b = ranks[0].To("w1");
  std::vector<Future<int64_t>> sums;
  for (int64_t i = 0; i < 2000; ++i) sums.push_back(CallAsync(b, Add, i, i));
  for (int64_t i = 0; i < 2000; ++i) {
    ASSERT_EQ(*sums[i].Wait(absl::Seconds(30)), 2 * i);
  }
}

// ------------------------------------------------------------------ errors

TEST(Agent, ErrorsNameTheWorkerAndKeepTheCode) {
  Ranks ranks(2);
  EXPECT_THAT(
      Call(ranks[0].To("w1"), Refuse, "beyond the end"),
      StatusIs(absl::StatusCode::kOutOfRange, "Refuse: beyond the end"));
}

TEST(Agent, ExceptionOfAFunctionIsTheCallersStatus) {
  Ranks ranks(2);
  const absl::Status status = Call(ranks[0].To("w1"), Throw, 1);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               "Throw: shapes do not match"));
  EXPECT_FALSE(OutcomeUnknown(status));
  EXPECT_EQ(*Call(ranks[0].To("w1"), Add, 1, 1), 2);  // the server lives on
}

TEST(Agent, ExceptionOfAFunctionKeepsItsPayloads) {  // F59
  Ranks ranks(2);
  for (const char* worker : {"w1", "w0"}) {
    const absl::Status status = Call(ranks[0].To(worker), ThrowDetailed, 12);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange,
                                 "ThrowDetailed: beyond the end"));
    EXPECT_EQ(DetailOf<int64_t>(status), 12);
    EXPECT_EQ(status.GetPayload("test/payload"), "kept");
  }
}

TEST(Agent, AnUnknownWorkerIsNotFoundAndTheKnownAreNamed) {
  Ranks ranks(2);
  EXPECT_THAT(Call(ranks[0].To("w7"), Add, 1, 2),
              StatusIs(absl::StatusCode::kNotFound, "w7"));
  EXPECT_THAT(Call(ranks[0].To(WorkerKey{7, 1}), Add, 1, 2),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Call(ranks[0].To(WorkerKey{1, 9}), Add, 1, 2),
              StatusIs(absl::StatusCode::kNotFound, "known are w0, w1"));
}

// A directory that learns of workers late, unless it is refreshed.
class LateDirectory final : public Directory {
 public:
  absl::StatusOr<Worker> Find(absl::string_view name) const override {
    return seen_.Find(name);
  }
  absl::StatusOr<Worker> Find(WorkerKey key) const override {
    return seen_.Find(key);
  }
  uint64_t version() const override { return seen_.version(); }
  bool Refresh(absl::Duration timeout) const override {
    ++refreshes;
    longest = std::max(longest, timeout);
    for (const Worker& worker : late) seen_.Put(worker);
    return is_up;
  }

  std::vector<Worker> late;  // known to others already
  bool is_up = true;
  mutable int refreshes = 0;
  mutable absl::Duration longest;

 private:
  mutable FixedDirectory seen_;
};

// x, whose directory is late, beside the ranks w0 to w3.
class LateDirectoryTest : public ::testing::Test {
 protected:
  LateDirectoryTest()
      : transport_(ranks_.network().MakeTransport("x").value()) {
    for (int i = 1; i < 4; ++i) {
      directory_.late.push_back(
          ranks_.directory().Find(absl::StrCat("w", i)).value());
    }
    AgentOptions options;
    options.job = "job";
    options.name = "x";
    options.key = {9, 1};
    options.transport = transport_.get();
    options.directory = &directory_;
    ranks_.directory().Put(Worker{"x", options.key, "x"});
    agent_ = Agent::Create(std::move(options)).value();
  }

  Ranks ranks_{4};
  LateDirectory directory_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<Agent> agent_;
};

TEST_F(LateDirectoryTest, CallByNameOfAWorkerNotYetHeardOfReachesIt) {
  EXPECT_THAT(Call(agent_->To("w1"), Add, 2, 3), IsOkAndHolds(5));
  EXPECT_EQ(directory_.refreshes, 1);
  EXPECT_THAT(Call(agent_->To("w2"), Add, 2, 3), IsOkAndHolds(5));
  EXPECT_EQ(directory_.refreshes, 1);  // it is known now
}

TEST_F(LateDirectoryTest, CallByKeyOfAWorkerNotYetHeardOfReachesIt) {
  EXPECT_THAT(Call(agent_->To(WorkerKey{2, 1}), Add, 2, 3), IsOkAndHolds(5));
  EXPECT_EQ(directory_.refreshes, 1);
}

TEST_F(LateDirectoryTest, UnknownWorkerIsNotFoundAfterOneQuestion) {
  EXPECT_THAT(Call(agent_->To("w7"), Add, 2, 3),
              StatusIs(absl::StatusCode::kNotFound, "w7"));
  EXPECT_EQ(directory_.refreshes, 1);
  EXPECT_LE(directory_.longest, absl::Seconds(1));
  EXPECT_THAT(agent_->To("w7", absl::Milliseconds(20)).status(),
              StatusIs(absl::StatusCode::kNotFound, "w7"));
  EXPECT_EQ(directory_.refreshes, 2);
}

TEST_F(LateDirectoryTest, LookupWithoutAnAnswerIsNotFound) {
  directory_.is_up = false;
  directory_.late.clear();
  EXPECT_THAT(Call(agent_->To("w1"), Add, 2, 3),
              StatusIs(absl::StatusCode::kNotFound, "w1"));
}

TEST_F(LateDirectoryTest, LookupInAnInlineFunctionDoesNotWait) {
  const InlineScope scope;
  EXPECT_THAT(agent_->To("w1").status(),
              StatusIs(absl::StatusCode::kNotFound, "w1"));
  EXPECT_EQ(directory_.refreshes, 0);
}

TEST_F(LateDirectoryTest, LookupAfterShutdownDoesNotWait) {
  EXPECT_THAT(agent_->Shutdown(kPatience), IsOk());
  EXPECT_THAT(agent_->To("w1").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "shutting down"));
  EXPECT_EQ(directory_.refreshes, 0);
}

TEST(Agent, MalformedNameIsInvalidArgument) {
  Ranks ranks(1);
  for (const char* name : {"", "a b", "w0/x"}) {
    EXPECT_THAT(Call(ranks[0].To(name), Add, 1, 2),
                StatusIs(absl::StatusCode::kInvalidArgument, ""))
        << name;
  }
}

TEST(Agent, CallsByNameByKeyAndByLabel) {
  Ranks ranks(3);
  for (const uint32_t i : {1, 2}) {
    const std::string name = absl::StrCat("w", i);
    ranks.directory().Put(Worker{name, WorkerKey{i, 1}, name},
                          {{"role", "ps"}, {"zone", i == 1 ? "a" : "b"}});
  }
  EXPECT_EQ(*Call(ranks[0].To("w1"), Add, 2, 3), 5);
  EXPECT_EQ(*Call(ranks[0].To(WorkerKey{1, 1}), Add, 2, 3), 5);
  const auto servers = ranks[0].ToAll("role=ps");
  ASSERT_THAT(servers, IsOk());
  ASSERT_EQ(servers->size(), 2u);
  for (const Target& server : *servers) EXPECT_EQ(*Call(server, Add, 2, 3), 5);
  EXPECT_EQ(ranks[0].ToAll("role=ps,zone=b")->at(0).name(), "w2");
  EXPECT_THAT(ranks[0].ToAll("role=chief"),
              StatusIs(absl::StatusCode::kNotFound, "role=chief"));
  for (const char* wrong : {"ps", "role==ps", "role=", "=ps", "role=ps=1"}) {
    EXPECT_THAT(ranks[0].ToAll(wrong),
                StatusIs(absl::StatusCode::kInvalidArgument, "name=value"));
  }
}

TEST(Agent, ATargetWithinACallInheritsItsDeadline) {
  Ranks ranks(3);
  const absl::StatusOr<double> seconds =
      Call(ranks[0].To("w1", absl::Seconds(30)), RemainingOfAll, "name=w2");
  ASSERT_THAT(seconds, IsOk());
  EXPECT_LE(*seconds, 30);
}

TEST(RegistryDeathTest, AFunctionIsIdempotentOrIsNot) {
  Registry registry;
  registry.Add(internal::Describe<&Add>(RunsOn::kExecutor));
  registry.Add(internal::Describe<&Add>(RunsOn::kExecutor));
  EXPECT_DEATH(registry.Add(internal::Idempotent(
                   internal::Describe<&Add>(RunsOn::kExecutor))),
               "use one of WEFT_RPC and WEFT_RPC_IDEMPOTENT");
}

TEST(Agent, AnUnregisteredFunctionIsRefusedHere) {
  Ranks ranks(2);
  EXPECT_THAT(Call(ranks[0].To("w1"), NotRegistered, 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, "WEFT_RPC"));
}

TEST(Agent, AnUnknownFunctionNamesItTheWorkerAndItsBuild) {
  Registry empty;
  RanksOptions options;
  options.registries = {nullptr, &empty};
  Ranks ranks(2, options);
  const absl::Status status = Call(ranks[0].To("w1"), Add, 1, 2).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, "Add"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("w1 (build b1)"));
}

TEST(Agent, SourcesOfOtherVersionsAreDetectedBySignature) {
  Registry other;
  Function add = internal::Describe<&Add>(RunsOn::kExecutor);
  add.signature = "i64(i64, f64)";
  add.digest = internal::DigestOf(add.signature);
  other.Add(add);
  RanksOptions options;
  options.registries = {nullptr, &other};
  Ranks ranks(2, options);
  EXPECT_THAT(Call(ranks[0].To("w1"), Add, 1, 2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "signature differs: caller says i64(i64, i64), callee "
                       "has i64(i64, f64)"));
}

TEST(Agent, TwoJobsAtOneAddressAreDistinguished) {
  RanksOptions options;
  options.jobs = {"red", "blue"};
  Ranks ranks(2, options);
  EXPECT_THAT(Call(ranks[0].To("w1"), Add, 1, 2),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "w1 belongs to the job 'blue', w0 to 'red'"));
}

TEST(Agent, AReplacedWorkerIsNotCalledInPlaceOfTheOld) {
  Ranks ranks(2);
  ranks.directory().Put(Worker{"w1", WorkerKey{1, 99}, "w1"});
  const absl::Status status = Call(ranks[0].To("w1"), Add, 1, 2).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "this is the incarnation 1@0.1 of w1"));
  EXPECT_EQ(ReasonOf(status), Reason::kPeerGone);
  EXPECT_FALSE(OutcomeUnknown(status));
}

TEST(Agent, MissingPeerIsUnavailableAndTheCallHasNotRun) {
  RanksOptions options;
  options.give_up_after = absl::Milliseconds(100);
  Ranks ranks(1, options);
  ranks.directory().Put(Worker{"w9", WorkerKey{9, 1}, "nowhere"});
  const absl::Status status = Call(ranks[0].To("w9"), Add, 1, 2).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "w9 could not be reached at nowhere"));
  EXPECT_FALSE(OutcomeUnknown(status));
}

// ------------------------------------------- deadlines, cancellation, death

// If it has begun by then.
TEST(Agent, ADeadlineEndsTheCallAndCancelsTheHandler) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  const Target w1 = ranks[0].To("w1");
  ASSERT_THAT(Call(w1, Add, 1, 2), IsOk());  // so that the next is sent at once
  const absl::Status status =
      CallAsync(w1.WithTimeout(absl::Milliseconds(300)), Linger)
          .Wait(kPatience);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, "Linger"));
  EXPECT_EQ(OutcomeUnknown(status), PhaseOf(status) == Phase::kHandler);
  EXPECT_THAT(ranks[1].Shutdown(kPatience), IsOk());
  EXPECT_EQ(counters.cancelled, counters.lingered);
}

// The function sees the deadline at about the same time as its caller.
TEST(Agent, ResultAfterTheDeadlineIsDiscarded) {
  Counters counters[2];
  Ranks ranks(2);
  for (int rank : {0, 1}) ranks[rank].SetLocal(&counters[rank]);
  ASSERT_THAT(Call(ranks[0].To("w1"), Add, 1, 2), IsOk());  // connected
  for (int round = 0; round < 50; ++round) {
    for (const char* peer : {"w0", "w1"}) {
      const auto late =
          Call(ranks[0].To(peer, absl::Milliseconds(10)), CountUntilStopped);
      ASSERT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded))
          << peer << " in round " << round;
    }
  }
}

TEST(Agent, ATimeoutOfZeroNeverRunsTheFunction) {
  Counters counters[2];
  Ranks ranks(2);
  for (int rank : {0, 1}) ranks[rank].SetLocal(&counters[rank]);
  for (const char* peer : {"w0", "w1"}) {
    const Target now = ranks[0].To(peer, absl::ZeroDuration());
    for (const Target& target : {now, now.Serialized(), now.AllowingAlias()}) {
      for (int round = 0; round < 100; ++round) {
        const absl::Status late =
            CallAsync(target, Count).Wait(kPatience).status();
        ASSERT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded));
        ASSERT_FALSE(OutcomeUnknown(late)) << late;
      }
    }
  }
  for (int rank : {0, 1}) {
    EXPECT_THAT(ranks[rank].AwaitIdle(kPatience), IsOk());
    EXPECT_EQ(counters[rank].runs, 0) << "at w" << rank;
  }
}

TEST(Agent, ADeadlinePassesWhileAllThreadsAreTaken) {
  Counters held;
  Counters parked;
  Ranks ranks(2, OneThread());
  ranks[0].SetLocal(&held);
  ranks[1].SetLocal(&parked);
  Future<void> holding = CallAsync(ranks[1].To("w0"), Linger);
  EXPECT_TRUE(IsWoken(held.began));
  for (const char* peer : {"w0", "w1"}) {
    Future<int64_t> call =
        CallAsync(ranks[0].To(peer, absl::Milliseconds(100)), Later);
    EXPECT_THAT(call.Wait(absl::Seconds(10)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_TRUE(call.IsReady()) << "of " << peer;  // it was not the Wait
  }
  EXPECT_FALSE(holding.IsReady());
  holding.Cancel();
}

TEST(Agent, CancelReachesTheHandler) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  Future<void> call = CallAsync(ranks[0].To("w1"), Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  call.Cancel(absl::CancelledError("changed my mind"));
  EXPECT_THAT(call.Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "changed my mind"));
  EXPECT_THAT(ranks[1].Shutdown(absl::Seconds(10)), IsOk());
  EXPECT_EQ(counters.cancelled, 1);
}

TEST(Agent, CancelReachesNestedCalls) {
  Counters counters;
  Ranks ranks(3);
  ranks[2].SetLocal(&counters);
  Future<void> call = CallAsync(ranks[0].To("w1"), LingerBelow, "w2");
  EXPECT_TRUE(IsWoken(counters.began));
  call.Cancel();
  EXPECT_THAT(ranks[1].Shutdown(absl::Seconds(10)), IsOk());
  EXPECT_THAT(ranks[2].Shutdown(absl::Seconds(10)), IsOk());
  EXPECT_EQ(counters.cancelled, 1);
}

TEST(Agent, NestedCallsInheritTheDeadline) {
  Ranks ranks(3);
  const absl::StatusOr<double> seconds =
      Call(ranks[0].To("w1", absl::Seconds(30)), RemainingBelow, "w2");
  ASSERT_THAT(seconds, IsOk());
  EXPECT_GT(*seconds, 0);
  EXPECT_LE(*seconds, 30);
}

TEST(Agent, ANestedCallHasItsOwnDeadlineWhereThatIsNearer) {
  Ranks ranks(3);
  for (const char* other : {"w2", "w1"}) {
    const absl::StatusOr<double> seconds =
        Call(ranks[0].To("w1", absl::Hours(1)), RemainingWithin, other, 300.0);
    ASSERT_THAT(seconds, IsOk());
    EXPECT_GT(*seconds, 0);
    EXPECT_LE(*seconds, 300);
  }
}

TEST(Agent, APeerDeclaredGoneEndsItsCallsWithTheOutcomeUnknown) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  Future<void> call = CallAsync(ranks[0].To("w1"), Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  ranks[0].PeerGone(WorkerKey{1, 1}, "its process has ended");
  const absl::Status status = call.Wait(absl::Seconds(10));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                               "its process has ended"));
  EXPECT_TRUE(OutcomeUnknown(status));
  // The directory does not have it yet; no call is sent to a gone worker.
  EXPECT_THAT(Call(ranks[0].To("w1"), Add, 1, 2),
              StatusIs(absl::StatusCode::kUnavailable, "1@0.1 of w1 is gone"));
}

TEST(Agent, AKeyIsOfTheNameThatCameWithItFirst) {
  RanksOptions options;
  options.keys = {{0, 1}, {1, 1}, {0, 1}};
  Ranks ranks(3, options);
  ASSERT_EQ(*Call(ranks[0].To("w1"), CallerName), "w0");
  EXPECT_THAT(Call(ranks[2].To("w1"), CallerName),
              StatusIs(absl::StatusCode::kPermissionDenied, "is of w0"));
}

TEST(Agent, ACallerDeclaredGoneIsHeardNoMore) {
  Ranks ranks(2);
  ASSERT_EQ(*Call(ranks[0].To("w1"), Add, 1, 2), 3);
  ranks[1].PeerGone(WorkerKey{0, 1}, "silent for 10 s");
  EXPECT_THAT(Call(ranks[0].To("w1"), Add, 1, 2),
              StatusIs(absl::StatusCode::kAborted, "declared gone"));
}

TEST(Agent, ABrokenConnectionNeitherLosesNorRepeatsACall) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  const Target b = ranks[0].To("w1");
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 500; ++i) {
    calls.push_back(CallAsync(b, Count));
    if (i % 50 == 25) ranks.network().Break("w1");
  }
  for (const auto& call : calls)
    ASSERT_THAT(call.Wait(absl::Seconds(30)), IsOk());
  EXPECT_EQ(counters.runs, 500);
}

TEST(Agent, AReplySurvivesTheConnectionItWasMeantFor) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  Future<int64_t> call = CallAsync(ranks[0].To("w1"), Later);
  EXPECT_TRUE(IsWoken(counters.began));
  ranks.network().Break("w1");
  {
    MutexLock lock(counters.mu);
    ASSERT_EQ(counters.parked.size(), 1u);
    counters.parked[0].Set(42);
  }
  EXPECT_EQ(*call.Wait(absl::Seconds(30)), 42);
  MutexLock lock(counters.mu);
  EXPECT_EQ(counters.parked.size(), 1u);
}

// ------------------------------------------------------------------- names

TEST(Agent, OptionsThatLackSomethingAreRefused) {
  transport::LocalNetwork network;
  FixedDirectory directory;
  const auto transport = network.MakeTransport("here").value();
  AgentOptions whole;
  whole.job = "job";
  whole.name = "n";
  whole.key = WorkerKey{0, 1};
  whole.directory = &directory;
  whole.transport = transport.get();
  const auto pool = *ThreadPool::Create({});
  const std::pair<std::function<void(AgentOptions&)>, const char*> cases[] = {
      {[](auto& o) { o.job = ""; }, "job: wanted its name, found none"},
      {[](auto& o) { o.key.epoch = 0; }, "key: wanted an epoch from 1 on"},
      {[](auto& o) { o.transport = nullptr; }, "transport: wanted one"},
      {[](auto& o) { o.directory = nullptr; }, "directory: wanted one"},
      {[&](auto& o) { o.pool = pool.get(); },
       "pool: wanted the one that executor"},
      {[](auto& o) { o.threads = 0; }, "threads: wanted 1 or more, found 0"},
      {[](auto& o) { o.max_threads = 3; },
       "max_threads: wanted no fewer than threads, 16, found 3"},
      {[](auto& o) { o.default_timeout = -absl::Seconds(1); },
       "default_timeout: wanted none below zero, found -1s"},
      {[](auto& o) { o.limits.calls = 0; }, "limits.calls: wanted 1 or more"},
      {[](auto& o) { o.limits.bytes = -1; }, "limits.bytes: wanted 1 or more"},
      {[](auto& o) { o.limits.nested_calls = 0; }, "limits.nested_calls: want"},
      {[](auto& o) { o.limits.objects = 0; }, "limits.objects: wanted 1 or"},
      {[](auto& o) { o.limits.sessions = 0; }, "limits.sessions: wanted 1 or"},
      {[](auto& o) { o.limits.timeout = absl::ZeroDuration(); },
       "limits.timeout: wanted more than 0, found 0"},
      {[](auto& o) { o.result_bytes = 0; }, "result_bytes: wanted 1 or more"},
      {[](auto& o) { o.give_up_after = absl::ZeroDuration(); },
       "give_up_after: wanted more than 0, found 0"}};
  for (const auto& [spoil, said] : cases) {
    AgentOptions options = whole;
    spoil(options);
    EXPECT_THAT(Agent::Create(options),
                StatusIs(absl::StatusCode::kInvalidArgument, said));
  }
  EXPECT_THAT(Agent::Create(whole), IsOk());
}

TEST(Agent, ANameHas1To127CharactersAndIsLookedAtFirst) {
  transport::LocalNetwork network;
  FixedDirectory directory;
  const auto transport = network.MakeTransport("here").value();
  AgentOptions options;
  options.job = "job";
  options.key = WorkerKey{0, 1};
  options.directory = &directory;
  for (const std::string& name :
       {std::string(), std::string(128, 'n'), std::string("a b"),
        std::string("a/b"), std::string("a.b"), std::string("a\n"),
        std::string("\0", 1), std::string("\xc3\xa9")}) {
    options.name = name;  // without a transport nothing could begin
    EXPECT_THAT(Agent::Create(options),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "wanted 1 to 127 letters, digits, '-', '_' or ':'"));
  }
  options.transport = transport.get();
  for (const std::string& name :
       {std::string(127, 'n'), std::string("A-b_c:0"), std::string("n")}) {
    options.name = name;
    directory.Put(Worker{name, options.key, "here"});
    const auto agent = Agent::Create(options);
    ASSERT_THAT(agent, IsOk());
    EXPECT_THAT(Call((*agent)->To(name), CallerName), IsOkAndHolds(name));
    for (const std::string& other : {std::string(128, 'n'), std::string()}) {
      EXPECT_THAT(Call((*agent)->To(other), CallerName),
                  StatusIs(absl::StatusCode::kInvalidArgument, "1 to 127"));
    }
  }
}

// ----------------------------------------------------------------- threads

TEST(Agent, TwelvePingPongChainsOnFourThreadsFinish) {  // PROBE-P6
  RanksOptions options;
  options.threads = 4;
  Ranks ranks(2, options);
  std::vector<Future<int64_t>> chains;
  for (int i = 0; i < 12; ++i) {
    const int from = i % 2;
    chains.push_back(CallAsync(ranks[from].To(absl::StrCat("w", 1 - from)),
                               PingPong, absl::StrCat("w", from), 10));
  }
  for (const auto& chain : chains) {
    EXPECT_EQ(*chain.Wait(absl::Seconds(60)), 10);
  }
}

TEST(Agent, DeadlinesPassWhileEveryHandlerIsBusy) {
  RanksOptions options;
  options.threads = 1;
  options.max_threads = 1;
  Counters counters;
  Blocker blockers[2];
  Ranks ranks(2, options);
  for (int i = 0; i < 2; ++i) ranks[i].SetLocal(&blockers[i]);
  ranks[1].SetLocal(&counters);
  const Future<void> here = CallAsync(ranks[1].To("w0"), Block);
  const Future<void> there = CallAsync(ranks[0].To("w1"), Block);
  for (Blocker& blocker : blockers) EXPECT_TRUE(IsWoken(blocker.began));
  // Neither end has a thread for handlers; the timers need none.
  const Target b = ranks[0].To("w1", absl::Milliseconds(200));
  Promise<void> told;
  Future<int64_t> late = CallAsync(b, Count);
  late.OnReady([&](const absl::StatusOr<int64_t>& result) {
    told.Set(result.status());
  });
  EXPECT_THAT(told.future().Wait(absl::Seconds(30)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "Count"));
  for (Blocker& blocker : blockers) blocker.go_on.Unpark();
  EXPECT_THAT(here.Wait(absl::Seconds(10)), IsOk());
  EXPECT_THAT(there.Wait(absl::Seconds(10)), IsOk());
}

TEST(Agent, AFutureReturningHandlerHoldsNoThread) {
  RanksOptions options;
  options.threads = 1;
  options.max_threads = 1;
  Counters counters;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&counters);
  const Target b = ranks[0].To("w1");
  Future<int64_t> later = CallAsync(b, Later);
  EXPECT_TRUE(IsWoken(counters.began));
  EXPECT_EQ(*Call(b, Count), 1);  // runs while Later is open
  {
    MutexLock lock(counters.mu);
    counters.parked[0].Set(9);
  }
  EXPECT_EQ(*later.Wait(absl::Seconds(10)), 9);
}

TEST(Agent, AWaitInAnInlineFunctionFailsAtOnce) {
  Counters counters;
  Ranks ranks(2);
  ranks[0].SetLocal(&counters);
  for (const char* peer : {"w1", "w0"}) {
    EXPECT_THAT(Call(ranks[0].To(peer), WaitInline),
                StatusIs(absl::StatusCode::kFailedPrecondition, "inline"));
  }
  {
    const InlineScope scope;
    EXPECT_THAT(CallOne(ranks[1].To("w0"), GreetAll, "you"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         "a call to w0 would wait"));
  }
  EXPECT_EQ(*Call(ranks[1].To("w0"), Count), 1);  // nothing was sent before
}

TEST(Agent, ShutdownNamesOpenCalls) {
  Counters counters;
  Ranks ranks(2);
  ranks[1].SetLocal(&counters);
  Future<void> call = CallAsync(ranks[0].To("w1"), Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  EXPECT_THAT(ranks[0].CutCalls(), IsEmpty());
  EXPECT_THAT(ranks[0].Shutdown(absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "1 calls to w1"));
  EXPECT_THAT(ranks[0].CutCalls(), ElementsAre("1 calls to w1"));
  EXPECT_THAT(Call(ranks[0].To("w1"), Add, 1, 2),
              StatusIs(absl::StatusCode::kFailedPrecondition, "shutting down"));
  EXPECT_THAT(call.Wait(absl::Seconds(10)),
              StatusIs(absl::StatusCode::kCancelled, "w0 has shut down"));
}

TEST(Agent, ShutdownRefusesNewCallsOfPeers) {
  Ranks ranks(2);
  ASSERT_EQ(*Call(ranks[0].To("w1"), Add, 1, 2), 3);
  ASSERT_THAT(ranks[1].Shutdown(absl::Seconds(10)), IsOk());
  const absl::Status status = Call(ranks[0].To("w1"), Add, 1, 2).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable, "w1 is shutting down"));
  EXPECT_FALSE(OutcomeUnknown(status));
}

TEST(Agent, OutOfItsJobItEndsItsCallsAndRefusesOthersWithTheReason) {
  Counters counters;
  Ranks ranks(2);
  ranks[0].SetLocal(&counters);
  ranks[1].SetLocal(&counters);
  const Target target = ranks[0].To("w1");
  Future<void> served = CallAsync(target, Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  Future<void> made = CallAsync(ranks[1].To("w0"), Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  ranks[1].OutOfJob(absl::AbortedError("w1 is out of it; start it again"));
  const absl::Status cut = served.Wait(absl::Seconds(30));
  EXPECT_THAT(cut, StatusIs(absl::StatusCode::kUnavailable, "start it again"));
  EXPECT_EQ(ReasonOf(cut), Reason::kPeerGone);
  EXPECT_TRUE(OutcomeUnknown(cut));
  const absl::Status ended = made.Wait(absl::Seconds(30));
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kAborted, "start it again"));
  EXPECT_TRUE(OutcomeUnknown(ended));
  const absl::Status refused = Call(target, Add, 1, 2).status();
  EXPECT_THAT(refused,
              StatusIs(absl::StatusCode::kUnavailable, "w1 is out of it"));
  EXPECT_EQ(ReasonOf(refused), Reason::kPeerGone);
  EXPECT_FALSE(OutcomeUnknown(refused));
  for (const char* peer : {"w0", "w1"}) {
    EXPECT_THAT(Call(ranks[1].To(peer), Add, 1, 2),
                StatusIs(absl::StatusCode::kAborted, "w1 is out of it"));
  }
  EXPECT_THAT(ranks[1].Shutdown(absl::Seconds(30)), IsOk());
}

TEST(Agent, ParkedCallsDoNotDelayShutdown) {
  Counters counters;
  Future<int64_t> call = MakeReady<int64_t>(0);
  {
    Ranks ranks(2);
    ranks[1].SetLocal(&counters);
    call = CallAsync(ranks[0].To("w1"), Later);
    EXPECT_TRUE(IsWoken(counters.began));
  }
  EXPECT_THAT(call.Wait(absl::Seconds(1)),
              StatusIs(absl::StatusCode::kCancelled, "the agent of w0"));
  MutexLock lock(counters.mu);
  ASSERT_EQ(counters.parked.size(), 1u);
  EXPECT_TRUE(counters.parked[0].IsDone());
}

TEST(Agent, CallsOfAnAgentByItselfEndWithIt) {
  Counters counters;
  Future<void> call = MakeReady();
  {
    Ranks ranks(1);
    ranks[0].SetLocal(&counters);
    call = CallAsync(ranks[0].To("w0"), Linger);
    EXPECT_TRUE(IsWoken(counters.began));
  }
  EXPECT_THAT(call.Wait(absl::Seconds(1)),
              StatusIs(absl::StatusCode::kCancelled, "the agent of w0"));
  EXPECT_EQ(counters.cancelled, 1);
}

TEST(Agent, ObjectOfARunningCallLivesUntilTheCallEnds) {
  auto counters = std::make_shared<Counters>();
  const std::weak_ptr<Counters> alive = counters;
  {
    Ranks ranks(2);
    ranks[1].SetLocal(counters);
    Future<int64_t> call = CallAsync(ranks[0].To("w1"), Later);
    EXPECT_TRUE(IsWoken(counters->began));
    ranks[1].SetLocal<Counters>(nullptr);
    counters.reset();
    const std::shared_ptr<Counters> kept = alive.lock();
    ASSERT_NE(kept, nullptr);
    MutexLock lock(kept->mu);
    ASSERT_EQ(kept->parked.size(), 1u);
    kept->parked[0].Set(3);
  }
  EXPECT_EQ(alive.lock(), nullptr);
}

TEST(Agent, PendingCallsAreOnTheStatusPage) {
  telemetry::Telemetry telemetry{telemetry::Telemetry::Options()};
  RanksOptions options;
  options.telemetry = &telemetry;
  Counters counters;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&counters);
  Future<void> call = CallAsync(ranks[0].To("w1"), Linger);
  EXPECT_TRUE(IsWoken(counters.began));
  const std::string page = telemetry.status().RenderText();
  EXPECT_THAT(page, HasSubstr("call 1 to w1"));
  EXPECT_THAT(page, HasSubstr("Linger, handler"));
  EXPECT_THAT(page, HasSubstr("serving 1 of w0"));
  call.Cancel();
}

}  // namespace
}  // namespace weft::rpc
