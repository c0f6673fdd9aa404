#include "weft/rpc/session/session.h"

#include <cstdint>
#include <deque>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/session/interval_set.h"
#include "weft/rpc/session/session_coverage.h"
#include "weft/rpc/session/session_world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

TEST(IntervalSet, JoinsNeighboursAndKeepsGaps) {
  IntervalSet set;
  for (const uint64_t id : {5, 1, 3, 9}) set.Add(id);
  EXPECT_EQ(set.ToString(), "1-1 3-3 5-5 9-9");
  set.Add(Interval{2, 4});
  EXPECT_EQ(set.ToString(), "1-5 9-9");
  set.Add(Interval{4, 20});
  EXPECT_EQ(set.ToString(), "1-20");
  EXPECT_TRUE(set.Contains(20));
  EXPECT_FALSE(set.Contains(21));
}

TEST(IntervalSet, EqualsASetOfIdsAfterRandomAdds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    IntervalSet set;
    std::vector<bool> model(64, false);
    for (int i = 0; i < 20; ++i) {
      const uint64_t first = random() % 60;
      const uint64_t last = first + random() % 4;
      set.Add(Interval{first, last});
      for (uint64_t id = first; id <= last; ++id) model[id] = true;
    }
    size_t runs = 0;
    for (uint64_t id = 0; id < model.size(); ++id) {
      ASSERT_EQ(set.Contains(id), model[id]) << set.ToString() << " " << id;
      if (model[id] && (id == 0 || !model[id - 1])) ++runs;
    }
    ASSERT_EQ(set.size(), runs);
  }
}

TEST(IntervalSet, RemovesAndCutsAsASetOfIdsDoes) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 500; ++round) {
    IntervalSet set;
    std::vector<bool> model(80, false);
    for (int i = 0; i < 30; ++i) {
      const uint64_t first = 1 + random() % 60;
      const uint64_t last = first + random() % 9;
      const bool adds = random() % 2 == 0;
      adds ? set.Add(Interval{first, last}) : set.Remove(Interval{first, last});
      for (uint64_t id = first; id <= last; ++id) model[id] = adds;
    }
    const uint64_t first = 1 + random() % 70;
    const uint64_t last = first + random() % 9;
    uint64_t next = first;
    std::optional<bool> before;
    set.ForEachPart(Interval{first, last}, [&](Interval part, bool belongs) {
      ASSERT_EQ(part.first, next);
      ASSERT_NE(before, belongs) << "two parts are one";
      for (; next <= part.last; ++next) ASSERT_EQ(model[next], belongs);
      before = belongs;
    });
    ASSERT_EQ(next, last + 1);
    for (uint64_t id = 1; id < model.size(); ++id) {
      ASSERT_EQ(set.Contains(id), model[id]) << set.ToString() << " " << id;
    }
  }
}

// ------------------------------------------------------------ by example

std::shared_ptr<Request> MakeRequest(int depth = 0, size_t body_bytes = 0) {
  auto request = std::make_shared<Request>();
  request->function = "F";
  request->deadline = Instant() + absl::Seconds(60);
  request->depth = depth;
  request->chain = "a > b";
  request->body = {Bytes::Own(std::string(body_bytes, 'x'))};
  return request;
}

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
  caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
    Tell(CallerSession::Connected{limits, nullptr, ""});
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
  caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
  caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
      IdsSent(caller.Tell(CallerSession::Connected{limits, nullptr, ""})),
      ElementsAre(2));
}

TEST(CallerSession, EachConnectionIsOfAnotherLifeUntilOneIsWelcomed) {
  Caller caller;
  EXPECT_EQ(caller.session.generation(), 1u);
  caller.Tell(CallerSession::Disconnected{});
  EXPECT_EQ(caller.session.generation(), 2u);
  caller.Tell(CallerSession::Unreachable{absl::UnavailableError("for long")});
  EXPECT_EQ(caller.session.generation(), 3u);
  caller.Tell(CallerSession::Connected{Limits(), nullptr, ""});
  caller.Tell(CallerSession::Disconnected{});
  EXPECT_EQ(caller.session.generation(), 3u);
  EXPECT_TRUE(caller.session.resumes());
}

TEST(CallerSession, AcksTravelBeforeTheRequestTheyMakeRoomFor) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), nullptr, ""});
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
  caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
  caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
      caller.Tell(CallerSession::Connected{limits, nullptr, ""}));
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
        caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
      caller.Tell(CallerSession::Connected{limits, nullptr, ""}));
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
  auto functions = std::make_shared<FunctionTable>();
  (*functions)["F"] = {"i64(f64)", 1};
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
                caller.Tell(CallerSession::Connected{limits, nullptr, ""}))
                .size(),
            1u);
  x.Fill(1);
  y.Fill(1);
  caller.Tell(CallerSession::Event(CallerSession::Disconnected{}));
  const auto actions =
      caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
  caller.Tell(CallerSession::Connected{limits, nullptr, ""});
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
      CallerSession::Connected{one, nullptr, ""};
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
  caller.Tell(CallerSession::Connected{Limits(), nullptr, ""});
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
  caller.Tell(CallerSession::Connected{Limits(), nullptr, ""});
  EXPECT_FALSE(caller.session.is_connected());
}

TEST(CallerSession, AReplyAfterTheDeadlineIsNoResult) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), nullptr, ""});
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
  caller.Tell(CallerSession::Connected{Limits(), nullptr, ""});
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

template <typename T>
int CountOf(const std::vector<CalleeSession::Action>& actions) {
  int count = 0;
  for (const auto& action : actions) count += std::holds_alternative<T>(action);
  return count;
}

TEST(CalleeSession, ACallerThatIsNotBackInTimeHasVanished) {
  const absl::Duration patience = absl::Seconds(2);
  CalleeSession callee{Limits(), patience};
  Instant now;
  const auto tell = [&](const CalleeSession::Event& event) {
    std::vector<CalleeSession::Action> actions;
    callee.OnEvent(event, now, &actions);
    return actions;
  };
  tell(CalleeSession::Event(CalleeSession::Connected{}));
  const auto lost = tell(CalleeSession::Event(CalleeSession::Disconnected{}));
  ASSERT_EQ(CountOf<CalleeSession::WakeAt>(lost), 1);
  now = now + absl::Seconds(1);
  tell(CalleeSession::Event(CalleeSession::Connected{}));
  now = now + absl::Seconds(1);
  const auto back = tell(CalleeSession::Event(CalleeSession::Tick{}));
  EXPECT_EQ(CountOf<CalleeSession::Vanished>(back), 0);
  tell(CalleeSession::Event(CalleeSession::Disconnected{}));
  now = now + patience - absl::Milliseconds(1);
  const auto early = tell(CalleeSession::Event(CalleeSession::Tick{}));
  EXPECT_EQ(CountOf<CalleeSession::Vanished>(early), 0);
  EXPECT_EQ(CountOf<CalleeSession::WakeAt>(early), 1);
  now = now + absl::Milliseconds(1);
  const auto late = tell(CalleeSession::Event(CalleeSession::Tick{}));
  EXPECT_EQ(CountOf<CalleeSession::Vanished>(late), 1);
  EXPECT_EQ(CountOf<CalleeSession::Vanished>(
                tell(CalleeSession::Event(CalleeSession::Tick{}))),
            0);
}

TEST(CalleeSession,
     EndingSessionClosesItsConnectionWithTheLastAcknowledgement) {
  CalleeSession callee{Limits()};
  const auto tell = [&](const CalleeSession::Event& event) {
    std::vector<CalleeSession::Action> actions;
    callee.OnEvent(event, Instant(), &actions);
    return actions;
  };
  tell(CalleeSession::Event(CalleeSession::Connected{}));
  auto request = MakeRequest();
  request->id = 1;
  tell(CalleeSession::Arrived{request});
  EXPECT_EQ(CountOf<CalleeSession::CloseConnection>(
                tell(CalleeSession::Event(CalleeSession::Ending{}))),
            0);
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  EXPECT_EQ(CountOf<CalleeSession::CloseConnection>(
                tell(CalleeSession::Finished{reply})),
            0);
  EXPECT_EQ(callee.unacknowledged(), 1u);
  EXPECT_EQ(CountOf<CalleeSession::CloseConnection>(
                tell(CalleeSession::Acked{Ack{{{1, 1}}, {}}})),
            1);
  EXPECT_EQ(callee.unacknowledged(), 0u);
}

TEST(CalleeSession, ARefusalNamesTheLimitAndHowItIsRaised) {
  Limits limits;
  limits.calls = 2;
  limits.nested_calls = 1;
  limits.bytes = 1500;
  CalleeSession callee(limits);
  uint64_t id = 0;
  const auto why = [&](int depth, size_t bytes) {
    auto request = MakeRequest(depth, bytes);
    request->id = ++id;
    std::vector<CalleeSession::Action> actions;
    callee.OnEvent(CalleeSession::Connected{}, Instant(), &actions);
    callee.OnEvent(CalleeSession::Arrived{request}, Instant(), &actions);
    const auto* refused =
        std::get_if<CalleeSession::SendReply>(&actions.back());
    return refused == nullptr ? absl::OkStatus() : refused->reply->status;
  };
  const auto names = [](const char* limit) {
    return StatusIs(absl::StatusCode::kResourceExhausted,
                    absl::StrCat("--limits=", limit, "=VALUE"));
  };
  EXPECT_THAT(why(0, 0), IsOk());
  EXPECT_THAT(why(0, 5000), names("rpc_bytes"));
  EXPECT_THAT(why(0, 0), names("rpc_calls"));  // a refused one is open, too
  for (int i = 0; i < 5; ++i) EXPECT_THAT(why(1, 0), IsOk());
  EXPECT_THAT(why(1, 0), names("rpc_nested_calls"));
}

TEST(CalleeSession, RefusalsThatAreNeverClosedEndTheConnection) {
  Limits limits;
  limits.calls = limits.nested_calls = 1;
  CalleeSession callee(limits);
  std::vector<CalleeSession::Action> actions;
  for (uint64_t id = 1; id <= 100000; ++id) {
    auto request = MakeRequest();
    request->id = id;
    actions.clear();
    callee.OnEvent(CalleeSession::Arrived{request}, Instant(), &actions);
  }
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_NE(std::get_if<CalleeSession::Violation>(&actions[0]), nullptr);
  EXPECT_LE(callee.known_calls(), 12u);
}

TEST(CalleeSession, EndlessGapsEndTheConnectionAndAreNotKept) {
  CalleeSession callee{Limits()};
  std::vector<CalleeSession::Action> actions;
  Ack ack;
  for (uint64_t i = 1; i <= kMaxIntervals + 10; ++i) {
    ack.ids.push_back(Interval{2 * i, 2 * i});
  }
  callee.OnEvent(CalleeSession::Acked{ack}, Instant(), &actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_NE(std::get_if<CalleeSession::Violation>(&actions[0]), nullptr);
  EXPECT_EQ(callee.closed_intervals(), kMaxIntervals);
}

TEST(CalleeSession, ReplyBytesCountUntilTheyAreAcknowledged) {
  Limits limits;
  limits.bytes = 1000;
  CalleeSession callee(limits);
  std::vector<CalleeSession::Action> actions;
  const auto arrive = [&](uint64_t id) {
    auto request = MakeRequest();
    request->id = id;
    actions.clear();
    callee.OnEvent(CalleeSession::Arrived{request}, Instant(), &actions);
    return !actions.empty() &&
           std::get_if<CalleeSession::Run>(&actions.back()) != nullptr;
  };
  ASSERT_TRUE(arrive(1));
  auto reply = std::make_shared<Reply>();
  reply->id = 1;
  reply->body = {Bytes::Own(std::string(1900, 'x'))};
  callee.OnEvent(CalleeSession::Finished{reply}, Instant(), &actions);
  EXPECT_FALSE(arrive(2));
  callee.OnEvent(CalleeSession::Acked{Ack{{{1, 2}}, {}}}, Instant(), &actions);
  EXPECT_TRUE(arrive(3));
}

TEST(CalleeSession, OneLongCallPinsNothingButItself) {
  CalleeSession callee{Limits()};
  std::vector<CalleeSession::Action> actions;
  for (uint64_t id = 1; id <= 1000; ++id) {
    auto request = MakeRequest();
    request->id = id;
    callee.OnEvent(CalleeSession::Arrived{request}, Instant(), &actions);
    if (id == 1) continue;  // runs on
    auto reply = std::make_shared<Reply>();
    reply->id = id;
    callee.OnEvent(CalleeSession::Finished{reply}, Instant(), &actions);
    callee.OnEvent(CalleeSession::Acked{Ack{{{id, id}}, {}}}, Instant(),
                   &actions);
  }
  EXPECT_EQ(callee.known_calls(), 1u);
  EXPECT_THAT(callee.Fingerprint(), HasSubstr("closed=2-1000 "));
}

TEST(CalleeSession, EndlessGapsOfCancelsEndTheConnectionAndAreNotKept) {
  CalleeSession callee{Limits()};
  std::vector<CalleeSession::Action> actions;
  Cancel cancel;
  for (uint64_t i = 1; i <= kMaxIntervals + 10; ++i) {
    cancel.ids.push_back(Interval{2 * i, 2 * i});
  }
  callee.OnEvent(CalleeSession::GivenUp{cancel}, Instant(), &actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_NE(std::get_if<CalleeSession::Violation>(&actions[0]), nullptr);
  EXPECT_EQ(callee.never_intervals(), kMaxIntervals);
}

// ------------------------------------------------------------ attachments

class Callee {
 public:
  Callee() { Tell(CalleeSession::Connected{}); }
  std::vector<CalleeSession::Action> Tell(CalleeSession::Event event) {
    std::vector<CalleeSession::Action> actions;
    session.OnEvent(event, Instant(), &actions);
    return actions;
  }
  void Arrive(uint64_t id, bool attached = false) {
    auto request = MakeRequest();
    request->id = id;
    if (attached) request->attachments.push_back({"test", Bytes()});
    Tell(CalleeSession::Arrived{request});
  }
  std::vector<CalleeSession::Action> Finish(uint64_t id,
                                            bool attached = false) {
    auto reply = std::make_shared<Reply>();
    reply->id = id;
    if (attached) {
      reply->attachments.push_back({"test", Bytes()});
      reply->staged = std::make_shared<StagedAttachments>();
    }
    return Tell(CalleeSession::Finished{reply});
  }
  CalleeSession session{Limits()};
};

// What is answered, as "seen 1-2 never 3-3".
std::string AnswerIn(const std::vector<CalleeSession::Action>& actions) {
  std::string answer;
  for (const auto& action : actions) {
    const auto* closed = std::get_if<CalleeSession::SendClosed>(&action);
    if (closed == nullptr) continue;
    IntervalSet seen;
    IntervalSet never;
    for (const Interval one : closed->closed.seen) seen.Add(one);
    for (const Interval one : closed->closed.never) never.Add(one);
    absl::StrAppend(&answer, "seen ", seen.ToString(), " never ",
                    never.ToString());
  }
  return answer;
}

TEST(CalleeSession, ACancelIsAnsweredTheSameUntilThatIsAcknowledged) {
  Callee callee;
  callee.Arrive(2);
  callee.Arrive(3);
  callee.Finish(3);
  const CalleeSession::GivenUp all{Cancel{{{1, 5}}}};
  EXPECT_EQ(AnswerIn(callee.Tell(all)), "seen 2-3 never 1-1 4-5");
  EXPECT_EQ(AnswerIn(callee.Tell(all)), "seen 2-3 never 1-1 4-5");
  callee.Finish(2);
  callee.Arrive(4);  // late; it does not run
  EXPECT_EQ(AnswerIn(callee.Tell(all)), "seen 2-3 never 1-1 4-5");
  EXPECT_EQ(callee.session.never_intervals(), 2u);
  callee.Tell(CalleeSession::Acked{Ack{{{1, 5}}, {}}});
  EXPECT_EQ(callee.session.never_intervals(), 0u);
  EXPECT_EQ(callee.session.known_calls(), 0u);
  EXPECT_EQ(callee.session.closed_intervals(), 1u);
}

TEST(CalleeSession, ACancelIsAnsweredWhenTheAttachmentsAreSettledOrRefused) {
  Callee callee;
  callee.Arrive(1, /*attached=*/true);
  callee.Arrive(2, /*attached=*/true);
  EXPECT_EQ(AnswerIn(callee.Tell(CalleeSession::GivenUp{Cancel{{{1, 2}}}})),
            "");
  EXPECT_EQ(AnswerIn(callee.Tell(CalleeSession::Settled{1})),
            "seen 1-1 never ");
  auto refused = std::make_shared<Reply>();
  refused->id = 2;
  refused->refusal = Refusal::kAttachments;
  EXPECT_EQ(AnswerIn(callee.Tell(CalleeSession::Finished{refused})),
            "seen  never 2-2");
}

TEST(CalleeSession, AReplyLeavesOnceTheAttachmentsOfItsRequestAreSettled) {
  Callee callee;
  callee.Arrive(1, /*attached=*/true);
  EXPECT_THAT(callee.Finish(1),
              IsEmpty());  // it was cancelled, and did not run
  const auto actions = callee.Tell(CalleeSession::Settled{1});
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_NE(std::get_if<CalleeSession::SendReply>(&actions[0]), nullptr);
}

TEST(CalleeSession, AReplyThatIsGivenUpIsRolledBack) {
  Callee callee;
  callee.Arrive(1);
  callee.Finish(1, /*attached=*/true);
  EXPECT_TRUE(callee.session.has_open_attachments());
  const auto actions = callee.Tell(CalleeSession::GivenUp{Cancel{{{1, 1}}}});
  ASSERT_EQ(actions.size(), 2u);
  const auto* tell = std::get_if<CalleeSession::TellAttachments>(&actions[0]);
  ASSERT_NE(tell, nullptr);
  EXPECT_EQ(tell->outcome, AttachmentOutcome::kRefused);
  EXPECT_FALSE(callee.session.has_open_attachments());
}

TEST(CallerSession, AnAckOfAttachmentsIsRepeatedUntilItIsConfirmed) {
  Caller caller;
  caller.Tell(CallerSession::Connected{Limits(), nullptr, ""});
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
        caller.Tell(CallerSession::Connected{Limits(), nullptr, ""}));
    ASSERT_EQ(acks.size(), 1u);
    EXPECT_THAT(acks[0].ack.confirm, ElementsAre(Interval{1, 1}));
  }
  caller.Tell(CallerSession::Answered{Closed{{{1, 1}}, {}}});
  EXPECT_FALSE(caller.session.awaits_outcomes());
  EXPECT_EQ(caller.session.StateOf(1), CallerSession::State::kEnded);
}

// ------------------------------------------------------------ every way

struct Walk {
  int64_t states = 0;
  std::string violation;  // with the moves that led to it
};

// Breadth first, so that a violation comes with the shortest way to it.
Walk Explore(const WorldOptions& options, int64_t max_states) {
  struct Node {
    SessionWorld world;
    std::vector<std::string> path;
  };
  Walk walk;
  absl::flat_hash_set<size_t> seen;
  std::deque<Node> open;
  open.push_back({SessionWorld(options), {}});
  while (!open.empty() && walk.states < max_states) {
    Node node = std::move(open.front());
    open.pop_front();
    ++walk.states;
    SessionWorld settled = node.world;
    settled.Settle();
    const std::string& violation = node.world.violation().empty()
                                       ? settled.violation()
                                       : node.world.violation();
    if (!violation.empty()) {
      walk.violation =
          absl::StrCat(violation, " after: ", absl::StrJoin(node.path, ", "));
      return walk;
    }
    for (const std::string& move : node.world.Moves()) {
      SessionWorld next = node.world;
      next.Apply(move);
      if (!seen.insert(absl::HashOf(next.Fingerprint())).second) continue;
      std::vector<std::string> path = node.path;
      path.push_back(move);
      open.push_back({std::move(next), std::move(path)});
    }
  }
  EXPECT_TRUE(open.empty()) << "not all states fit into " << max_states;
  return walk;
}

Limits FewCalls(int64_t calls) {
  Limits limits;
  limits.calls = calls;
  return limits;
}

WorldOptions AnyOrder() {
  WorldOptions options;
  options.limits = FewCalls(2);
  options.drops = 1;
  options.duplicates = 1;
  options.disconnects = 1;
  options.abandons = 1;
  return options;
}

WorldOptions InOrder() {
  WorldOptions options;
  options.fifo = true;
  options.limits = FewCalls(1);
  options.disconnects = 2;
  options.abandons = 1;
  options.expiries = 1;
  options.forgets = 1;
  options.crashes = 1;
  return options;
}

// The same with attachments of requests and replies, which need fewer other
// faults to go wrong.
WorldOptions AttachedAnyOrder() {
  WorldOptions options;
  options.attached = true;
  options.calls = 1;
  options.limits = FewCalls(2);
  options.drops = 1;
  options.duplicates = 1;
  options.disconnects = 1;
  options.abandons = 1;
  options.reply_refusals = 1;
  return options;
}

WorldOptions AttachedInOrder() {
  WorldOptions options;
  options.attached = true;
  options.fifo = true;
  options.limits = FewCalls(1);
  options.disconnects = 1;
  options.abandons = 1;
  options.expiries = 1;
  options.crashes = 1;
  options.request_refusals = 1;
  options.reply_refusals = 1;
  return options;
}

TEST(SessionExploration, HoldsForAttachmentsUnderLossRepetitionAndAnyOrder) {
  const Walk walk = Explore(AttachedAnyOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, HoldsForAttachmentsUnderReconnectsExpiryAndCrash) {
  const Walk walk = Explore(AttachedInOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, HoldsUnderLossRepetitionAndAnyOrder) {
  const Walk walk = Explore(AnyOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, HoldsUnderReconnectsExpiryForgettingAndCrash) {
  const Walk walk = Explore(InOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, FindsEachPlantedFault) {
  const struct {
    Fault fault;
    WorldOptions options;
    const char* finding;
  } plants[] = {
      {Fault::kNoDedupe, AnyOrder(), "started twice"},
      {Fault::kNoFence, InOrder(), "started twice"},
      {Fault::kAckBeforeDelivery, InOrder(), "ended 0 times"},
      {Fault::kSendOrderLost, InOrder(), "honest caller was refused"},
      {Fault::kAckBeforeSettled, AttachedInOrder(), "A2: reply"},
      {Fault::kNoRollback, AttachedInOrder(), "A1: a reply"},
      {Fault::kNeverAfterStart, AttachedInOrder(), "A3: request"},
  };
  for (const auto& plant : plants) {
    WorldOptions options = plant.options;
    options.fault = plant.fault;
    EXPECT_THAT(Explore(options, 400000).violation, HasSubstr(plant.finding));
  }
}

// ------------------------------------------------------------ many ways

std::string Simulate(uint64_t seed, Fault fault, SessionHook* hook = nullptr) {
  std::mt19937_64 random(seed);
  WorldOptions options;
  options.calls = 12;
  options.fifo = seed % 2 == 0;
  options.limits = FewCalls(1 + seed % 4);
  options.drops = random() % 6;
  options.duplicates = random() % 6;
  options.disconnects = random() % 6;
  options.abandons = random() % 4;
  options.expiries = random() % 3;
  options.unreachables = random() % 2;
  options.forgets = random() % 2;
  options.crashes = random() % 2;
  options.attached = seed % 4 >= 2;
  options.request_refusals = random() % 3;
  options.reply_refusals = random() % 3;
  options.fault = fault;
  options.hook = hook;
  SessionWorld world(options);
  std::vector<std::string> path;
  for (int step = 0; step < 300 && world.violation().empty(); ++step) {
    const std::vector<std::string> moves = world.Moves();
    if (moves.empty()) break;
    path.push_back(moves[random() % moves.size()]);
    world.Apply(path.back());
  }
  if (world.violation().empty()) world.Settle();
  if (world.violation().empty()) return "";
  return absl::StrCat("seed ", seed, ": ", world.violation(),
                      " after: ", absl::StrJoin(path, ", "));
}

TEST(SessionSimulation, HoldsForAThousandSeeds) {
  SessionCoverage coverage;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    ASSERT_EQ(Simulate(seed, Fault::kNone, &coverage), "");
  }
  std::cout << coverage.Report(SessionCoverage::Where::kAlone);
  EXPECT_THAT(coverage.CheckHits(SessionCoverage::Where::kAlone), IsOk());
}

TEST(SessionSimulation, FindsEachPlantedFaultWithinTheSeeds) {
  const struct {
    Fault fault;
    const char* name;
  } plants[] = {
      {Fault::kNoDedupe, "no dedupe"},
      {Fault::kNoFence, "no fence"},
      {Fault::kAckBeforeDelivery, "acknowledged before delivery"},
      {Fault::kSendOrderLost, "send order lost"},
      {Fault::kAckBeforeSettled, "acknowledged before settled"},
      {Fault::kNoRollback, "abandoned reply not rolled back"},
      {Fault::kNeverAfterStart, "cancel answered never after start"},
  };
  for (const auto& plant : plants) {
    std::string found;
    for (uint64_t seed = 1; seed <= 1000 && found.empty(); ++seed) {
      found = Simulate(seed, plant.fault);
    }
    EXPECT_NE(found, "") << plant.name;
    std::cout << plant.name << ": " << found.substr(0, 100) << "\n";
  }
}

}  // namespace
}  // namespace weft::rpc
