// The scenarios of the reference protocol in which workers die, close or lie.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/retry_policy.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/rref/scenario.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

RRef<Cell> GiveNothing(const RRef<Cell>&) { return RRef<Cell>(); }
WEFT_RPC(GiveNothing);
// Whatever a function asks of it.
std::string NameOfOwner(const RRef<Cell>& cell) { return cell.owner().name(); }
WEFT_RPC(NameOfOwner);

TEST_F(Scenario, AA_UserDies) {
  RRef<Cell> cell = MakeAt(kO, kA);
  Future<int64_t> used = rpc::CallAsync(From(kA, kB), UseLate, cell);
  EXPECT_TRUE(Becomes([] { return waiting == 1; }));
  cell = RRef<Cell>();
  // A's, too, until the call through which it was passed on has ended.
  EXPECT_EQ(Holders(kO), 2);
  // All others learn of the end of B.
  for (const int worker : {kO, kA, kC}) {
    ranks_[worker].PeerGone(ranks_[kB].key(), "killed");
  }
  EXPECT_THAT(used.Wait(kLong).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(Becomes([] { return live == 0; }));
  // What B believes does not matter; here it learns of the ends of the others.
  for (const int worker : {kO, kA, kC}) {
    ranks_[kB].PeerGone(ranks_[worker].key(), "killed");
  }
  may_go_on = true;
}

TEST_F(Scenario, AC_OwnerDies) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  ASSERT_THAT(cell.Confirmed().Wait(kLong), IsOk());
  for (const int worker : {kA, kB, kC}) {
    ranks_[worker].PeerGone(ranks_[kO].key(), "killed");
    ranks_[kO].PeerGone(ranks_[worker].key(), "killed");
  }
  EXPECT_THAT(Call(cell, &Cell::Add, 1).status(),
              StatusIs(absl::StatusCode::kUnavailable, "w0"));
  EXPECT_THAT(cell.status(), StatusIs(absl::StatusCode::kUnavailable));
  // A token of the dead incarnation does not travel any more.
  EXPECT_THAT(rpc::Call(From(kA, kB), Use, cell).status(),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(Scenario, AH_CloseWithLiveHandlesOnAll) {
  std::vector<RRef<Cell>> cells;
  for (int owner = 0; owner < 4; ++owner) {
    for (int creator = 0; creator < 4; ++creator) {
      cells.push_back(MakeAt(owner, creator));
    }
  }
  for (const auto& references : references_)
    EXPECT_THAT(references->Close(kLong), IsOk());
  EXPECT_EQ(live, 0);
  for (const RRef<Cell>& cell : cells) {
    EXPECT_THAT(Call(cell, &Cell::Add, 1).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
}

TEST_F(Scenario, AI_CloseWhileAWorkerIsDead) {
  const RRef<Cell> dead = MakeAt(kB, kA);
  const RRef<Cell> cell = MakeAt(kO, kA);
  for (const int worker : {kO, kA, kC}) {
    ranks_[worker].PeerGone(ranks_[kB].key(), "killed");
    ranks_[kB].PeerGone(ranks_[worker].key(), "killed");
  }
  EXPECT_THAT(references_[kA]->Close(kLong), IsOk());
}

TEST_F(Scenario, AJ_CycleOfReferencesEndsWithClose) {
  {
    const RRef<Cell> a = MakeAt(kO, kA);
    const RRef<Cell> b = MakeAt(kB, kA);
    ASSERT_THAT(Call(a, &Cell::Put, b), IsOk());
    ASSERT_THAT(Call(b, &Cell::Put, a), IsOk());
  }
  // The two objects are not collected, since each holds the other.
  EXPECT_TRUE(Becomes([&] { return references_[kA]->counts().held == 0; }));
  EXPECT_EQ(live, 2);
  EXPECT_THAT(::testing::PrintToString(references_[kO]->ExplainLeaks()),
              HasSubstr("w2"));
  EXPECT_THAT(references_[kO]->Close(kLong), IsOk());
  EXPECT_THAT(references_[kB]->Close(kLong), IsOk());
}

TEST_F(Scenario, AM_FetchOfAValueThatIsNeverReady) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  const auto late = rpc::CallAsync(
      cell.handle(cell.owner().WithTimeout(absl::Milliseconds(30))),
      &Cell::AddLate, 1);
  EXPECT_THAT(late.Wait(kLong).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  may_go_on = true;
}

TEST_F(Scenario, AN_TenThousandFromSixteenThreads) {
  std::vector<std::thread> threads;
  std::atomic<int64_t> sum{0};
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 625; ++i) {
        const RRef<Cell> cell = MakeAt((t + i) % 4, t % 4);
        if (i % 8 == 0)
          sum += rpc::Call(From(t % 4, (t + 1) % 4), Use, cell).value() - 10;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 16 * 79);
}

TEST_F(Scenario, AO_OneThreadDropsWhileAnotherPassesOn) {
  for (int i = 0; i < 200; ++i) {
    RRef<Cell> cell = MakeAt(kO, kA);
    std::thread dropping([copy = cell]() mutable { copy = RRef<Cell>(); });
    Future<int64_t> used = rpc::CallAsync(From(kA, kB), Use, cell);
    cell = RRef<Cell>();
    EXPECT_THAT(used.Wait(kLong), IsOkAndHolds(11));
    dropping.join();
  }
}

// ------------------------------------------------------------ hostile peers

// Messages with a token of the test's making.
class Forger {
 public:
  explicit Forger(const std::shared_ptr<References>& references)
      : references_(references) {}
  absl::Status Register(const rpc::Worker& from, const Token& token) const {
    return references_->ServeRegister(from, token).Wait(kLong);
  }

 private:
  const std::shared_ptr<References> references_;
};

TEST_F(Scenario, ForgedAndRepeatedForksAreRefused) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  ASSERT_THAT(cell.Confirmed().Wait(kLong), IsOk());
  const Forger forger(references_[kO]);
  const rpc::Worker b{"w2", ranks_[kB].key(), ""};
  Token token = cell.reference()->token();
  // A fork that exists.
  EXPECT_THAT(forger.Register(b, token),
              StatusIs(absl::StatusCode::kAlreadyExists, "registered"));
  // A registration without the secret.
  token.fork = {ranks_[kB].key(), 77};
  ++token.secret;
  EXPECT_THAT(forger.Register(b, token),
              StatusIs(absl::StatusCode::kPermissionDenied, "secret"));
  // A token for an object that was never made, and one for an object of a later
  // incarnation.
  --token.secret;
  token.object.call += 1000;
  EXPECT_THAT(forger.Register(b, token),
              StatusIs(absl::StatusCode::kNotFound, token.object.ToString()));
  token.fork.number = 0;
  EXPECT_THAT(forger.Register(b, token),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(Holders(kO), 1);
}

TEST_F(Scenario, CallThatWaitsForTheObjectOfAnotherCreatorIsRefused) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  const rpc::Target o = From(kB, kO).WithAttachment(
      References::kAwaitKind, [id = cell.id()](const rpc::CodecContext&) {
        return References::AwaitObject(id);
      });
  EXPECT_THAT(rpc::Call(o, Double, 1).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, "w0"));
  const rpc::ObjectId never{ranks_[kO].key(), ranks_[kB].key(), 12345};
  const rpc::Target waits =
      From(kB, kO, absl::Milliseconds(50))
          .WithAttachment(References::kAwaitKind,
                          [never](const rpc::CodecContext&) {
                            return References::AwaitObject(never);
                          });
  EXPECT_THAT(rpc::Call(waits, Double, 1).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(Scenario, FetchOfAFreedValueNamesWorkerAndObject) {
  const auto number = rref::Remote(From(kA, kO), Double, 21);
  ASSERT_THAT(number.status(), IsOk());
  ASSERT_THAT(number->Confirmed().Wait(kLong), IsOk());
  // Released by a program that has kept the handle, which is void then.
  ASSERT_THAT(rpc::Release(number->handle(number->owner())), IsOk());
  const absl::Status status = Fetch(*number).status();
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kNotFound, number->id().ToString()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("w0"));
}

TEST_F(Scenario, EmptyReferencesAreRefusedWhereverAnObjectIsWanted) {
  RRef<Cell> moved = MakeAt(kO, kA);
  const RRef<Cell> taken = std::move(moved);
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, "empty RRef");
  for (const RRef<Cell>& empty :
       {RRef<Cell>(), moved,
        rpc::Call(From(kA, kB), GiveNothing, RRef<Cell>()).value()}) {
    EXPECT_FALSE(empty.has_value());
    EXPECT_FALSE(empty.is_owner());
    EXPECT_THAT(empty.status(), refused);
    EXPECT_THAT(empty.Confirmed().Wait(kLong), refused);
    EXPECT_THAT(empty.Local().status(), refused);
    EXPECT_THAT(Call(empty, &Cell::Add, 1).status(), refused);
    EXPECT_THAT(CallAsync(empty, &Cell::Add, 1).Wait(kLong).status(), refused);
    EXPECT_THAT(rpc::Call(From(kA, kB), Use, empty).status(),
                StatusIs(absl::StatusCode::kInternal));
    // WithTimeout and the like cannot return an error, so the function that
    // called them fails.
    EXPECT_THAT(rpc::Call(From(kA, kB), NameOfOwner, empty).status(), refused);
    EXPECT_THAT(CatchToStatus([&] { (void)empty.WithTimeout(kLong); }),
                refused);
  }
  EXPECT_THAT(Fetch(RRef<int64_t>()).status(), refused);
  EXPECT_THAT(FetchAsync(RRef<int64_t>()).Wait(kLong).status(), refused);
}

TEST_F(Scenario, TimeoutOfAReferenceIsThatOfItsCalls) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  const RRef<Cell> hasty = cell.WithTimeout(absl::Milliseconds(30));
  EXPECT_EQ(hasty.owner().timeout(), absl::Milliseconds(30));
  EXPECT_THAT(Call(hasty, &Cell::AddLate, 1).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(CallAsync(hasty, &Cell::AddLate, 1).Wait(kLong).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  const auto number = BeginRemote(From(kA, kO), SlowDouble, 21);
  EXPECT_THAT(Fetch(number->WithTimeout(absl::Milliseconds(30))).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(cell.owner().timeout(), From(kA, kO).timeout());
  may_go_on = true;
}

TEST_F(Scenario, CallsByWithRetryRefuseReferences) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(
      rpc::Call(From(kA, kB).WithRetry(rpc::RetryPolicy()), Use, cell).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, "WithRetry()"));
  EXPECT_EQ(references_[kA]->counts().open_children, 0);
}

TEST(ScenarioSessions, AK_SecondAgentOfAProcessBeginsEmpty) {
  for (int session = 0; session < 2; ++session) {
    rpc::Ranks ranks(2);
    auto zero = References::Open(ranks[0]).value();
    auto one = References::Open(ranks[1]).value();
    {
      const RRef<Cell> cell = rref::Make<Cell>(ranks[1].To("w0"), 1).value();
      EXPECT_THAT(Call(cell, &Cell::Add, 1), IsOkAndHolds(2));
      EXPECT_EQ(cell.id().call, 1u);
    }
    EXPECT_TRUE(Becomes([&] { return zero->counts().owned == 0; }));
    EXPECT_THAT(one->Close(kLong), IsOk());
    EXPECT_THAT(zero->Close(kLong), IsOk());
  }
  EXPECT_EQ(live, 0);
}

}  // namespace
}  // namespace weft::rref
