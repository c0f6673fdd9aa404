// What a caller learns of a call that failed, and the time that calls have.

#include "weft/rpc/session/failure.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/batch.h"
#include "weft/rpc/detail.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/failure_test_functions.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::StatusIs;

// A Word that says so.
auto Says(const std::string& text) { return Field(&Word::text, text); }

// ---------------------------------------------------- what the ranks can do

// Registered before the one that is thrown.
struct Unrelated {};
Overdrawn DescribeUnrelated(const Unrelated&) { return {0, 0}; }
WEFT_RPC_ERROR(Unrelated, absl::StatusCode::kAborted, DescribeUnrelated);

class OverdrawnError : public std::exception {
 public:
  OverdrawnError(int64_t account, double by) : account(account), by(by) {}
  const char* what() const noexcept override { return "overdrawn"; }
  const int64_t account;
  const double by;
};
Overdrawn Describe(const OverdrawnError& thrown) {
  return {thrown.account, thrown.by};
}
WEFT_RPC_ERROR(OverdrawnError, absl::StatusCode::kOutOfRange, Describe);

// An exception of two arguments that nobody has registered.
struct Odd final : std::exception {
  Odd(int a, const char* b) : text(absl::StrCat(b, a)) {}
  const char* what() const noexcept override { return text.c_str(); }
  const std::string text;
};

void ThrowOdd(int64_t kind) {
  if (kind == 0) throw Odd(7, "odd ");
  if (kind == 1) throw 42;
  throw OverdrawnError(12, 0.5);
}
WEFT_RPC(ThrowOdd);

Word Echo(const Word& word) { return word; }
WEFT_RPC(Echo);

Word NotRegistered() { return Word(); }

int64_t Label(const Tensor& x, const Word&) { return x.numel(); }
WEFT_RPC(Label);

// Makes an error of its own of the one below.
absl::Status Translate(CallContext& context, const std::string& other) {
  return WithCause(absl::AbortedError("the step failed"),
                   Call(context.To(other), FailBelow, "w2", "bad block"));
}
WEFT_RPC(Translate);

absl::Status Recurse(CallContext& context, int64_t depth) {
  if (depth == 0) return absl::DataLossError("the bottom");
  const std::string other = context.agent().name() == "w0" ? "w1" : "w0";
  return Call(context.To(other), Recurse, depth - 1);
}
WEFT_RPC(Recurse);

// ------------------------------------------------------------ what is known

TEST(Failures, SayWorkerFunctionAndPhaseAndKeepPayloads) {
  Ranks ranks(2);
  const absl::Status status = Call(ranks[0].To("w1"), Fail, "bad block");
  const std::vector<Failure> failures = FailuresOf(status);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_EQ(failures[0].worker, "w1");
  EXPECT_THAT(failures[0].function, HasSubstr("Fail"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(status.message(),
            absl::StrCat("w1: ", failures[0].function, ": bad block"));
  EXPECT_EQ(failures[0].phase, Phase::kHandler);
  EXPECT_EQ(failures[0].reason, Reason::kNone);
  EXPECT_EQ(failures[0].code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(failures[0].message, "bad block");
  EXPECT_EQ(status.GetPayload(kPayload), "kept");
  const std::optional<Overdrawn> detail = DetailOf<Overdrawn>(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->account, 3);
  EXPECT_EQ(DetailOf<Word>(status), std::nullopt);
}

TEST(Failures, OfCallsToOneselfAreTheSame) {
  Ranks ranks(1);
  const absl::Status status = Call(ranks[0].To("w0"), Fail, "bad block");
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(FailuresOf(status)[0].worker, "w0");
  EXPECT_EQ(PhaseOf(status), Phase::kHandler);
  EXPECT_EQ(status.GetPayload(kPayload), "kept");
}

TEST(Failures, ArgumentsThatCannotBeReadAreOfDecode) {
  Ranks ranks(2);
  const auto echo = [&](const char* word) {
    return Call(ranks[0].To("w1"), Echo, Word{word}).status();
  };
  EXPECT_THAT(echo("unreadable"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "Echo: argument 1 (test.Word): exception: cannot read "
                       "it"));
  EXPECT_EQ(PhaseOf(echo("unreadable")), Phase::kDecode);
  EXPECT_THAT(echo("forbidden"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "argument 1 (test.Word): this word is not read"));
  EXPECT_EQ(PhaseOf(echo("forbidden")), Phase::kDecode);
  EXPECT_EQ(echo("forbidden").GetPayload(kPayload), "kept");
  EXPECT_THAT(echo("endless"),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "argument 1 (test.Word): out of memory"));
  EXPECT_EQ(PhaseOf(echo("endless")), Phase::kDecode);
  EXPECT_THAT(echo("fine"), IsOk());
}

TEST(Failures, AResultThatCannotBeWrittenIsOfEncode) {
  Ranks ranks(2);
  const absl::Status status =
      Call(ranks[0].To("w1"), MakeWord, "unwritable").status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                               ": the result: this word is not written"));
  EXPECT_EQ(PhaseOf(status), Phase::kEncode);
}

TEST(Failures, WithoutMemoryAResultIsNotWrittenForThatReason) {
  Ranks ranks(2);
  for (const char* worker : {"w1", "w0"}) {
    const auto kept = Remote(ranks[0].To(worker), MakeWord, "too long");
    ASSERT_THAT(kept, IsOk());
    for (const absl::Status& status :
         {Call(ranks[0].To(worker), MakeWord, "too long").status(),
          Fetch(*kept).status()}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                   ": the result: out of memory"));
      EXPECT_EQ(PhaseOf(status), Phase::kEncode);
    }
  }
}

TEST(Failures, AKeptResultThatCannotBeWrittenIsOfEncode) {
  Ranks ranks(2);
  for (const char* worker : {"w1", "w0"}) {
    const auto kept = Remote(ranks[0].To(worker), MakeWord, "unwritable");
    ASSERT_THAT(kept, IsOk());
    const absl::Status status = Fetch(*kept).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                                 "Fetch: the result: this word is not "
                                 "written"));
    EXPECT_EQ(PhaseOf(status), Phase::kEncode);
  }
}

TEST(Failures, AResultInABatchThatCannotBeWrittenIsOfEncode) {
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1");
  const auto bad = CallOneAsync(w1, MakeEach, "unwritable");
  const auto worse = CallOneAsync(w1, MakeEach, "unspeakable");
  const auto good = CallOneAsync(w1, MakeEach, "fine");
  const absl::Status status = bad.Wait(absl::Seconds(30)).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInternal,
                       "MakeEach: the result: this word is not written"));
  EXPECT_EQ(PhaseOf(status), Phase::kEncode);
  const absl::Status thrown = worse.Wait(absl::Seconds(30)).status();
  EXPECT_THAT(thrown, StatusIs(absl::StatusCode::kInternal,
                               "the result: exception: cannot write it"));
  EXPECT_EQ(PhaseOf(thrown), Phase::kEncode);
  EXPECT_THAT(good.Wait(absl::Seconds(30)), IsOkAndHolds(Says("fine")));
}

// Arguments that were encoded before are released: PROBE-P18.
TEST(Failures, ArgumentsThatCannotBeWrittenAreNotSent) {
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1");
  Tensor x = Tensor::Ones({1000});
  for (const char* word : {"unwritable", "unspeakable"}) {
    const bool is_refused = word == std::string("unwritable");
    const auto fails =
        is_refused ? StatusIs(absl::StatusCode::kOutOfRange, "not written")
                   : StatusIs(absl::StatusCode::kInternal, "cannot write it");
    EXPECT_THAT(Call(w1, Label, Borrow(x), Word{word}), fails);
    EXPECT_THAT(Remote(w1, Label, Borrow(x), Word{word}), fails);
  }
  for (const int rank : {0, 1}) {
    EXPECT_EQ(ranks[rank].Metrics().client_active_calls, 0);
    EXPECT_THAT(ranks[rank].Pending(), IsEmpty());
    EXPECT_THAT(ranks[rank].Leaks(), IsEmpty());
  }
  EXPECT_EQ(Call(w1, Label, Borrow(x), Word{"fine"}).value(), 1000);
  EXPECT_EQ(ranks[1].Metrics().peers.at("w0").served, 1);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks[rank].Shutdown(absl::Seconds(30)), IsOk());
  }
}

// Nor are they thrown at who calls: F27.
TEST(Failures, ExceptionOfAnArgumentCodecIsInTheFuture) {
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1");
  const Future<Word> call = CallAsync(w1, Echo, Word{"unspeakable"});
  ASSERT_TRUE(call.IsReady());
  EXPECT_THAT(call.Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kInternal, "cannot write it"));
  EXPECT_THAT(Remote(w1, Echo, Word{"unspeakable"}),
              StatusIs(absl::StatusCode::kInternal, "cannot write it"));
  EXPECT_THAT(Call(w1, Echo, Word{"fine"}), IsOkAndHolds(Says("fine")));
}

// How a call fails that is not begun, and of which worker and function it says
// that it is.
struct LocalError {
  const char* what;
  std::function<absl::Status(Ranks&)> call;
  const char* worker;
  const char* function;
};

Result<Word> EchoAt(const Target& target) {
  return Call(target, Echo, Word{"fine"});
}

class LocalErrors : public ::testing::TestWithParam<LocalError> {};

TEST_P(LocalErrors, AreFlagged) {
  Ranks ranks(2);
  const absl::Status status = GetParam().call(ranks);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(IsLocal(status)) << status.ToString();
  EXPECT_EQ(PhaseOf(status), Phase::kNone);
  EXPECT_FALSE(OutcomeUnknown(status));
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  const Failure failure = FailuresOf(status)[0];
  EXPECT_EQ(failure.worker, GetParam().worker);
  EXPECT_THAT(failure.function, ::testing::EndsWith(GetParam().function));
  EXPECT_EQ(failure.code, status.code());
  EXPECT_EQ(failure.message, status.message());
}

INSTANTIATE_TEST_SUITE_P(
    OfCalls, LocalErrors,
    ::testing::Values(
        LocalError{"AnUnknownName",
                   [](Ranks& r) { return EchoAt(r[0].To("w7")).status(); },
                   "w7", ""},
        LocalError{"AnUnknownKey",
                   [](Ranks& r) {
                     return EchoAt(r[0].To(WorkerKey{1, 9})).status();
                   },
                   "1@0.9", ""},
        LocalError{"WhatIsNoName",
                   [](Ranks& r) { return EchoAt(r[0].To("a b")).status(); },
                   "a b", ""},
        LocalError{"ANegativeTimeout",
                   [](Ranks& r) {
                     return EchoAt(r[0].To("w1", -absl::Seconds(1))).status();
                   },
                   "w1", ""},
        LocalError{"APolicyWithoutSense",
                   [](Ranks& r) {
                     RetryPolicy policy;
                     policy.max_attempts = 0;
                     return EchoAt(r[0].To("w1").WithRetry(policy)).status();
                   },
                   "w1", ""},
        LocalError{"AnUnregisteredFunction",
                   [](Ranks& r) {
                     return Call(r[0].To("w1"), NotRegistered).status();
                   },
                   "w1", ""},
        LocalError{
            "AnArgument",
            [](Ranks& r) {
              return Call(r[0].To("w1"), Echo, Word{"unwritable"}).status();
            },
            "w1", "Echo"},
        LocalError{
            "AnArgumentThatThrows",
            [](Ranks& r) {
              return Call(r[0].To("w1"), Echo, Word{"unspeakable"}).status();
            },
            "w1", "Echo"},
        LocalError{
            "AnArgumentOfWhatStaysThere",
            [](Ranks& r) {
              return Remote(r[0].To("w1"), Echo, Word{"unwritable"}).status();
            },
            "w1", "Echo"},
        LocalError{"AnUnregisteredFunctionWhoseResultStaysThere",
                   [](Ranks& r) {
                     return Remote(r[0].To("w1"), NotRegistered).status();
                   },
                   "w1", ""},
        LocalError{"AnObjectUnderRetry",
                   [](Ranks& r) {
                     return Remote(r[0].To("w1").WithRetry({}), Echo,
                                   Word{"fine"})
                         .status();
                   },
                   "w1", "Echo"},
        LocalError{"AStreamOnAnOrderedQueue",
                   [](Ranks& r) {
                     auto stream =
                         OpenStream(r[0].To("w1").Serialized(), Endless);
                     return stream.Next().status();
                   },
                   "w1", "Endless"},
        LocalError{"AWaitInAnInlineFunction",
                   [](Ranks& r) {
                     InlineScope scope;
                     return EchoAt(r[0].To("w1")).status();
                   },
                   "w1", ""},
        LocalError{"AnAgentThatHasShutDown",
                   [](Ranks& r) {
                     EXPECT_THAT(r[0].Shutdown(absl::Seconds(30)), IsOk());
                     return EchoAt(r[0].To("w1")).status();
                   },
                   "w1", ""}),
    [](const auto& info) { return info.param.what; });

TEST(Failures, AreNotLocalWhereTheCallWasBegun) {
  Ranks ranks(2);
  EXPECT_FALSE(IsLocal(absl::OkStatus()));
  EXPECT_FALSE(IsLocal(absl::NotFoundError("of no call")));
  EXPECT_FALSE(IsLocal(Call(ranks[0].To("w1"), Fail, "bad block")));
  const absl::Status below =
      Call(ranks[0].To("w1"), FailBelow, "w7", "bad block");
  EXPECT_FALSE(IsLocal(below));  // it is w1 that knows no w7
  ASSERT_THAT(FailuresOf(below), SizeIs(2));
  EXPECT_EQ(FailuresOf(below)[1].worker, "w7");
  EXPECT_EQ(FailuresOf(below)[1].phase, Phase::kNone);
  ranks[0].PeerGone(WorkerKey{1, 1}, "its process has ended");
  EXPECT_FALSE(IsLocal(EchoAt(ranks[0].To("w1")).status()));
}

// As the caller sees the call end whose result its own codec throws at.
void ExpectUnreadable(const absl::Status& status, const std::string& worker,
                      const std::string& function) {
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                               absl::StrCat(function,
                                            ": its result cannot be read: "
                                            "exception: cannot read it")));
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(FailuresOf(status)[0].worker, worker);
  EXPECT_THAT(FailuresOf(status)[0].function, HasSubstr(function));
  EXPECT_EQ(PhaseOf(status), Phase::kDecode);
  EXPECT_FALSE(OutcomeUnknown(status));
}

TEST(Failures, AResultThatCannotBeReadIsOfDecodeAndEndsNoOtherCall) {
  Ranks ranks(2);
  for (const char* worker : {"w1", "w0"}) {
    const Target target = ranks[0].To(worker);
    const Future<Word> call = CallAsync(target, MakeWord, "unreadable");
    const Future<Word> next = CallAsync(target, MakeWord, "fine");
    const absl::Status status = call.Wait(absl::Seconds(30)).status();
    ExpectUnreadable(status, worker, "MakeWord");
    EXPECT_EQ(status.message().find(absl::StrCat(worker, ": ")), 0u);
    EXPECT_THAT(next.Wait(absl::Seconds(30)), IsOkAndHolds(Says("fine")));
    EXPECT_THAT(Call(target, MakeWord, "fine"), IsOkAndHolds(Says("fine")));
  }
}

TEST(Failures, KeptValueThatCannotBeReadIsADecodeFailure) {
  Ranks ranks(2);
  const auto kept = Remote(ranks[0].To("w1"), MakeWord, "unreadable");
  ASSERT_THAT(kept, IsOk());
  for (int i = 0; i < 2; ++i) {
    ExpectUnreadable(Fetch(*kept).status(), "w1", "Fetch");
  }
  EXPECT_THAT(Release(*kept), IsOk());
}

TEST(Failures, AResultForWhichThereIsNoMemoryIsOfDecodeAndSaysSo) {
  Ranks ranks(2);
  const absl::Status status =
      Call(ranks[0].To("w1"), MakeWord, "endless").status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "MakeWord: its result cannot be read: out of memory"));
  EXPECT_EQ(PhaseOf(status), Phase::kDecode);
}

TEST(Failures, ADetailThatCannotTravelIsLeftOut) {
  const absl::Status status = absl::AbortedError("no");
  EXPECT_EQ(WithDetail(status, Word{"unspeakable"}), status);
  EXPECT_EQ(DetailOf<Word>(WithDetail(status, Word{"unreadable"})),
            std::nullopt);
  EXPECT_THAT(DetailOf<Word>(WithDetail(status, Word{"fine"})),
              Optional(Says("fine")));
}

TEST(Failures, AnUnknownFunctionIsOfTheQueue) {
  Registry empty;
  RanksOptions options;
  options.registries = {nullptr, &empty};
  Ranks ranks(2, options);
  const absl::Status status = Call(ranks[0].To("w1"), Fail, "x");
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(FailuresOf(status)[0].worker, "w1");
  EXPECT_EQ(PhaseOf(status), Phase::kQueue);
}

TEST(Failures, NestedOnesAreAChain) {
  Ranks ranks(3);
  const absl::Status status =
      Call(ranks[0].To("w1"), FailBelow, "w2", "bad block");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss));
  const std::vector<Failure> failures = FailuresOf(status);
  ASSERT_THAT(failures, SizeIs(2));
  EXPECT_EQ(status.message(),
            absl::StrCat("w1: ", failures[0].function,
                         ": w2: ", failures[1].function, ": bad block"));
  EXPECT_EQ(failures[0].worker, "w1");
  EXPECT_EQ(failures[0].phase, Phase::kHandler);
  EXPECT_EQ(failures[1].worker, "w2");
  EXPECT_EQ(failures[1].phase, Phase::kHandler);
  EXPECT_THAT(failures[1].function, HasSubstr("Fail"));
  EXPECT_EQ(failures[1].message, "bad block");
  EXPECT_EQ(status.GetPayload(kPayload), "kept");
}

TEST(Failures, ACauseIsKeptUnderAnErrorOfOnesOwn) {
  Ranks ranks(3);
  const absl::Status status = Call(ranks[0].To("w1"), Translate, "w0");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted,
                               "Translate: the step failed"));
  const std::vector<Failure> failures = FailuresOf(status);
  ASSERT_THAT(failures, SizeIs(3));
  EXPECT_EQ(failures[0].code, absl::StatusCode::kAborted);
  EXPECT_EQ(failures[1].worker, "w0");
  EXPECT_EQ(failures[2].worker, "w2");
  EXPECT_EQ(failures[2].code, absl::StatusCode::kDataLoss);
  EXPECT_THAT(WithCause(absl::OkStatus(), status), IsOk());
}

TEST(Failures, OfALongChainTheNearestAndTheLastAreKept) {
  Ranks ranks(2);
  const absl::Status status = Call(ranks[0].To("w1"), Recurse, 30);
  const std::vector<Failure> failures = FailuresOf(status);
  ASSERT_THAT(failures, SizeIs(kMaxFailures));
  EXPECT_EQ(failures.front().worker, "w1");
  EXPECT_EQ(failures.back().message, "the bottom");
  for (const Failure& failure : failures) {
    EXPECT_LE(failure.message.size(), kMaxFailureMessage);
  }
}

TEST(Failures, HostileDetailsAreReadAsNoneOrWithinBounds) {
  constexpr char kUrl[] = "type.googleapis.com/weft.rpc.v1.ErrorDetails";
  absl::Status status = absl::InternalError("x");
  EXPECT_THAT(FailuresOf(status), IsEmpty());
  EXPECT_THAT(FailuresOf(absl::OkStatus()), IsEmpty());
  status.SetPayload(kUrl, absl::Cord("\x0a\x05junk"));
  EXPECT_THAT(FailuresOf(status), IsEmpty());
  EXPECT_EQ(PhaseOf(status), Phase::kNone);
  // Phase 99, reason 98, code 97.
  status.SetPayload(kUrl, absl::Cord("\x0a\x06\x18\x63\x20\x62\x28\x61"));
  ASSERT_THAT(FailuresOf(status), SizeIs(1));
  EXPECT_EQ(PhaseOf(status), Phase::kNone);
  EXPECT_EQ(ReasonOf(status), Reason::kNone);
  EXPECT_EQ(FailuresOf(status)[0].code, absl::StatusCode::kUnknown);
}

// ------------------------------------------------------ what functions throw

TEST(Thrown, AnExceptionOfAnyShapeLeavesTheStatusWhole) {  // PROBE-P11
  Ranks ranks(2);
  const absl::Status odd = Call(ranks[0].To("w1"), ThrowOdd, 0);
  EXPECT_THAT(
      odd, StatusIs(absl::StatusCode::kInternal, "ThrowOdd: exception: odd 7"));
  ASSERT_THAT(FailuresOf(odd), SizeIs(1));
  EXPECT_EQ(FailuresOf(odd)[0].worker, "w1");
  const absl::Status number = Call(ranks[0].To("w1"), ThrowOdd, 1);
  EXPECT_THAT(number,
              StatusIs(absl::StatusCode::kInternal, "not from std::exception"));
  EXPECT_EQ(PhaseOf(number), Phase::kHandler);
}

TEST(Thrown, ARegisteredOneArrivesWithItsCodeAndDetail) {
  Ranks ranks(2);
  const absl::Status status = Call(ranks[0].To("w1"), ThrowOdd, 2);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kOutOfRange, "ThrowOdd: overdrawn"));
  const std::optional<Overdrawn> overdrawn = DetailOf<Overdrawn>(status);
  ASSERT_TRUE(overdrawn.has_value());
  EXPECT_EQ(overdrawn->account, 12);
  EXPECT_EQ(overdrawn->by, 0.5);
}

TEST(Thrown, TheErrorOfAFutureIsTheReply) {
  Parked parked;
  Ranks ranks(2);
  ranks[1].SetLocal(&parked);
  Future<int64_t> call = CallAsync(ranks[0].To("w1"), Park);
  ASSERT_TRUE(IsWoken(parked.began));
  {
    MutexLock lock(parked.mu);
    parked.promises[0].Set(
        WithDetail(absl::AbortedError("late"), Overdrawn{1, 2}));
  }
  const absl::Status status = call.Wait(absl::Seconds(10)).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, "Park: late"));
  EXPECT_EQ(PhaseOf(status), Phase::kHandler);
  EXPECT_THAT(DetailOf<Overdrawn>(status),
              Optional(Field(&Overdrawn::account, 1)));
}

}  // namespace
}  // namespace weft::rpc
