// Where the time of a call went, and why a worker was unavailable.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/failure_test_functions.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

// ---------------------------------------------------- what the ranks can do

// Calls another until its own worker makes no more calls.
absl::Status FailBelowForEver(CallContext& context, const std::string& other) {
  context.Local<Parked>()->began.Unpark();
  absl::Status status;
  do {
    status = Call(context.To(other), Fail, "again");
  } while (absl::IsDataLoss(status));
  return status;
}
WEFT_RPC(FailBelowForEver);

// Fails as the call below does, which is lost while it is out.
absl::StatusOr<int64_t> ParkBelow(CallContext& context,
                                  const std::string& other) {
  absl::StatusOr<int64_t> below = Call(context.To(other), Park);
  EXPECT_TRUE(OutcomeUnknown(below.status()));
  return below;
}
WEFT_RPC(ParkBelow);

double SecondsLeft(CallContext& context) {
  return absl::ToDoubleSeconds(context.Remaining());
}
WEFT_RPC(SecondsLeft);

// ------------------------------------------------------ where the time went

TEST(Timeout, SaysThatTheCallWasInTheHandler) {
  Parked parked;
  SimulatedRanks ranks(2, {});  // no other clock is sure that it has begun
  ranks[1].SetLocal(&parked);
  const absl::Status status =
      Call(ranks[0].To("w1", absl::Milliseconds(300)), Park).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               "Park: the deadline passed in phase handler: "
                               "the call to w1 was out, unanswered"));
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(FailuresOf(status)[0].worker, "w1");
  EXPECT_EQ(PhaseOf(status), Phase::kHandler);
  EXPECT_TRUE(OutcomeUnknown(status));
  EXPECT_THAT(ranks[1].AwaitIdle(kPatience), IsOk());
  MutexLock lock(parked.mu);
  ASSERT_THAT(parked.promises, SizeIs(1));
  EXPECT_TRUE(parked.promises[0].IsDone());  // its function is notified
}

// As its worker says it, of Park.
void ExpectCancelledAtW1(const Future<int64_t>& call) {
  ASSERT_TRUE(call.IsReady());
  const absl::Status status = call.Wait(absl::ZeroDuration()).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, "w1: enough"));
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(FailuresOf(status)[0].worker, "w1");
  EXPECT_THAT(FailuresOf(status)[0].function, HasSubstr("Park"));
}

TEST(Cancelled, SaysWhereTheCallWasAndWhetherItMayHaveRun) {
  RanksOptions options;
  options.limits.calls = 1;
  Parked parked;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&parked);
  const Future<int64_t> running = CallAsync(ranks[0].To("w1"), Park);
  EXPECT_TRUE(IsWoken(parked.began));
  const Future<int64_t> own = CallAsync(ranks[1].To("w1"), Park);
  EXPECT_TRUE(IsWoken(parked.began));
  const Future<int64_t> waiting = CallAsync(ranks[0].To("w1"), Park);
  const Future<int64_t> derived = running.Then([](int64_t x) { return x; });
  waiting.Cancel(absl::CancelledError("enough"));
  own.Cancel(absl::CancelledError("enough"));
  derived.Cancel(absl::CancelledError("enough"));
  for (const auto& call : {waiting, own, running, derived})
    ExpectCancelledAtW1(call);
  const auto status_of = [](const Future<int64_t>& call) {
    return call.Wait(absl::ZeroDuration()).status();
  };
  EXPECT_EQ(PhaseOf(status_of(waiting)), Phase::kQueue);
  EXPECT_FALSE(OutcomeUnknown(status_of(waiting)));
  for (const auto& call : {own, running, derived}) {
    EXPECT_EQ(PhaseOf(status_of(call)), Phase::kHandler);
    EXPECT_TRUE(OutcomeUnknown(status_of(call)));
  }
}

// The queue of notifications is being worked off then.
TEST(Cancelled, SaysTheSameWhereACallbackCancels) {
  Parked parked;
  RanksOptions options;
  options.limits.calls = 1;
  Ranks ranks(2, options);
  ranks[1].SetLocal(&parked);
  const Target w1 = ranks[0].To("w1");
  const Future<int64_t> first = CallAsync(w1, Park);
  ASSERT_TRUE(IsWoken(parked.began));
  const Future<int64_t> next = CallAsync(w1, Park);  // sent as the first ends
  const Future<int64_t> last = CallAsync(w1, Park);
  const Future<void> all = first.Then([&](int64_t) {
    last.Cancel(absl::CancelledError("enough"));
    next.Cancel(absl::CancelledError("enough"));
  });
  {
    MutexLock lock(parked.mu);
    parked.promises[0].Set(1);
  }
  ASSERT_THAT(all.Wait(absl::Seconds(30)), IsOk());
  for (const auto& call : {next, last}) ExpectCancelledAtW1(call);
  const absl::Status sent = next.Wait(absl::ZeroDuration()).status();
  EXPECT_EQ(PhaseOf(sent), Phase::kHandler);
  EXPECT_TRUE(OutcomeUnknown(sent));
  const absl::Status unsent = last.Wait(absl::ZeroDuration()).status();
  EXPECT_EQ(PhaseOf(unsent), Phase::kQueue);
  EXPECT_FALSE(OutcomeUnknown(unsent));
}

TEST(Timeout, SaysThatTheCallWasInTheQueue) {
  Ranks ranks(1);
  ranks.directory().Put(Worker{"w9", WorkerKey{9, 1}, "nowhere"});
  // A time-out of Wait alone has no such word, here and elsewhere.
  const absl::Status status =
      CallAsync(ranks[0].To("w9", absl::Milliseconds(50)), Fail, "x")
          .Wait(kPatience);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               "Fail: the deadline passed in phase queue"));
  EXPECT_EQ(PhaseOf(status), Phase::kQueue);
  EXPECT_FALSE(OutcomeUnknown(status));
}

TEST(Timeout, TheDefaultIsReadWhenACallIsMade) {
  Parked parked;
  Ranks ranks(2);
  ranks[1].SetLocal(&parked);
  const Target target = ranks[0].To("w1");
  ASSERT_THAT(ranks[0].SetDefaultTimeout(absl::Hours(2)), IsOk());
  EXPECT_THAT(Call(target, SecondsLeft), IsOkAndHolds(Gt(3600)));
  Future<int64_t> patient = CallAsync(target, Park);
  EXPECT_TRUE(IsWoken(parked.began));
  ASSERT_THAT(ranks[0].SetDefaultTimeout(absl::Milliseconds(100)), IsOk());
  EXPECT_EQ(ranks[0].default_timeout(), absl::Milliseconds(100));
  EXPECT_THAT(CallAsync(target, Park).Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  EXPECT_FALSE(patient.IsReady());  // keeps what it had
  EXPECT_THAT(ranks[0].SetDefaultTimeout(absl::Seconds(-1)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  patient.Cancel();
}

TEST(Timeout, AnInfiniteOneNeverPasses) {
  Ranks ranks(2);
  const Target target = ranks[0].To("w1", absl::InfiniteDuration());
  const auto is_years = IsOkAndHolds(Gt(3600.0 * 24 * 365));
  EXPECT_THAT(Call(target, SecondsLeft), is_years);
  EXPECT_THAT(Call(ranks[1].To("w1", absl::InfiniteDuration()), SecondsLeft),
              is_years);
}

TEST(Timeout, ANegativeOneIsRefusedAndZeroHasPassed) {
  Ranks ranks(2);
  const Target target = ranks[0].To("w1", absl::Seconds(-1));
  EXPECT_THAT(Call(target, Fail, "x"),
              StatusIs(absl::StatusCode::kInvalidArgument, "below zero"));
  EXPECT_THAT(Call(target.WithTimeout(absl::ZeroDuration()), Fail, "x"),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  EXPECT_THAT(Call(target.WithTimeout(std::nullopt), Fail, "x"),
              StatusIs(absl::StatusCode::kDataLoss));
}

// ---------------------------------------------------------- why unavailable

TEST(Unavailable, SaysThatTheIncarnationIsGone) {  // PROBE-P9
  Parked parked;
  Ranks ranks(2);
  ranks[1].SetLocal(&parked);
  Future<int64_t> call = CallAsync(ranks[0].To("w1"), Park);
  EXPECT_TRUE(IsWoken(parked.began));
  ranks[0].PeerGone(WorkerKey{1, 1}, "its process has ended");
  const absl::Status status = call.Wait(absl::Seconds(10)).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ReasonOf(status), Reason::kPeerGone);
  EXPECT_EQ(PhaseOf(status), Phase::kWire);
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(FailuresOf(status)[0].worker, "w1");
  EXPECT_TRUE(OutcomeUnknown(status));
  for (const Target& target :
       {ranks[0].To("w1"), ranks[0].To(WorkerKey{1, 1})}) {
    const absl::Status later = Call(target, Fail, "x");
    EXPECT_EQ(ReasonOf(later), Reason::kPeerGone);
    EXPECT_FALSE(OutcomeUnknown(later));
    EXPECT_THAT(FailuresOf(later), SizeIs(1));
  }
}

TEST(Unavailable, SaysThatTheWorkerIsReplaced) {
  Ranks ranks(2);
  ranks.directory().Put(Worker{"w1", WorkerKey{1, 99}, "w1"});
  const absl::Status status = Call(ranks[0].To("w1"), Fail, "x");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ReasonOf(status), Reason::kPeerGone);
}

TEST(Unavailable, SaysThatNoPeerIsThere) {
  RanksOptions options;
  options.give_up_after = absl::Milliseconds(50);
  Ranks ranks(1, options);
  ranks.directory().Put(Worker{"w9", WorkerKey{9, 1}, "nowhere"});
  const absl::Status status = Call(ranks[0].To("w9"), Fail, "x");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ReasonOf(status), Reason::kUnreachable);
  EXPECT_EQ(PhaseOf(status), Phase::kQueue);
}

TEST(Unavailable, SaysThatTheWorkerShutsDown) {
  Ranks ranks(2);
  ASSERT_THAT(ranks[1].Shutdown(absl::Seconds(10)), IsOk());
  const absl::Status status = Call(ranks[0].To("w1"), Fail, "x");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ReasonOf(status), Reason::kShuttingDown);
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(FailuresOf(status)[0].worker, "w1");
}

// All that uses `target` and what it keeps.
std::vector<absl::Status> UseAll(const Target& target,
                                 const Handle<Word>& kept) {
  auto stream = OpenStream(target, Endless);
  return {Call(target, Fail, "x"),
          CallOne(target, MakeEach, "x").status(),
          Remote(target, MakeWord, "x").status(),
          Fetch(kept).status(),
          Release(kept),
          stream.Next().status(),
          stream.Next().status()};
}

TEST(AfterShutdown, OnesOwnCallsHandlesAndStreamsSaySo) {  // F21
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1");
  const auto kept = Remote(w1, MakeWord, "fine");
  ASSERT_THAT(kept, IsOk());
  auto open = OpenStream(w1, Endless);
  ASSERT_THAT(open.Next(), IsOk());
  EXPECT_THAT(ranks[0].Shutdown(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (const absl::Status& status : UseAll(w1, *kept)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "no more calls are made: w0 is shutting "
                                 "down"));
    EXPECT_EQ(ReasonOf(status), Reason::kShuttingDown);
    EXPECT_EQ(PhaseOf(status), Phase::kNone);
    ASSERT_THAT(FailuresOf(status), SizeIs(1));
    EXPECT_EQ(FailuresOf(status)[0].worker, "w1");
    EXPECT_FALSE(OutcomeUnknown(status));
  }
  absl::Status cut;
  while (cut.ok()) cut = open.Next().status();
  EXPECT_THAT(cut, StatusIs(absl::StatusCode::kCancelled, "has shut down"));
}

TEST(AfterShutdown, ThoseOfItsPeersSaySo) {
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1");
  const auto kept = Remote(w1, MakeWord, "fine");
  ASSERT_THAT(kept, IsOk());
  ASSERT_THAT(ranks[1].Shutdown(absl::Seconds(10)), IsOk());
  for (const absl::Status& status : UseAll(w1, *kept)) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 "w1 is shutting down"));
    EXPECT_EQ(ReasonOf(status), Reason::kShuttingDown);
    EXPECT_FALSE(OutcomeUnknown(status));
  }
}

// The function that passes it on is not what has the reason.
TEST(AfterShutdown, TheReasonIsOfTheNestedCall) {
  Parked parked;
  Ranks ranks(3);
  ranks[1].SetLocal(&parked);
  const auto call = CallAsync(ranks[0].To("w1"), FailBelowForEver, "w2");
  EXPECT_TRUE(IsWoken(parked.began));
  EXPECT_THAT(ranks[1].Shutdown(absl::Seconds(10)), IsOk());
  const absl::Status status = call.Wait(absl::Seconds(10));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               "FailBelowForEver: no more calls are made"));
  EXPECT_EQ(ReasonOf(status), Reason::kNone);
  ASSERT_THAT(FailuresOf(status), SizeIs(2));
  EXPECT_EQ(FailuresOf(status)[1].reason, Reason::kShuttingDown);
  EXPECT_EQ(FailuresOf(status)[1].worker, "w2");
}

// Its own reason is not that of the call below, which failed for another.
TEST(Unavailable, TheReasonIsOfTheCallItself) {
  Ranks ranks(2);
  ranks.directory().Put(Worker{"w9", WorkerKey{9, 1}, "nowhere"});
  ranks[1].PeerGone(WorkerKey{9, 1}, "gone");
  const absl::Status status =
      Call(ranks[0].To("w1"), FailBelow, "w9", "bad block");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ReasonOf(status), Reason::kNone);
  ASSERT_THAT(FailuresOf(status), SizeIs(2));
  EXPECT_EQ(FailuresOf(status)[1].reason, Reason::kPeerGone);
  EXPECT_EQ(FailuresOf(status)[1].worker, "w9");
}

// It was answered, whatever is unknown of the call below.
TEST(Unavailable, TheOutcomeIsThatOfTheCallItself) {
  for (const char* peer : {"w0", "w1"}) {
    Parked parked;
    Ranks ranks(3);
    ranks[2].SetLocal(&parked);
    Future<int64_t> call = CallAsync(ranks[0].To(peer), ParkBelow, "w2");
    EXPECT_TRUE(IsWoken(parked.began));
    for (const int rank : {0, 1}) ranks[rank].PeerGone({2, 1}, "gone");
    const absl::Status status = call.Wait(absl::Seconds(30)).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable, "w2"));
    EXPECT_FALSE(OutcomeUnknown(status)) << "of " << peer;
    ASSERT_THAT(FailuresOf(status), SizeIs(2));
    EXPECT_EQ(FailuresOf(status)[1].worker, "w2");
  }
}

}  // namespace
}  // namespace weft::rpc
