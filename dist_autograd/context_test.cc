#include "weft/dist_autograd/context.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/future.h"
#include "weft/dist_autograd/participant.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr WorkerKey kSelf{1, 1}, kPeer{2, 1}, kOther{3, 1};

class FakeParticipant final : public Participant {
 public:
  absl::StatusOr<bool> Prepare() override {
    ++prepared;
    if (!refusal.ok()) return refusal;
    return committed == 0;
  }
  Future<void> Commit() override {
    ++committed;
    return MakeReady();
  }
  void Abort() override { ++aborted; }

  absl::Status refusal;
  int prepared = 0, committed = 0, aborted = 0;
};

TEST(ContextTest, ParticipantsArePreparedAndCommittedTogether) {
  Context context({kSelf, 1}, kSelf, 10);
  EXPECT_EQ(*context.PrepareParticipants(), 0);
  EXPECT_THAT(context.CommitParticipants().Wait(kTimeout), IsOk());
  const auto a = std::make_shared<FakeParticipant>();
  const auto b = std::make_shared<FakeParticipant>();
  ASSERT_THAT(context.AddParticipant(a), IsOk());
  ASSERT_THAT(context.AddParticipant(b), IsOk());
  b->refusal = absl::InvalidArgumentError("not finite");
  EXPECT_THAT(context.PrepareParticipants().status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "not finite"));
  b->refusal = absl::OkStatus();
  EXPECT_EQ(*context.PrepareParticipants(), 2);
  EXPECT_EQ(a->committed + b->committed, 0);
  EXPECT_THAT(context.CommitParticipants().Wait(kTimeout), IsOk());
  EXPECT_EQ(a->committed, 1);
  EXPECT_EQ(b->committed, 1);
  EXPECT_EQ(*context.PrepareParticipants(), 0);
}

TEST(ContextTest, ParticipantsAreAbortedOnceAndNoneIsTakenAfterTheEnd) {
  Context context({kSelf, 1}, kSelf, 10);
  const auto a = std::make_shared<FakeParticipant>();
  ASSERT_THAT(context.AddParticipant(a), IsOk());
  context.Close();
  context.AbortParticipants();
  context.AbortParticipants();
  EXPECT_EQ(a->aborted, 1);
  EXPECT_THAT(context.AddParticipant(a),
              StatusIs(absl::StatusCode::kFailedPrecondition, "was released"));
  EXPECT_THAT(context.CommitParticipants().Wait(kTimeout), IsOk());
  EXPECT_EQ(a->committed, 0);
}

TEST(ContextTest, OthersAreThoseThatWereCalledAndThoseThatPassesCameTo) {
  Context context({kSelf, 1}, kSelf, 10);
  ASSERT_THAT(context.AddPeer(kPeer), IsOk());
  context.AddReached({kSelf, kOther});
  EXPECT_THAT(context.Others(), ElementsAre(kPeer, kOther));
}

TEST(ContextTest, ItsCreatorAndWhoTookPartInAPassOfItMayStepIt) {
  Context context({kPeer, 1}, kSelf, 10);
  EXPECT_TRUE(context.MayStep(kPeer));
  EXPECT_TRUE(context.MayStep(kSelf));
  ASSERT_THAT(context.AddPeer(kOther), IsOk());
  context.AddReached({kOther});
  EXPECT_FALSE(context.MayStep(kOther));
  context.AddPartners({kPeer, kOther});
  EXPECT_TRUE(context.MayStep(kOther));
  EXPECT_FALSE(context.MayStep({kOther.id, kOther.epoch + 1}));
}

}  // namespace
}  // namespace weft::dist_autograd
