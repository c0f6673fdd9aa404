// How calls and agents end: deadlines, cancellation, death and Shutdown.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/agent_test_functions.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

// ---------------------------------------------------- what the ranks can do

// Runs until it is cancelled, and returns what it has by then.
int64_t CountUntilStopped(CallContext& context) {
  Linger(context).IgnoreError();
  return context.Local<Counters>()->lingered;
}
WEFT_RPC(CountUntilStopped);

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

// ----------------------------------------------------------------- threads

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
