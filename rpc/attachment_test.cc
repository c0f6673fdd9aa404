#include "weft/rpc/attachment.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/retry_policy.h"
#include "weft/rpc/stream.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/token_books.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::atomic<int> runs{0};

std::string Join(CallContext& context, const Token& a, const Token& b) {
  ++runs;
  EXPECT_NE(context.attachment(TokenBooks::kKind), nullptr);
  EXPECT_EQ(context.attachment("another"), nullptr);
  return a.text + "," + b.text;
}
WEFT_RPC(Join);

Token Give(const std::string& text) { return Token{text}; }
WEFT_RPC(Give);

// Returns once nobody wants it any more.
Token GiveLate(CallContext& context, const std::string& text) {
  ++runs;
  EXPECT_TRUE(testing::Becomes([&] { return context.cancel().IsCancelled(); }));
  return Token{text};
}
WEFT_RPC(GiveLate);

int64_t Double(int64_t x) { return 2 * x; }
WEFT_RPC(Double);

absl::Status Upload(Reader<Token> in) { return in.Next().status(); }
WEFT_RPC_STREAM(Upload);

class AttachmentTest : public ::testing::Test {
 protected:
  explicit AttachmentTest(const RanksOptions& options = {})
      : ranks_(2, options) {
    runs = 0;
  }
  Target peer(absl::Duration timeout = absl::Seconds(60)) {
    return ranks_[0].To("w1", timeout);
  }

  Ranks ranks_;
  std::shared_ptr<TokenBooks> mine_ = TokenBooks::Open(ranks_[0]);
  std::shared_ptr<TokenBooks> theirs_ = TokenBooks::Open(ranks_[1]);
};

TEST_F(AttachmentTest, OfARequestComesBeforeItsArgumentsAndIsDelivered) {
  const auto joined = Call(peer(), Join, Token{"a"}, Token{"b"});
  ASSERT_THAT(joined.status(), IsOk());
  EXPECT_EQ(*joined, "a,b");
  EXPECT_EQ(mine_->Outcomes(), "a+b delivered");
  ASSERT_THAT(theirs_->taken(), SizeIs(1));
  EXPECT_EQ(theirs_->taken()[0].text, "a+b");
}

TEST_F(AttachmentTest, ACodecKnowsMessageAgentPeerAndCall) {
  ASSERT_THAT(Call(peer(), Double, 1).status(), IsOk());  // call 1
  ASSERT_THAT(Call(peer(), Join, Token{"a"}, Token{"b"}).status(), IsOk());
  const auto given = Call(peer(), Give, "c");  // call 3
  ASSERT_THAT(given.status(), IsOk());

  const TokenBooks::Sent request = mine_->sent()[0];
  EXPECT_EQ(request.context.message, CodecContext::Message::kRequest);
  EXPECT_EQ(request.context.agent, &ranks_[0]);
  EXPECT_EQ(request.context.peer, ranks_[1].key());
  EXPECT_EQ(request.context.call, 0u);  // it is numbered when it leaves
  EXPECT_EQ(request.call, 2u);

  const CodecContext taken = theirs_->taken()[0].context;
  EXPECT_EQ(taken.message, CodecContext::Message::kRequest);
  EXPECT_EQ(taken.agent, &ranks_[1]);
  EXPECT_EQ(taken.peer, ranks_[0].key());
  EXPECT_EQ(taken.call, 2u);

  const TokenBooks::Sent reply = theirs_->sent()[0];
  EXPECT_EQ(reply.context.message, CodecContext::Message::kReply);
  EXPECT_EQ(reply.context.peer, ranks_[0].key());
  EXPECT_EQ(reply.context.call, 3u);

  EXPECT_EQ(given->context.message, CodecContext::Message::kReply);
  EXPECT_EQ(given->context.agent, &ranks_[0]);
  EXPECT_EQ(given->context.peer, ranks_[1].key());
  EXPECT_EQ(given->context.call, 3u);
}

TEST_F(AttachmentTest, OfAReplyIsDeliveredOnceTheCallerHasIt) {
  const auto given = Call(peer(), Give, "c");
  ASSERT_THAT(given.status(), IsOk());
  EXPECT_EQ(given->text, "c");
  EXPECT_TRUE(testing::Becomes([&] {
    return theirs_->Outcomes() == "c delivered";
  })) << theirs_->Outcomes();
}

TEST_F(AttachmentTest, IsRefusedWithTheCallWhereItsReceiverRefusesIt) {
  theirs_->RefuseWith(absl::ResourceExhaustedError("no room for tokens"));
  EXPECT_THAT(
      Call(peer(), Join, Token{"a"}, Token{"b"}).status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "no room for tokens"));
  EXPECT_EQ(mine_->Outcomes(), "a+b refused");
  EXPECT_EQ(runs, 0);
}

TEST_F(AttachmentTest, IsRefusedWhereAnotherArgumentCannotBeEncoded) {
  EXPECT_THAT(Call(peer(), Join, Token{"a"}, Token{"unfit"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(mine_->Outcomes(), "a+unfit refused");
  EXPECT_EQ(mine_->sent()[0].call, 0u);
  EXPECT_THAT(theirs_->taken(), IsEmpty());
}

TEST_F(AttachmentTest, OfAResultThatCannotBeEncodedIsRefused) {
  EXPECT_THAT(Call(peer(), Give, "unfit").status(),
              StatusIs(absl::StatusCode::kInternal));
  // The callee is notified beside the reply.
  EXPECT_TRUE(testing::Becomes([&] {
    return theirs_->Outcomes() == "unfit refused";
  })) << theirs_->Outcomes();
  EXPECT_THAT(mine_->taken(), IsEmpty());
}

TEST(Attachment, IsRefusedWhereNothingTakesItsKind) {
  Ranks ranks(2);
  const auto mine = TokenBooks::Open(ranks[0], /*receives=*/false);
  const auto theirs = TokenBooks::Open(ranks[1], /*receives=*/false);
  EXPECT_THAT(Call(ranks[0].To("w1"), Join, Token{"a"}, Token{"b"}).status(),
              StatusIs(absl::StatusCode::kUnimplemented, "kind 'test.tokens'"));
  EXPECT_EQ(mine->Outcomes(), "a+b refused");
  // A result, too; the caller cannot know before.
  EXPECT_THAT(Call(ranks[0].To("w1"), Give, "c").status(),
              StatusIs(absl::StatusCode::kInternal, "kind 'test.tokens'"));
}

// ------------------------------------------------ calls of an agent by itself

class OwnAttachmentTest : public AttachmentTest {
 protected:
  Target self(absl::Duration timeout = absl::Seconds(60)) {
    return ranks_[0].To("w0", timeout);
  }
};

// From now on what is taken waits.
Token GiveAndHold(CallContext& context, const std::string& text) {
  context.Local<TokenBooks>()->HoldBack(true);
  return Token{text};
}
WEFT_RPC(GiveAndHold);

TEST_F(OwnAttachmentTest, OfACallByItselfIsDelivered) {
  const auto joined = Call(self(), Join, Token{"a"}, Token{"b"});
  ASSERT_THAT(joined.status(), IsOk());
  EXPECT_EQ(*joined, "a,b");
  const auto given = Call(self(), Give, "c");
  ASSERT_THAT(given.status(), IsOk());
  EXPECT_EQ(given->text, "c");
  EXPECT_EQ(mine_->Outcomes(), "a+b delivered, c delivered");
  const std::vector<Token> taken = mine_->taken();
  ASSERT_THAT(taken, SizeIs(2));
  EXPECT_EQ(taken[0].context.message, CodecContext::Message::kRequest);
  EXPECT_EQ(taken[0].context.peer, ranks_[0].key());
  EXPECT_EQ(taken[1].context.message, CodecContext::Message::kReply);
  EXPECT_NE(taken[0].context.call, 0u);
  EXPECT_NE(taken[0].context.call, taken[1].context.call);
  EXPECT_EQ(mine_->sent()[0].call, taken[0].context.call);
  // An attachment that is not decoded any more is released.
  EXPECT_TRUE(testing::Becomes([&] { return mine_->open_receipts() == 0; }));
}

TEST_F(OwnAttachmentTest, OfACallByItselfIsRefusedWhereItIsNotTaken) {
  mine_->RefuseWith(absl::ResourceExhaustedError("no room for tokens"));
  EXPECT_THAT(
      Call(self(), Join, Token{"a"}, Token{"b"}).status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "no room for tokens"));
  EXPECT_THAT(
      Call(self(), Give, "c").status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "no room for tokens"));
  EXPECT_THAT(Call(self(), Give, "unfit").status(),
              StatusIs(absl::StatusCode::kInternal));
  EXPECT_EQ(mine_->Outcomes(), "a+b refused, c refused, unfit refused");
  EXPECT_EQ(runs, 0);
}

TEST_F(OwnAttachmentTest, ACallByItselfRunsOnceItsAttachmentsAreSettled) {
  mine_->HoldBack(true);
  const auto joined = CallAsync(self(), Join, Token{"a"}, Token{"b"});
  EXPECT_FALSE(joined.IsReady());
  EXPECT_EQ(mine_->Outcomes(), "a+b open");
  EXPECT_EQ(runs, 0);
  mine_->Release();
  EXPECT_THAT(joined.Wait(absl::Seconds(30)).status(), IsOk());
  EXPECT_EQ(mine_->Outcomes(), "a+b delivered");

  mine_->SettleWith(absl::NotFoundError("no such object"));
  EXPECT_THAT(Call(self(), Join, Token{"c"}, Token{"d"}).status(),
              StatusIs(absl::StatusCode::kNotFound, "no such object"));
  EXPECT_EQ(mine_->Outcomes(), "a+b delivered, c+d delivered");
  EXPECT_EQ(runs, 1);
}

TEST_F(OwnAttachmentTest, ACallByItselfThatWaitsEndsAtItsDeadline) {
  // Enough for both to begin.
  const Target brief = self(absl::Seconds(4));
  mine_->HoldBack(true);
  EXPECT_THAT(Call(brief, Join, Token{"a"}, Token{"b"}).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  mine_->Release();
  EXPECT_THAT(Call(brief, GiveAndHold, "c").status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  mine_->Release();
  EXPECT_EQ(runs, 0);
  EXPECT_TRUE(testing::Becomes([&] {
    return mine_->Outcomes() == "a+b delivered, c delivered";
  })) << mine_->Outcomes();
  EXPECT_TRUE(testing::Becomes([&] { return mine_->open_receipts() == 0; }));
}

TEST_F(AttachmentTest, CallsByWithRetryHaveNone) {
  EXPECT_THAT(
      Call(peer().WithRetry({}), Join, Token{"a"}, Token{"b"}).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, "another incarnation"));
}

TEST_F(AttachmentTest, ValuesOfAStreamHaveNone) {
  auto upload = OpenStream(peer(), Upload);
  EXPECT_THAT(
      upload.Write(Token{"a"}),
      StatusIs(absl::StatusCode::kFailedPrecondition, "belongs to no call"));
}

// ------------------------------------------------ a call waits for attachments

class OneThreadTest : public AttachmentTest {
 protected:
  OneThreadTest() : AttachmentTest(Options()) {}
  static RanksOptions Options() {
    RanksOptions options;
    options.threads = options.max_threads = 1;
    return options;
  }
};

TEST_F(OneThreadTest, ACallWaitsForItsAttachmentsWithoutAThread) {
  theirs_->HoldBack(true);
  const auto waiting = CallAsync(peer(), Join, Token{"a"}, Token{"b"});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*Call(peer(), Double, i), 2 * i);
  EXPECT_THAT(theirs_->taken(), SizeIs(1));
  EXPECT_EQ(runs, 0);
  EXPECT_FALSE(waiting.IsReady());
  EXPECT_EQ(mine_->Outcomes(), "a+b open");
  theirs_->Release();
  EXPECT_EQ(*waiting.Wait(absl::Seconds(60)), "a,b");
  EXPECT_EQ(mine_->Outcomes(), "a+b delivered");
}

TEST_F(OneThreadTest, AResultWaitsForItsAttachments) {
  mine_->HoldBack(true);
  const auto waiting = CallAsync(peer(), Give, "c");
  ASSERT_TRUE(testing::Becomes([&] { return !mine_->taken().empty(); }));
  EXPECT_FALSE(waiting.IsReady());
  mine_->Release();
  EXPECT_EQ(waiting.Wait(absl::Seconds(60))->text, "c");
}

TEST_F(OneThreadTest, AReplyIsAcknowledgedOnceItsAttachmentsAreSettled) {
  mine_->HoldBack(true);
  const auto waiting = CallAsync(peer(), Give, "c");
  ASSERT_TRUE(testing::Becomes([&] { return !mine_->taken().empty(); }));
  EXPECT_EQ(*Call(peer(), Double, 1), 2);  // acknowledgements travel along
  EXPECT_EQ(*Call(peer(), Double, 1), 2);
  EXPECT_EQ(theirs_->Outcomes(), "c open");
  mine_->Release();
  EXPECT_TRUE(
      testing::Becomes([&] { return theirs_->Outcomes() == "c delivered"; }));
}

TEST_F(AttachmentTest, OfACallThatIsGivenUpIsDeliveredOnceItIsSettledThere) {
  theirs_->HoldBack(true);
  const auto waiting = CallAsync(peer(), Join, Token{"a"}, Token{"b"});
  ASSERT_TRUE(testing::Becomes([&] { return !theirs_->taken().empty(); }));
  waiting.Cancel();
  EXPECT_EQ(*Call(peer(), Double, 1), 2);
  EXPECT_EQ(mine_->Outcomes(), "a+b open");
  theirs_->Release();
  EXPECT_TRUE(
      testing::Becomes([&] { return mine_->Outcomes() == "a+b delivered"; }));
}

TEST_F(AttachmentTest, OfAReplyThatIsGivenUpIsRefused) {
  const auto late = CallAsync(peer(), GiveLate, "c");
  ASSERT_TRUE(testing::Becomes([] { return runs == 1; }));
  late.Cancel();
  EXPECT_TRUE(
      testing::Becomes([&] { return theirs_->Outcomes() == "c refused"; }));
  EXPECT_THAT(mine_->taken(), IsEmpty());
}

TEST_F(AttachmentTest, OfAReplyThatIsNotTakenIsRefused) {
  mine_->RefuseWith(absl::ResourceExhaustedError("no room for tokens"));
  EXPECT_THAT(
      Call(peer(), Give, "c").status(),
      StatusIs(absl::StatusCode::kResourceExhausted, "no room for tokens"));
  EXPECT_TRUE(
      testing::Becomes([&] { return theirs_->Outcomes() == "c refused"; }));
}

TEST_F(AttachmentTest, AnErrorInSettlingEndsTheCallUnrun) {
  theirs_->SettleWith(absl::NotFoundError("its owner does not know it"));
  EXPECT_THAT(
      Call(peer(), Join, Token{"a"}, Token{"b"}).status(),
      StatusIs(absl::StatusCode::kNotFound, "its owner does not know it"));
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(mine_->Outcomes(), "a+b delivered");  // they were taken
  // The call ends there after its reply has left.
  EXPECT_TRUE(testing::Becomes([&] { return theirs_->open_receipts() == 0; }));
}

TEST_F(AttachmentTest, ACallThatIsGivenUpDoesNotWaitForItsAttachments) {
  theirs_->HoldBack(true);
  const auto waiting = CallAsync(peer(), Join, Token{"a"}, Token{"b"});
  ASSERT_TRUE(testing::Becomes([&] { return !theirs_->taken().empty(); }));
  waiting.Cancel();
  EXPECT_TRUE(testing::Becomes(
      [&] { return ranks_[1].Metrics().server_active_calls == 0; }));
  theirs_->Release();
  EXPECT_TRUE(testing::Becomes([&] { return theirs_->open_receipts() == 0; }));
  EXPECT_EQ(runs, 0);
}

TEST_F(AttachmentTest, AResultDoesNotWaitBeyondTheDeadline) {
  mine_->HoldBack(true);
  // Enough for the reply to come.
  EXPECT_THAT(
      Call(peer(absl::Seconds(3)), Give, "c").status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded, "waited to be settled"));
  mine_->Release();
}

// ----------------------------------------------------------------- peers end

TEST_F(AttachmentTest, OfAPeerThatIsGoneIsAbandonedBeforeOthersHearOfIt) {
  theirs_->HoldBack(true);
  const auto waiting = CallAsync(peer(), Join, Token{"a"}, Token{"b"});
  ASSERT_TRUE(testing::Becomes([&] { return !theirs_->taken().empty(); }));
  std::vector<std::string> heard;
  auto registration = ranks_[0].OnPeerGone([&](const Agent::GonePeer& gone) {
    heard.push_back(absl::StrCat(gone.key.ToString(), " ", gone.why,
                                 gone.left ? " left: " : ": ",
                                 mine_->Outcomes()));
  });
  ranks_[0].PeerGone(ranks_[1].key(), "it was killed");
  EXPECT_THAT(
      heard, ::testing::ElementsAre(absl::StrCat(
                 ranks_[1].key().ToString(), " it was killed: a+b abandoned")));
  EXPECT_THAT(waiting.Wait(absl::Seconds(60)).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  registration = nullptr;
  ranks_[0].PeerGone(WorkerKey{7, 1}, "another");
  EXPECT_THAT(heard, SizeIs(1));
  theirs_->Release();
}

TEST_F(AttachmentTest, OfACallThatNeverLeftIsRefused) {
  ranks_[0].PeerGone(ranks_[1].key(), "it was killed");
  EXPECT_THAT(Call(peer(), Join, Token{"a"}, Token{"b"}).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(mine_->Outcomes(), ::testing::AnyOf("", "a+b refused"));
}

TEST_F(AttachmentTest, OfACallThatNeverLeftItsQueueIsRefused) {
  theirs_->HoldBack(true);
  const Target queue = peer().Serialized();
  const auto first = CallAsync(queue, Join, Token{"a"}, Token{"b"});
  const auto second = CallAsync(queue, Join, Token{"c"}, Token{"d"});
  second.Cancel();
  EXPECT_EQ(mine_->Outcomes(), "a+b open, c+d refused");
  EXPECT_EQ(mine_->sent()[1].call, 0u);
  theirs_->Release();
  EXPECT_EQ(*first.Wait(absl::Seconds(60)), "a,b");
}

TEST(AttachmentReceivers, AKindHasOneReceiver) {
  Ranks ranks(1);
  TokenBooks::Open(ranks[0]);
  const auto another = std::make_shared<TokenBooks>();
  EXPECT_THAT(ranks[0].SetAttachmentReceiver(TokenBooks::kKind, another),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(ranks[0].SetAttachmentReceiver("", another),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(StagedAttachments, BeyondTheLimitAreNotSent) {
  struct Large final : Attachment {
    absl::StatusOr<Bytes> Freeze() override {
      return Bytes::Own(std::string(FrozenAttachment::kMostBytes, 'x'));
    }
    void OnOutcome(uint64_t, AttachmentOutcome) override {}
  };
  StagedAttachments staged;
  staged.Add("large", std::make_unique<Large>());
  EXPECT_THAT(staged.Freeze().status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace weft::rpc
