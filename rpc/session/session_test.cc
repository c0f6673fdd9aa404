// CallerSession by example: what a caller keeps of its callee.

#include "weft/rpc/session/session.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/session/example_request.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::StatusIs;

class Caller {
 public:
  std::vector<CallerSession::Action> Tell(CallerSession::Event event) {
    std::vector<CallerSession::Action> actions;
    session.OnEvent(event, now, &actions);
    return actions;
  }
  CallerSession session{"ps0"};
  Instant now;
};

template <typename T>
std::vector<T> Only(const std::vector<CallerSession::Action>& actions) {
  std::vector<T> found;
  for (const auto& action : actions) {
    if (const T* match = std::get_if<T>(&action)) found.push_back(*match);
  }
  return found;
}

TEST(CallerSession, WaitsForCreditAndSendsInOrder) {
  Caller caller;
  Limits limits;
  limits.calls = 1;
  caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
  auto sent = Only<CallerSession::SendRequest>(
      caller.Tell(CallerSession::Start{MakeRequest()}));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(Only<CallerSession::SendRequest>(
                  caller.Tell(CallerSession::Start{MakeRequest()}))
                  .empty());
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  sent = Only<CallerSession::SendRequest>(
      caller.Tell(CallerSession::Arrived{reply}));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].request->id, 2u);
}

std::vector<uint64_t> IdsSent(
    const std::vector<CallerSession::Action>& actions) {
  std::vector<uint64_t> ids;
  for (const auto& sent : Only<CallerSession::SendRequest>(actions)) {
    ids.push_back(sent.request->id);
  }
  return ids;
}

CallerSession::Arrived ReplyTo(uint64_t id) {
  auto reply = std::make_shared<Reply>();
  reply->id = id;
  return CallerSession::Arrived{std::move(reply)};
}

// May have 5000 bytes out.
struct BriefCaller : Caller {
  BriefCaller() {
    Limits limits;
    limits.bytes = 5000;
    Tell(CallerSession::Connected{limits, std::nullopt, ""});
  }
  std::vector<uint64_t> Start(size_t bytes) {
    return IdsSent(Tell(CallerSession::Start{MakeRequest(/*depth=*/0, bytes)}));
  }
};

TEST(CallerSession, SomeCreditIsKeptForCallsThatAreNotStreams) {
  Caller caller;
  Limits limits;
  limits.calls = 16;
  ASSERT_EQ(limits.most_streams(), 14);
  caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
  const auto start = [&caller](bool is_stream) {
    const auto request = MakeRequest();
    request->is_stream = is_stream;
    return IdsSent(caller.Tell(CallerSession::Start{request}));
  };
  for (uint64_t id = 1; id <= 14; ++id) {
    EXPECT_THAT(start(/*is_stream=*/true), ElementsAre(id));
  }
  EXPECT_THAT(start(/*is_stream=*/true), IsEmpty());  // 15
  EXPECT_THAT(start(/*is_stream=*/true), IsEmpty());  // 16
  EXPECT_THAT(start(/*is_stream=*/false), ElementsAre(17));
  EXPECT_THAT(start(/*is_stream=*/false), ElementsAre(18));
  EXPECT_THAT(start(/*is_stream=*/false), IsEmpty());  // 19: all are out
  EXPECT_EQ(caller.session.credit().first_waiting, 15u);
  EXPECT_EQ(caller.session.CountWaiting(), 3);
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(17))), ElementsAre(19));
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(18))), IsEmpty());
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(1))), ElementsAre(15));
  // Where a stream may be sent again, calls keep their order.
  EXPECT_THAT(start(/*is_stream=*/false), ElementsAre(20));
  EXPECT_THAT(start(/*is_stream=*/false), IsEmpty());  // 21
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(2))), ElementsAre(16));
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(3))), ElementsAre(21));
}

TEST(CallerSession, WaitsForCreditOfBytes) {
  BriefCaller caller;
  EXPECT_THAT(caller.Start(2000), ElementsAre(1));
  EXPECT_THAT(caller.Start(2000), ElementsAre(2));
  EXPECT_THAT(caller.Start(2000), IsEmpty());
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(1))), ElementsAre(3));
}

TEST(CallerSession, ASmallCallDoesNotOvertakeALargeOneThatWaitsForCredit) {
  BriefCaller caller;
  EXPECT_THAT(caller.Start(2000), ElementsAre(1));
  EXPECT_THAT(caller.Start(2000), ElementsAre(2));
  EXPECT_THAT(caller.Start(4000), IsEmpty());
  EXPECT_THAT(caller.Start(0), IsEmpty());  // for which there is room
  EXPECT_THAT(caller.Start(2000), IsEmpty());
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(1))), IsEmpty());
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(2))), ElementsAre(3, 4));
  EXPECT_THAT(IdsSent(caller.Tell(ReplyTo(3))), ElementsAre(5));
}

TEST(CallerSession,
     CallsSentInAForgottenGenerationEndAndUnsentOnesGoInTheNext) {
  Caller caller;
  Limits limits;
  limits.calls = 1;
  caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
  caller.Tell(CallerSession::Start{MakeRequest()});
  caller.Tell(CallerSession::Start{MakeRequest()});
  caller.Tell(CallerSession::Disconnected{});
  const auto ended =
      Only<CallerSession::Complete>(caller.Tell(CallerSession::Forgotten{}));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].id, 1u);
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(ended[0].status), Reason::kForgotten);
  EXPECT_TRUE(OutcomeUnknown(ended[0].status));
  EXPECT_EQ(caller.session.generation(), 2u);
  EXPECT_FALSE(caller.session.resumes());
  EXPECT_THAT(
      IdsSent(caller.Tell(CallerSession::Connected{limits, std::nullopt, ""})),
      ElementsAre(2));
}

TEST(CallerSession, EachConnectionIsOfAnotherLifeUntilOneIsWelcomed) {
  Caller caller;
  EXPECT_EQ(caller.session.generation(), 1u);
  caller.Tell(CallerSession::Disconnected{});
  EXPECT_EQ(caller.session.generation(), 2u);
  caller.Tell(CallerSession::Unreachable{absl::UnavailableError("for long")});
  EXPECT_EQ(caller.session.generation(), 3u);
  caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""});
  caller.Tell(CallerSession::Disconnected{});
  EXPECT_EQ(caller.session.generation(), 3u);
  EXPECT_TRUE(caller.session.resumes());
}

TEST(CallerSession, AcksTravelBeforeTheRequestTheyMakeRoomFor) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""});
  caller.Tell(CallerSession::Start{MakeRequest()});
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  caller.Tell(CallerSession::Arrived{reply});
  const auto actions = caller.Tell(CallerSession::Start{MakeRequest()});
  ASSERT_EQ(actions.size(), 2u);
  const auto* ack = std::get_if<CallerSession::SendAck>(&actions[0]);
  ASSERT_NE(ack, nullptr);
  EXPECT_THAT(ack->ack.ids, ElementsAre(Interval{1, 1}));
  EXPECT_NE(std::get_if<CallerSession::SendRequest>(&actions[1]), nullptr);
}

TEST(CallerSession, NestedCallsNeedNoCreditButHaveALimitOfTheirOwn) {
  Caller caller;
  Limits limits;
  limits.calls = 0;
  limits.nested_calls = 1;
  caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
  EXPECT_EQ(Only<CallerSession::SendRequest>(
                caller.Tell(CallerSession::Start{MakeRequest(/*depth=*/1)}))
                .size(),
            1u);
  const auto ended = Only<CallerSession::Complete>(
      caller.Tell(CallerSession::Start{MakeRequest(/*depth=*/1)}));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].status,
              StatusIs(absl::StatusCode::kResourceExhausted, "a > b"));
  EXPECT_THAT(ended[0].status, StatusIs(absl::StatusCode::kResourceExhausted,
                                        "--limits=rpc_nested_calls=VALUE"));
}

TEST(CallerSession, NestedCallsHaveALimitOfBytesOfTheirOwn) {
  Caller caller;
  Limits limits;
  limits.bytes = 2000;
  caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
  EXPECT_EQ(Only<CallerSession::SendRequest>(
                caller.Tell(CallerSession::Start{MakeRequest(1, 1000)}))
                .size(),
            1u);
  const auto ended = Only<CallerSession::Complete>(
      caller.Tell(CallerSession::Start{MakeRequest(1, 1000)}));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].status, StatusIs(absl::StatusCode::kResourceExhausted,
                                        "--limits=rpc_bytes=VALUE"));
  EXPECT_FALSE(OutcomeUnknown(ended[0].status));
}

TEST(CallerSession, RefusesACallThatCanNeverBeAdmitted) {
  Caller caller;
  Limits limits;
  limits.bytes = 1000;
  caller.Tell(CallerSession::Start{MakeRequest(0, 2000)});
  const auto ended = Only<CallerSession::Complete>(
      caller.Tell(CallerSession::Connected{limits, std::nullopt, ""}));
  // Depth 0 waits in the queue, so it is looked at when credit comes.
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].status, StatusIs(absl::StatusCode::kResourceExhausted,
                                        "--limits=rpc_bytes=VALUE"));
  EXPECT_FALSE(OutcomeUnknown(ended[0].status));
}

TEST(CallerSession, WhereMoreIsAdmittedALargerCallIsSent) {  // F40
  for (const bool is_raised : {false, true}) {
    auto request = MakeRequest();
    const Bytes block = Bytes::Own(std::string(1 << 20, 'x'));
    for (int i = 0; i < 5000; ++i) request->body.push_back(block);
    Caller caller;
    Limits limits;
    if (is_raised) limits.bytes = int64_t{8} << 30;
    caller.Tell(CallerSession::Start{request});
    const auto actions =
        caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
    EXPECT_EQ(Only<CallerSession::SendRequest>(actions).size(), is_raised);
    EXPECT_EQ(Only<CallerSession::Complete>(actions).size(), !is_raised);
  }
}

TEST(CallerSession, ACallThatIsNotToWaitFailsWithoutCredit) {
  Caller caller;
  Limits limits;
  limits.calls = 1;
  const auto start = [&] {
    auto request = MakeRequest();
    request->waits_for_credit = false;
    return Only<CallerSession::Complete>(
        caller.Tell(CallerSession::Start{request}));
  };
  EXPECT_TRUE(start().empty());  // nobody knows the limits yet
  EXPECT_TRUE(start().empty());
  const auto ended = Only<CallerSession::Complete>(
      caller.Tell(CallerSession::Connected{limits, std::nullopt, ""}));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].id, 2u);
  const auto third = start();
  ASSERT_EQ(third.size(), 1u);
  EXPECT_THAT(third[0].status, StatusIs(absl::StatusCode::kResourceExhausted,
                                        "--limits=rpc_calls=VALUE"));
  EXPECT_FALSE(OutcomeUnknown(third[0].status));
}

TEST(CallerSession, FunctionUnknownToTheCalleeIsNeverSent) {
  Caller caller;
  FunctionTable functions;
  functions["F"] = {"i64(f64)", 1};
  auto unknown = MakeRequest();
  unknown->function = "G";
  caller.Tell(CallerSession::Start{MakeRequest()});
  caller.Tell(CallerSession::Start{unknown});
  const auto actions =
      caller.Tell(CallerSession::Connected{Limits(), functions, "b7"});
  EXPECT_TRUE(Only<CallerSession::SendRequest>(actions).empty());
  const auto ended = Only<CallerSession::Complete>(actions);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].reply->refusal, Refusal::kSignatureDiffers);
  EXPECT_EQ(ended[1].reply->refusal, Refusal::kUnknownFunction);
  EXPECT_EQ(ended[1].status.message(),
            "ps0 (build b7) has no function G for this caller");
}

TEST(CallerSession, BorrowedElementsThatChangedAreNotSent) {
  Caller caller;
  Limits limits;
  limits.calls = 1;
  Tensor x = Tensor::Zeros({4});
  Tensor y = Tensor::Zeros({4});
  auto request = MakeRequest();
  request->borrowed.push_back(Payload::Borrow(x));
  auto waiting = MakeRequest();
  waiting->borrowed.push_back(Payload::Borrow(y));
  caller.Tell(CallerSession::Start{request});
  caller.Tell(CallerSession::Start{waiting});
  EXPECT_EQ(Only<CallerSession::SendRequest>(
                caller.Tell(CallerSession::Connected{limits, std::nullopt, ""}))
                .size(),
            1u);
  x.Fill(1);
  y.Fill(1);
  caller.Tell(CallerSession::Event(CallerSession::Disconnected{}));
  const auto actions =
      caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
  EXPECT_TRUE(Only<CallerSession::SendRequest>(actions).empty());
  const auto ended = Only<CallerSession::Complete>(actions);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(OutcomeUnknown(ended[0].status));  // its first copy was out
  EXPECT_EQ(ended[1].status.code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(OutcomeUnknown(ended[1].status));
}

TEST(CallerSession, ACallThatIsNotToWaitFailsWithoutCreditOfBytes) {
  Caller caller;
  Limits limits;
  limits.bytes = 2000;
  caller.Tell(CallerSession::Connected{limits, std::nullopt, ""});
  caller.Tell(CallerSession::Start{MakeRequest(0, 1000)});
  auto request = MakeRequest(0, 1000);  // and what it says of itself
  request->waits_for_credit = false;
  const auto ended =
      Only<CallerSession::Complete>(caller.Tell(CallerSession::Start{request}));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].status, StatusIs(absl::StatusCode::kResourceExhausted,
                                        "--limits=rpc_bytes=VALUE"));
  EXPECT_FALSE(OutcomeUnknown(ended[0].status));
}

void ExpectExpired(const CallerSession::Complete& ended, Phase phase,
                   bool may_have_run, const char* said) {
  EXPECT_THAT(ended.status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       absl::StrCat("passed in phase ", NameOf(phase),
                                    ": the call to ps0 ", said)));
  EXPECT_EQ(PhaseOf(ended.status), phase);
  EXPECT_EQ(OutcomeUnknown(ended.status), may_have_run);
}

// The deadline passes once all of `events` have happened.
std::vector<CallerSession::Complete> EndedByTheDeadline(
    const std::vector<CallerSession::Event>& events) {
  Caller caller;
  for (const CallerSession::Event& event : events) caller.Tell(event);
  caller.now = Instant() + absl::Seconds(61);
  return Only<CallerSession::Complete>(
      caller.Tell(CallerSession::Event(CallerSession::Tick{})));
}

TEST(CallerSession, SaysInWhichPhaseTheDeadlinePassed) {
  Limits one;
  one.calls = 1;
  const CallerSession::Event connected =
      CallerSession::Connected{one, std::nullopt, ""};
  const auto start = [] {
    return CallerSession::Event(CallerSession::Start{MakeRequest()});
  };
  auto ended = EndedByTheDeadline({start()});
  ASSERT_EQ(ended.size(), 1u);
  ExpectExpired(ended[0], Phase::kQueue, false, "waited for a connection");

  ended = EndedByTheDeadline({connected, start(), start()});
  ASSERT_EQ(ended.size(), 2u);
  ExpectExpired(ended[0], Phase::kHandler, true, "was out, unanswered");
  ExpectExpired(ended[1], Phase::kQueue, false, "waited for credit");

  ended =
      EndedByTheDeadline({connected, start(), CallerSession::Disconnected{}});
  ASSERT_EQ(ended.size(), 1u);
  ExpectExpired(ended[0], Phase::kWire, true, "was out, the connection lost");
}

TEST(CallerSession, IdleAcknowledgesOnceAndSleeps) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""});
  caller.Tell(CallerSession::Start{MakeRequest()});
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  const auto wakes =
      Only<CallerSession::WakeAt>(caller.Tell(CallerSession::Arrived{reply}));
  ASSERT_EQ(wakes.size(), 1u);
  caller.now = wakes[0].when;
  const auto actions = caller.Tell(CallerSession::Event(CallerSession::Tick{}));
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_NE(std::get_if<CallerSession::SendAck>(&actions[0]), nullptr);
}

TEST(CallerSession, AWelcomeAfterThePeerHasGoneChangesNothing) {
  Caller caller;
  caller.Tell(CallerSession::PeerGone{absl::UnavailableError("its end")});
  caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""});
  EXPECT_FALSE(caller.session.is_connected());
}

TEST(CallerSession, AReplyAfterTheDeadlineIsNoResult) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""});
  caller.Tell(CallerSession::Start{MakeRequest()});
  caller.now = Instant() + absl::Seconds(60);  // the tick is late
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  const auto ended =
      Only<CallerSession::Complete>(caller.Tell(CallerSession::Arrived{reply}));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].status,
              StatusIs(absl::StatusCode::kDeadlineExceeded, "unanswered"));
  EXPECT_TRUE(OutcomeUnknown(ended[0].status));
  EXPECT_EQ(ended[0].reply, nullptr);
}

TEST(CallerSession, EndingSessionClosesItsConnectionWithTheLastCall) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""});
  caller.Tell(CallerSession::Start{MakeRequest()});
  const absl::Status why = absl::FailedPreconditionError("shut down");
  EXPECT_TRUE(Only<CallerSession::CloseConnection>(
                  caller.Tell(CallerSession::Ending{why}))
                  .empty());
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  const auto last = caller.Tell(CallerSession::Arrived{reply});
  EXPECT_EQ(Only<CallerSession::SendAck>(last).size(), 1u);
  EXPECT_EQ(Only<CallerSession::CloseConnection>(last).size(), 1u);
  const auto late = Only<CallerSession::Complete>(
      caller.Tell(CallerSession::Start{MakeRequest()}));
  ASSERT_EQ(late.size(), 1u);
  EXPECT_THAT(late[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition, "shut down"));
}

TEST(CallerSession, AnAckOfAttachmentsIsRepeatedUntilItIsConfirmed) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""});
  caller.Tell(CallerSession::Start{MakeRequest()});
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  reply->attachments.push_back({"test", Bytes()});
  caller.Tell(CallerSession::Arrived{reply});
  EXPECT_EQ(caller.session.StateOf(1), CallerSession::State::kSettling);
  caller.now = caller.now + absl::Seconds(1);
  EXPECT_THAT(Only<CallerSession::SendAck>(
                  caller.Tell(CallerSession::Event(CallerSession::Tick{}))),
              IsEmpty());
  caller.Tell(CallerSession::Settled{1, true});
  for (int connection = 0; connection < 2; ++connection) {
    EXPECT_TRUE(caller.session.awaits_outcomes());
    caller.Tell(CallerSession::Disconnected{});
    const auto acks = Only<CallerSession::SendAck>(
        caller.Tell(CallerSession::Connected{Limits(), std::nullopt, ""}));
    ASSERT_EQ(acks.size(), 1u);
    EXPECT_THAT(acks[0].ack.confirm, ElementsAre(Interval{1, 1}));
  }
  caller.Tell(CallerSession::Answered{Closed{{{1, 1}}, {}}});
  EXPECT_FALSE(caller.session.awaits_outcomes());
  EXPECT_EQ(caller.session.StateOf(1), CallerSession::State::kEnded);
}

}  // namespace
}  // namespace weft::rpc
