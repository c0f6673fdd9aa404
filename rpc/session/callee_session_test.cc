// CalleeSession by example: what a callee keeps of its caller.

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
#include "weft/rpc/session/interval_set.h"
#include "weft/rpc/session/session.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

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

}  // namespace
}  // namespace weft::rpc
