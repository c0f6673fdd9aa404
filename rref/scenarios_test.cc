// The scenarios of a protocol of counted references, one test for each, named
// by its letter: docs/rref_protocol.md lists them. O owns, A and B and C use.
// Those that need one exact order of messages are in core/scripts_test.cc,
// those with lost connections in simulation_test.cc.

#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/outcome.h"
#include "weft/rpc/session/retry_policy.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/rref.h"
#include "weft/rref/scenario.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {
namespace {

using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

class SlowCell : public Cell {
 public:
  explicit SlowCell(int64_t value) : Cell(value) { WaitHere(); }
};
WEFT_RPC_CLASS(SlowCell, int64_t);

class BadCell {
 public:
  explicit BadCell(int64_t) { throw std::runtime_error("will not be made"); }
  int64_t Get() { return 0; }
};
WEFT_RPC_CLASS(BadCell, int64_t);
WEFT_RPC_METHOD(BadCell, Get);

TEST_F(Scenario, A_UserCreatesFetchesAndDrops) {
  const auto number = rref::Remote(From(kA, kO), Double, 21);
  ASSERT_THAT(number.status(), IsOk());
  EXPECT_THAT(Fetch(*number), IsOkAndHolds(42));
  // The owner serves it before its own account of the creation is done.
  EXPECT_TRUE(Becomes([&] { return references_[kO]->counts().owned == 1; }));
}

TEST_F(Scenario, B_WorkerCreatesOnItself) {
  const RRef<Cell> cell = MakeAt(kA, kA);
  EXPECT_TRUE(cell.is_owner());
  EXPECT_THAT(Call(cell, &Cell::Add, 1), IsOkAndHolds(11));
  EXPECT_THAT(Fetch(rref::Remote(From(kA, kA), Double, 21).value()),
              IsOkAndHolds(42));
}

TEST_F(Scenario, C_OwnerPassesItsOwnAsArgument) {
  RRef<Cell> cell = MakeLocal(ranks_[kO], std::make_shared<Cell>(1)).value();
  Future<int64_t> used = rpc::CallAsync(From(kO, kA), UseLate, cell);
  cell = RRef<Cell>();
  EXPECT_TRUE(Becomes([] { return waiting == 1; }));
  EXPECT_EQ(references_[kO]->counts().owned, 1);
  may_go_on = true;
  EXPECT_THAT(used.Wait(kLong), IsOkAndHolds(2));
}

TEST_F(Scenario, D_OwnerReturnsItsOwn) {
  const RRef<Cell> cell = rpc::Call(From(kA, kO), MakeHere, 5).value();
  EXPECT_FALSE(cell.is_owner());
  EXPECT_TRUE(Becomes([&] { return Holders(kO) == 1; }));
  EXPECT_THAT(Call(cell, &Cell::Add, 1), IsOkAndHolds(6));
}

TEST_F(Scenario, E_UserPassesToTheOwner) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(rpc::Call(From(kA, kO), IsMine, cell), IsOkAndHolds(true));
  EXPECT_TRUE(
      Becomes([&] { return references_[kA]->counts().open_children == 0; }));
}

TEST_F(Scenario, F_UserReturnsToTheOwner) {
  RRef<Cell> cell = MakeLocal(ranks_[kO], std::make_shared<Cell>(1)).value();
  const RRef<Cell> back = rpc::Call(From(kO, kA), GiveBack, cell).value();
  cell = RRef<Cell>();
  EXPECT_TRUE(back.is_owner());
  EXPECT_TRUE(back.Local().ok());
}

TEST_F(Scenario, G_UserPassesToAnotherUser) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(rpc::Call(From(kA, kB), Use, cell), IsOkAndHolds(11));
}

TEST_F(Scenario, H_UserReturnsToAnotherUser) {
  RRef<Cell> cell = MakeAt(kO, kB);
  const RRef<Cell> back = rpc::Call(From(kB, kA), GiveBack, cell).value();
  // The caller got it once the owner knew it.
  EXPECT_TRUE(back.Confirmed().IsReady());
  cell = RRef<Cell>();
  EXPECT_THAT(Call(back, &Cell::Add, 1), IsOkAndHolds(11));
}

TEST_F(Scenario, I_EachOfAChainDropsAtOnce) {
  RRef<Cell> cell = MakeAt(kO, kA);
  Future<int64_t> used = rpc::CallAsync(
      From(kA, kB), PassOn, cell, std::vector<std::string>{"w3", "w1", "w2"});
  cell = RRef<Cell>();
  EXPECT_THAT(used.Wait(kLong), IsOkAndHolds(11));
}

TEST_F(Scenario, J_CreatorSharesBeforeItsOwnIsConfirmed) {
  for (int i = 0; i < 50; ++i) {  // the two messages race
    RRef<Cell> cell = MakeAt(kO, kA);
    Future<int64_t> used = rpc::CallAsync(From(kA, kB), Use, cell);
    cell = RRef<Cell>();
    EXPECT_THAT(used.Wait(kLong), IsOkAndHolds(11));
  }
}

TEST_F(Scenario, K_FetchDoesNotWaitForTheAdoption) {
  for (int i = 0; i < 50; ++i) {  // the two messages race
    Future<int64_t> value =
        rref::RemoteAsync(From(kA, kO), Double, 4)
            .Then([](const RRef<int64_t>& ref) { return FetchAsync(ref); });
    EXPECT_THAT(value.Wait(kLong), IsOkAndHolds(8));
  }
}

TEST_F(Scenario, K_FetchAndCallBeforeTheObjectIsMadeWaitForIt) {
  const auto number = BeginRemote(From(kA, kO), SlowDouble, 21);
  ASSERT_THAT(number.status(), IsOk());
  const Future<int64_t> fetched = FetchAsync(*number);
  EXPECT_TRUE(Becomes([] { return waiting == 1; }));
  const auto cell = BeginMake<SlowCell>(From(kA, kO), 1);
  ASSERT_THAT(cell.status(), IsOk());
  EXPECT_FALSE(fetched.IsReady());
  EXPECT_FALSE(number->Confirmed().IsReady());
  may_go_on = true;
  EXPECT_THAT(fetched.Wait(kLong), IsOkAndHolds(42));
  EXPECT_THAT(cell->Confirmed().Wait(kLong), IsOk());
  EXPECT_THAT(Fetch(*number), IsOkAndHolds(42));
}

TEST_F(Scenario, K_FetchesThatFollowTheirCreationsAtOnceFindThem) {
  for (int i = 0; i < 200; ++i) {
    const auto number = BeginRemote(From(kA, kO), Double, i);
    ASSERT_THAT(number.status(), IsOk());
    EXPECT_THAT(Fetch(*number), IsOkAndHolds(2 * i));
  }
}

TEST_F(Scenario, J_CreatorPassesOnBeforeTheObjectIsMade) {
  auto number = BeginRemote(From(kA, kO), SlowDouble, 21);
  ASSERT_THAT(number.status(), IsOk());
  // To another user, to the owner and to itself.
  std::vector<Future<int64_t>> used;
  for (const int to : {kB, kO, kA}) {
    used.push_back(rpc::CallAsync(From(kA, to), FetchIt, *number));
  }
  number = absl::CancelledError("dropped");
  EXPECT_TRUE(Becomes([&] { return references_[kO]->counts().waiting >= 2; }));
  may_go_on = true;
  for (const Future<int64_t>& each : used) {
    EXPECT_THAT(each.Wait(kLong), IsOkAndHolds(42));
  }
}

TEST_F(Scenario, J_ReferenceToAnObjectStillBeingMadeIsPassedOn) {
  auto number = BeginRemote(From(kO, kO), SlowDouble, 21);
  ASSERT_THAT(number.status(), IsOk());
  Future<int64_t> used = rpc::CallAsync(From(kO, kB), FetchIt, *number);
  number = absl::CancelledError("dropped");
  EXPECT_TRUE(Becomes([&] { return references_[kO]->counts().waiting == 1; }));
  may_go_on = true;
  EXPECT_THAT(used.Wait(kLong), IsOkAndHolds(42));
}

TEST_F(Scenario, L_ReferenceIsDroppedBeforeItsObjectIsMade) {
  {
    const auto cell = BeginMake<SlowCell>(From(kA, kO), 1);
    ASSERT_THAT(cell.status(), IsOk());
    EXPECT_TRUE(Becomes([] { return waiting == 1; }));
  }
  EXPECT_EQ(references_[kA]->counts().held, 1);  // until its creation has ended
  may_go_on = true;
}

TEST_F(Scenario, L_CreatorGivesUpWhileOthersWaitForTheObject) {
  // Long enough for the two below to begin to wait before that.
  auto number =
      BeginRemote(From(kA, kO, absl::Seconds(3)), DoubleOnceGivenUp, 21);
  ASSERT_THAT(number.status(), IsOk());
  const Future<int64_t> fetched = FetchAsync(*number);
  const Future<int64_t> used = rpc::CallAsync(From(kA, kB), FetchIt, *number);
  EXPECT_THAT(number->Confirmed().Wait(kLong),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(fetched.Wait(kLong).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(number->status(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                         number->id().ToString()));
  EXPECT_THAT(used.Wait(kLong).status(),
              StatusIs(absl::StatusCode::kNotFound, number->id().ToString()));
}

TEST_F(Scenario, M_WaitersOfACreationThatThrowsGetItsError) {
  const auto cell = BeginMake<BadCell>(From(kA, kO), 1);
  ASSERT_THAT(cell.status(), IsOk());
  EXPECT_THAT(CallAsync(*cell, &BadCell::Get).Wait(kLong).status(),
              StatusIs(absl::StatusCode::kInternal, "will not be made"));
  EXPECT_THAT(cell->Confirmed().Wait(kLong),
              StatusIs(absl::StatusCode::kInternal, "will not be made"));
  EXPECT_THAT(Call(*cell, &BadCell::Get).status(),
              StatusIs(absl::StatusCode::kInternal, "w0"));
}

// Later uses tell it too, and not only the call that made the object: the
// caller must know that the creation may have run.
TEST_F(Scenario, LaterUsesOfAFailedCreationKeepWhatItsErrorSays) {
  const auto number = BeginRemote(From(kA, kO), SlowDouble, 21);
  ASSERT_THAT(number.status(), IsOk());
  EXPECT_TRUE(Becomes([] { return waiting == 1; }));
  ranks_[kA].PeerGone(ranks_[kO].key(), "killed");
  ranks_[kO].PeerGone(ranks_[kA].key(), "killed");
  const absl::Status made = number->Confirmed().Wait(kLong);
  EXPECT_TRUE(rpc::OutcomeUnknown(made)) << made;
  for (const absl::Status& used :
       {number->status(), Fetch(*number).status(),
        rpc::Call(From(kA, kB), FetchIt, *number).status()}) {
    EXPECT_THAT(used, StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_TRUE(rpc::OutcomeUnknown(used)) << used;
  }
  may_go_on = true;
}

TEST_F(Scenario, HandleThatIsSharedIsAReference) {
  const auto handle = rpc::Make<Cell>(From(kA, kO), 10);
  ASSERT_THAT(handle.status(), IsOk());
  const RRef<Cell> cell = Share(ranks_[kA], *handle).value();
  EXPECT_THAT(rpc::Call(From(kA, kB), Use, cell), IsOkAndHolds(11));
}

TEST_F(Scenario, CreationsRefuseTargetsThatMayNameAnotherIncarnation) {
  const rpc::Target retried = From(kA, kO).WithRetry(rpc::RetryPolicy());
  EXPECT_THAT(BeginMake<Cell>(retried, 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "WithRetry()"));
  EXPECT_THAT(BeginMake<Cell>(From(kA, kO).Serialized(), 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "Serialized()"));
  EXPECT_THAT(BeginMake<Cell>(ranks_[kA].To("nobody"), 1).status(),
              StatusIs(absl::StatusCode::kNotFound, "nobody"));
}

TEST_F(Scenario, L_CreatorGivesUpBeforeItIsMade) {
  EXPECT_THAT(
      rref::Make<SlowCell>(From(kA, kO, absl::Milliseconds(30)), 1).status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
  may_go_on = true;  // it is made now, and freed
  // A second one that fails, too: the first does not change it.
  may_go_on = false;
  EXPECT_THAT(
      rref::Make<SlowCell>(From(kA, kO, absl::Milliseconds(30)), 1).status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(Scenario, M_CreationThrows) {
  EXPECT_THAT(rref::Make<BadCell>(From(kA, kO), 1).status(),
              StatusIs(absl::StatusCode::kInternal, "will not be made"));
}

TEST_F(Scenario, P_DeleteTwiceIsRefused) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  ASSERT_THAT(cell.Confirmed().Wait(kLong), IsOk());
  const Token& token = cell.reference()->token();
  const rpc::Worker stranger{"w2", ranks_[kB].key(), ""};
  EXPECT_THAT(references_[kO]->ServeDelete(stranger, token.object, token.fork),
              StatusIs(absl::StatusCode::kPermissionDenied, "is not held by"));
  EXPECT_THAT(Call(cell, &Cell::Add, 1), IsOkAndHolds(11));
}

TEST_F(Scenario, S_OneReferenceTwiceInAMessage) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(rpc::Call(From(kA, kB), UseAll,
                        std::map<std::string, std::vector<RRef<Cell>>>{
                            {"x", {cell, cell}}, {"y", {cell}}}),
              IsOkAndHolds(11 + 12 + 13));
}

TEST_F(Scenario, T_ReferenceInTheValueOfAReference) {
  RRef<Cell> outer = MakeAt(kO, kA);
  {
    const RRef<Cell> inner = MakeAt(kB, kA);
    ASSERT_THAT(Call(outer, &Cell::Put, inner), IsOk());
  }
  EXPECT_EQ(live, 2);
  EXPECT_THAT(rpc::Call(From(kA, kC), Use, outer), IsOkAndHolds(11));
  EXPECT_THAT(Call(outer, &Cell::AddToInner, 1), IsOkAndHolds(11));
  outer = RRef<Cell>();
  EXPECT_TRUE(Becomes([] { return live == 0; }));  // the inner one with it
}

TEST_F(Scenario, U_EncodingFailsAfterReferencesWereWritten) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(
      rpc::Call(From(kA, kB), UseWithUnfit, cell, cell, Unfit{true}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "is unfit"));
  EXPECT_EQ(references_[kA]->counts().open_children, 0);
  EXPECT_EQ(references_[kA]->counts().held, 1);
}

TEST_F(Scenario, V_DecodingFailsAfterReferencesWereTaken) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(
      rpc::Call(From(kA, kB), UseWithUnfit, cell, cell, Unfit{}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "cannot be read"));
  EXPECT_TRUE(Becomes([&] { return references_[kB]->counts().held == 0; }));
}

TEST_F(Scenario, W_SendFailsDefinitely) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(rpc::Call(ranks_[kA].To("nobody"), Use, cell).status(),
              StatusIs(absl::StatusCode::kNotFound, "nobody"));
  EXPECT_EQ(references_[kA]->counts().open_children, 0);
}

TEST_F(Scenario, X_OutcomeOfTheSendIsUnknown) {
  RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(
      rpc::Call(From(kA, kB, absl::Milliseconds(30)), UseLate, cell).status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
  cell = RRef<Cell>();
  // The function still has it.
  if (waiting > 0) {
    EXPECT_EQ(live, 1);
  }
  may_go_on = true;
}

TEST_F(Scenario, Y_WorkerPassesToItself) {
  RRef<Cell> own = MakeLocal(ranks_[kO], std::make_shared<Cell>(1)).value();
  EXPECT_THAT(rpc::Call(From(kO, kO), Use, own), IsOkAndHolds(2));
  RRef<Cell> far = MakeAt(kO, kA);
  Future<int64_t> used = rpc::CallAsync(From(kA, kA), Use, far);
  far = RRef<Cell>();
  EXPECT_THAT(used.Wait(kLong), IsOkAndHolds(11));
}

TEST_F(Scenario, Z_HandleIsDroppedInItsOwnCallbackAndByAnotherThread) {
  auto cell = std::make_shared<RRef<Cell>>(MakeAt(kO, kA));
  Future<int64_t> added = CallAsync(*cell, &Cell::Add, 1);
  std::atomic<bool> dropped{false};
  added.OnReady([cell, &dropped](const Result<int64_t>&) {
    *cell = RRef<Cell>();
    dropped = true;
  });
  EXPECT_TRUE(Becomes([&] { return dropped.load(); }));
  RRef<Cell> other = MakeAt(kO, kA);
  std::thread([moved = std::move(other)]() mutable {
    moved = RRef<Cell>();
  }).join();
}

}  // namespace
}  // namespace weft::rref
