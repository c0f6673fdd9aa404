#include "weft/rpc/handle.h"

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/failpoint.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/handle_test_objects.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

struct Empty {};
WEFT_RPC_CLASS(Empty);

struct Units {
  static int64_t Meters(int64_t kilometers) { return 1000 * kilometers; }
};
WEFT_RPC(Units::Meters);

// ------------------------------------------------------------- what compiles

template <typename... A>
using CallOf = decltype(CallAsync(std::declval<A>()...));
template <typename Void, typename... A>
struct Compiles : std::false_type {};
template <typename... A>
struct Compiles<std::void_t<CallOf<A...>>, A...> : std::true_type {};
template <typename... A>
constexpr bool kCompiles = Compiles<void, A...>::value;

struct NoCodec {};

// With too few arguments: tests/misuse.
TEST(Calls, WrongArgumentsDoNotCompile) {
  using Lookup = decltype(&Embedding::Lookup);
  EXPECT_TRUE((kCompiles<Handle<Embedding>, Lookup, int>));
  EXPECT_FALSE((kCompiles<Handle<Embedding>, Lookup, std::string>));
  EXPECT_FALSE((kCompiles<Handle<Embedding>, Lookup, int, int>));
  EXPECT_TRUE((kCompiles<Target, decltype(&Twice), Tensor>));
  EXPECT_TRUE((kCompiles<Target, decltype(&Twice), Borrowed>));
  EXPECT_FALSE((kCompiles<Target, decltype(&Twice), double>));
  EXPECT_FALSE((kCompiles<Target, decltype(&Soon), std::string>));
  EXPECT_FALSE((kCompiles<Target, decltype(&Soon), Future<int64_t>>));
  EXPECT_FALSE((kCompiles<Target, int, int64_t>));  // is no function
}

TEST(Calls, NoneCanBeWrittenWithoutAnAgent) {
  EXPECT_FALSE(std::is_default_constructible_v<Target>);
  EXPECT_FALSE(std::is_default_constructible_v<Handle<Embedding>>);
}

TEST(Calls, TypeWithoutACodecDoesNotCompile) {
  EXPECT_TRUE(internal::kHasCodec<std::vector<Tensor>>);
  EXPECT_FALSE(internal::kHasCodec<NoCodec>);
  EXPECT_FALSE(internal::kHasCodec<Future<int64_t>>);
  EXPECT_FALSE(internal::kHasCodec<Handle<Embedding>>);
  EXPECT_FALSE(internal::kHasCodec<Writer<int64_t>>);
  EXPECT_FALSE(internal::kHasCodec<const char*>);
}

// ------------------------------------------------------------------- objects

TEST(Handle, AnObjectIsMadeUsedAndReleasedAtADistance) {
  Ranks ranks(2);
  const Target b = ranks[0].To("w1");
  const auto shard = Make<Embedding>(b, 4, 2);
  ASSERT_THAT(shard, IsOk());
  EXPECT_EQ(Living(), 1);
  EXPECT_THAT(Call(*shard, &Embedding::Set, 1, 2.5), IsOk());
  EXPECT_THAT(Call(*shard, &Embedding::Lookup, 1)->ToVector<float>(),
              ElementsAre(2.5, 2.5));
  EXPECT_EQ(*Call(*shard, &Embedding::CallerName, "hello "), "hello w0");
  EXPECT_EQ(*Call(*shard, &Embedding::Kind), "embedding");  // virtual
  EXPECT_EQ(*Call(*shard, &Embedding::rows), 4);            // inherited
  EXPECT_THAT(Release(*shard), IsOk());
  EXPECT_TRUE(Objects().WaitForNone());
}

TEST(Handle, AStaticMemberIsAFunctionAsAny) {  // F36
  Ranks ranks(2);
  EXPECT_THAT(Call(ranks[0].To("w1"), Units::Meters, 7), IsOkAndHolds(7000));
}

// Which incarnation has it must be known: F28, F54.
TEST(Handle, MakeRefusesATargetWithRetry) {
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1").WithRetry(RetryPolicy());
  const auto is_refused =
      StatusIs(absl::StatusCode::kInvalidArgument,
               "calls to w1 may go to another incarnation, as WithRetry() lets "
               "them; objects and streams need a target without it");
  EXPECT_THAT(Make<Embedding>(w1, 1, 1), is_refused);
  EXPECT_THAT(Remote(w1, Soon, 1), is_refused);
  EXPECT_EQ(Living(), 0);
  EXPECT_THAT(Call(w1, Soon, 1), IsOkAndHolds(1));
  EXPECT_EQ(ranks[1].Metrics().peers.at("w0").served, 1);
}

TEST(Handle, CallThatMayNotBeWaitedForIsNotSent) {  // F26
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1");
  const auto shard = Make<Embedding>(w1, 4, 1);
  const auto kept = Remote(w1, Soon, 7);
  ASSERT_THAT(shard, IsOk());
  ASSERT_THAT(kept, IsOk());
  {
    const InlineScope scope;
    const auto is_refused =
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 "a call to w1 would wait in a function that runs inline");
    EXPECT_THAT(Call(*shard, &Embedding::rows), is_refused);
    EXPECT_THAT(Make<Embedding>(w1, 1, 1), is_refused);
    EXPECT_THAT(Remote(w1, Soon, 1), is_refused);
    EXPECT_THAT(Fetch(*kept), is_refused);
    EXPECT_THAT(Release(*kept), is_refused);
    EXPECT_THAT(Release(*shard), is_refused);
  }
  EXPECT_THAT(Call(*shard, &Embedding::rows), IsOkAndHolds(4));
  EXPECT_THAT(Fetch(*kept), IsOkAndHolds(7));
  EXPECT_EQ(ranks[1].Metrics().peers.at("w0").served, 4);
  EXPECT_EQ(ranks[0].Leaks().size(), 2u);  // still to be released
}

TEST(Handle, EachObjectIsItsOwn) {
  Ranks ranks(2);
  const Target b = ranks[0].To("w1");
  const auto one = Make<Embedding>(b, 1, 1);
  const auto two = Make<Embedding>(b, 1, 1);
  ASSERT_NE(one->id(), two->id());
  EXPECT_THAT(Call(*one, &Embedding::Set, 0, 1.0), IsOk());
  EXPECT_EQ(Call(*one, &Embedding::Lookup, 0)->item<float>(), 1);
  EXPECT_EQ(Call(*two, &Embedding::Lookup, 0)->item<float>(), 0);
}

TEST(Handle, ErrorsOfMakingAndOfMethodsAreTheCallers) {
  Ranks ranks(2);
  const Target b = ranks[0].To("w1");
  EXPECT_THAT(Make<Embedding>(b, 0, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "Embedding::new: an Embedding without rows"));
  EXPECT_THAT(Make<Embedding>(ranks[0].To("w9"), 1, 2),
              StatusIs(absl::StatusCode::kNotFound, "w9"));
  const auto shard = Make<Embedding>(b, 1, 1);
  EXPECT_THAT(Call(*shard, &Embedding::Refuse, "no"),
              StatusIs(absl::StatusCode::kOutOfRange, "Refuse: no"));
  EXPECT_THAT(
      Call(*shard, &Embedding::Unregistered),
      StatusIs(absl::StatusCode::kFailedPrecondition, "WEFT_RPC_METHOD"));
}

TEST(Handle, ItsTimeoutIsThatOfMethodsCalledByItAlone) {  // F52
  Ranks ranks(2);
  const auto shard =
      Make<Embedding>(ranks[0].To("w1", absl::Seconds(500)), 1, 1);
  ASSERT_THAT(shard, IsOk());
  const auto longer = shard->WithTimeout(absl::Hours(2));
  EXPECT_GT(*Call(longer, &Embedding::SecondsLeft), 3600);
  EXPECT_LE(*Call(*shard, &Embedding::SecondsLeft), 500);
  EXPECT_GT(*Call(*shard, &Embedding::SecondsLeft), 60);
  // A time-out of Wait alone has no such word, here and elsewhere.
  EXPECT_THAT(
      CallAsync(shard->WithTimeout(absl::Milliseconds(200)), &Embedding::Later)
          .Wait(kPatience),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
}

TEST(Handle, AReleasedObjectIsNotFound) {
  Ranks ranks(2);
  const auto shard = Make<Embedding>(ranks[0].To("w1"), 1, 1);
  ASSERT_THAT(Release(*shard), IsOk());
  EXPECT_THAT(Call(*shard, &Embedding::Lookup, 0),
              StatusIs(absl::StatusCode::kNotFound, "there is no object"));
  EXPECT_THAT(Release(*shard), StatusIs(absl::StatusCode::kNotFound, ""));
  const Handle<Embedding> never(
      ranks[0].To("w1"), ObjectId{WorkerKey{1, 1}, WorkerKey{0, 1}, 12345});
  EXPECT_THAT(Call(never, &Embedding::Lookup, 0),
              StatusIs(absl::StatusCode::kNotFound, "12345"));
}

TEST(Handle, AnObjectOfAnotherTypeIsRefused) {
  Ranks ranks(2);
  const auto empty = Make<Empty>(ranks[0].To("w1"));
  ASSERT_THAT(empty, IsOk());
  const Handle<Embedding> wrong(empty->target(), empty->id());
  EXPECT_THAT(Call(wrong, &Embedding::Lookup, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, "another type"));
}

TEST(Handle, AnotherWorkerDoesNotReachIt) {
  Ranks ranks(3);
  const auto shard = Make<Embedding>(ranks[0].To("w2"), 1, 1);
  const Handle<Embedding> guess(ranks[1].To("w2"), shard->id());
  EXPECT_THAT(Call(guess, &Embedding::Lookup, 0),
              StatusIs(absl::StatusCode::kNotFound, ""));
}

TEST(Handle, ACallInProgressKeepsTheObject) {
  Ranks ranks(2);
  const auto shard = Make<Embedding>(ranks[0].To("w1"), 1, 1);
  const auto is_parked = [&] {
    return ranks[1].Metrics().server_active_async_calls == 1;
  };
  const Future<int64_t> later = CallAsync(*shard, &Embedding::Later);
  EXPECT_TRUE(Becomes(is_parked));
  ASSERT_THAT(Call(*shard, &Embedding::Answer, 7), IsOk());
  EXPECT_THAT(later.Wait(kPatience), IsOkAndHolds(7));
  const Future<int64_t> open = CallAsync(*shard, &Embedding::Later);
  EXPECT_TRUE(Becomes(is_parked));
  ASSERT_THAT(Release(*shard), IsOk());
  EXPECT_EQ(Living(), 1);
  open.Cancel();
  EXPECT_TRUE(Objects().WaitForNone());
  EXPECT_THAT(ranks[1].Shutdown(kPatience), IsOk());
}

TEST(Handle, ObjectsEndWithTheirMaker) {
  Ranks ranks(2);
  const auto shard = Make<Embedding>(ranks[0].To("w1"), 1, 1);
  ASSERT_EQ(Living(), 1);
  ranks[1].PeerGone(WorkerKey{0, 1}, "its process has ended");
  EXPECT_EQ(Living(), 0);
}

TEST(Handle, ObjectsEndWithTheirKeeper) {
  {
    Ranks ranks(2);
    ASSERT_THAT(Make<Embedding>(ranks[0].To("w1"), 1, 1), IsOk());
    ASSERT_THAT(Make<Embedding>(ranks[0].To("w0"), 1, 1), IsOk());  // itself
    ASSERT_EQ(Living(), 2);
  }
  EXPECT_EQ(Living(), 0);
}

// ------------------------------------------------------------- what is left

TEST(Handle, ObjectCancelledWhileItIsMadeIsReleased) {
  Gate gate;
  Ranks ranks(2);
  Future<Handle<Gated>> made = MakeAsync<Gated>(ranks[0].To("w1"), 1);
  EXPECT_TRUE(IsWoken(gate.began));
  made.Cancel();
  gate.Open();
  EXPECT_THAT(made.Wait(absl::Seconds(10)),
              StatusIs(absl::StatusCode::kCancelled, ""));
  EXPECT_TRUE(Objects().WaitForNone());
}

TEST(Handle, ObjectCancelledAsItsReplyArrivesIsReleased) {  // F51
  Gate gate;
  Ranks ranks(3);
  const Target w1 = ranks[0].To("w1");
  const Future<Handle<Gated>> other = MakeAsync<Gated>(w1, 1);
  EXPECT_TRUE(IsWoken(gate.began));
  // After this w0 is done with all that has come, so that the callback below
  // runs in this thread, while what comes is taken in by another.
  EXPECT_THAT(Call(ranks[0].To("w2"), Soon, 1), IsOk());
  std::optional<Future<Handle<Embedding>>> made;
  other.OnReady([&](const absl::StatusOr<Handle<Gated>>&) {
    gate.Open();
    made = MakeAsync<Embedding>(w1, 1, 1);
    EXPECT_TRUE(Becomes([&] { return ranks[0].OpenCalls().empty(); }));
    EXPECT_FALSE(made->IsReady());  // no callback runs during this one
    made->Cancel();
  });
  other.Cancel();
  ASSERT_TRUE(made.has_value());
  EXPECT_THAT(made->Wait(absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kCancelled, "w1"));
  EXPECT_TRUE(Objects().WaitForNone());
  EXPECT_THAT(LeftAt(ranks[0]), IsEmpty());
}

// F51: the release comes before the making looks whether it is given up.
TEST(Handle, ObjectCancelledWhileItIsKeptIsReleased) {
  Ranks ranks(2);
  const ScopedFailpoint kept("rpc/keep", "block");
  const Target w1 = ranks[0].To("w1");
  Future<Handle<Embedding>> made = MakeAsync<Embedding>(w1, 1, 1);
  EXPECT_TRUE(Becomes([&] { return kept.hits() == 1; }));
  made.Cancel();
  EXPECT_THAT(made.Wait(absl::Seconds(10)),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(Objects().WaitForNone());
  DisarmFailpoint("rpc/keep");
  EXPECT_THAT(ranks[1].AwaitIdle(absl::Seconds(30)), IsOk());
  EXPECT_THAT(LeftAt(ranks[1]), IsEmpty());
}

// The deadline may pass before the maker begins, in this and in the next.
TEST(Handle, ObjectPastItsDeadlineIsReleased) {  // F51
  Gate gate;
  Ranks ranks(2);
  const Target w1 = ranks[0].To("w1");
  ASSERT_THAT(Call(w1, Soon, 1), IsOk());  // so that the next is sent at once
  const Target brief = w1.WithTimeout(absl::Milliseconds(200));
  const Future<Handle<Gated>> made = MakeAsync<Gated>(brief, 1);
  for (int i = 0; i < 2; ++i) {  // each time the same
    const absl::Status late = made.Wait(kPatience).status();
    EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, "Gated"));
    EXPECT_EQ(OutcomeUnknown(late), PhaseOf(late) == Phase::kHandler);
  }
  gate.Open();
  EXPECT_THAT(ranks[0].AwaitIdle(kPatience), IsOk());
  EXPECT_THAT(ranks[1].AwaitIdle(kPatience), IsOk());
  EXPECT_TRUE(Objects().WaitForNone());
  EXPECT_THAT(LeftAt(ranks[1]), IsEmpty());
}

TEST(Handle, ObjectMadeLateByASelfCallIsReleased) {  // PROBE-P19
  Gate gate;
  Ranks ranks(1);
  const Target brief = ranks[0].To("w0", absl::Milliseconds(200));
  const Future<Handle<Gated>> made = MakeAsync<Gated>(brief, 1);
  EXPECT_THAT(made.Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline"));
  gate.Open();
  EXPECT_THAT(ranks[0].AwaitIdle(kPatience), IsOk());
  EXPECT_TRUE(Objects().WaitForNone());
}

TEST(Handle, AMakerMayKeepSoManyObjects) {
  RanksOptions options;
  options.limits.objects = 2;
  Ranks ranks(2, options);
  const Target b = ranks[0].To("w1");
  const auto first = Make<Embedding>(b, 1, 1);
  ASSERT_THAT(Make<Embedding>(b, 1, 1), IsOk());
  EXPECT_THAT(Make<Embedding>(b, 1, 1),
              StatusIs(absl::StatusCode::kResourceExhausted, "2 objects"));
  EXPECT_THAT(Make<Embedding>(b, 1, 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "--limits=rpc_objects=VALUE"));
  ASSERT_THAT(Release(*first), IsOk());
  EXPECT_THAT(Make<Embedding>(b, 1, 1), IsOk());
}

// As `weft status` in a watch comes, with a new key each time.
TEST(Handle, StrangersThatComeAndGoEndNoSessionOfAWorker) {
  telemetry::Telemetry::Options silently;
  silently.log_level = telemetry::Level::kOff;
  telemetry::Telemetry telemetry(silently);
  RanksOptions options;
  options.limits.sessions = 20;
  options.telemetry = &telemetry;
  Ranks ranks(2, options);
  const auto kept = Make<Embedding>(ranks[0].To("w1"), 1, 1);
  ASSERT_THAT(kept, IsOk());
  ranks.network().Break("w0");
  const WorkerKey w1{1, 1};
  constexpr uint64_t kStrangers = 100;
  for (uint64_t generation = 1; generation <= kStrangers; ++generation) {
    const auto transport = ranks.network().MakeTransport("client").value();
    const WorkerKey key{1000, generation};
    FixedDirectory directory({Worker{"w1", w1, "w1"}});
    AgentOptions client;
    client.job = "job";
    client.name = "client0";
    client.key = key;
    client.transport = transport.get();
    client.directory = &directory;
    const auto agent = Agent::Create(client);
    ASSERT_THAT(agent, IsOk());
    ASSERT_THAT(Make<Embedding>((*agent)->To("w1"), 1, 1), IsOk());
  }
  const auto forgotten = [&] {
    const std::string dump = telemetry.recorder().DumpText();
    uint64_t count = 0;
    for (size_t at = dump.find("rpc.forgets"); at != dump.npos;
         at = dump.find("rpc.forgets", at + 1)) {
      ++count;
    }
    return count;
  };
  // All but the last few, although there is room for more: once it knows of
  // their ends.
  EXPECT_TRUE(Becomes([&] { return forgotten() >= kStrangers - 20; }));
  EXPECT_THAT(Call(*kept, &Embedding::Kind), IsOkAndHolds("embedding"));
}

TEST(Handle, ABrokenConnectionNeitherLosesNorRepeatsAMaking) {
  Ranks ranks(2);
  std::vector<Future<Handle<Embedding>>> makings;
  for (int i = 0; i < 50; ++i) {
    makings.push_back(MakeAsync<Embedding>(ranks[0].To("w1"), 1, 1));
    if (i % 10 == 5) ranks.network().Break("w1");
  }
  for (const auto& making : makings) {
    ASSERT_THAT(making.Wait(absl::Seconds(30)), IsOk());
  }
  EXPECT_EQ(Living(), 50);
}

}  // namespace
}  // namespace weft::rpc
