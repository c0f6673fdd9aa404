// What calls wait for: credit, threads, and their turn in an ordered queue.

#include <algorithm>
#include <cstdint>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/parker.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/agent_test_functions.h"
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
  for (const Future<void>& call : {runs, waits}) {
    EXPECT_FALSE(call.Wait(absl::Seconds(10)).ok());
    EXPECT_TRUE(call.IsReady());
  }
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

}  // namespace
}  // namespace weft::rpc
