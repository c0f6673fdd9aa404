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
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/mutex.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/rpc/session/retry_policy.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {

// An argument that cannot be written, or not read.
struct Unfit {
  bool at_sender = false;
};

}  // namespace weft::rref

namespace weft::rpc {

template <>
struct Codec<rref::Unfit> {
  static std::string TypeName() { return "test.Unfit"; }
  static void Encode(const rref::Unfit& unfit, Encoder& e) {
    if (unfit.at_sender) e.Fail(absl::InvalidArgumentError("is unfit"));
    e.Write(true);
  }
  static absl::Status Decode(Decoder&, rref::Unfit&) {
    return Decoder::Malformed("cannot be read");
  }
};

}  // namespace weft::rpc

namespace weft::rref {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int kO = 0, kA = 1, kB = 2, kC = 3;

std::atomic<int> live{0};
std::atomic<int> waiting{0};
std::atomic<bool> may_go_on{false};

// Until the test says so.
void WaitHere() {
  ++waiting;
  EXPECT_TRUE(Becomes([] { return may_go_on.load(); }));
  --waiting;
}

class Cell {
 public:
  explicit Cell(int64_t value) : value_(value) { ++live; }
  ~Cell() { --live; }
  int64_t Add(int64_t n) { return value_ += n; }
  int64_t AddLate(int64_t n) {
    WaitHere();
    return value_ += n;
  }
  // The cell's value is a reference, too.
  void Put(const RRef<Cell>& inner) { inner_ = inner; }
  int64_t AddToInner(int64_t n) { return Call(inner_, &Cell::Add, n).value(); }

 private:
  std::atomic<int64_t> value_;
  RRef<Cell> inner_;
};
WEFT_RPC_CLASS(Cell, int64_t);
WEFT_RPC_METHOD(Cell, Add);
WEFT_RPC_METHOD(Cell, AddLate);
WEFT_RPC_METHOD(Cell, Put);
WEFT_RPC_METHOD(Cell, AddToInner);

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

int64_t Double(int64_t x) { return 2 * x; }
WEFT_RPC(Double);
int64_t SlowDouble(int64_t x) {
  WaitHere();
  return 2 * x;
}
WEFT_RPC(SlowDouble);
int64_t DoubleOnceGivenUp(rpc::CallContext& call, int64_t x) {
  EXPECT_TRUE(Becomes([&call] { return call.cancel().IsCancelled(); }));
  return 2 * x;
}
WEFT_RPC(DoubleOnceGivenUp);
int64_t FetchIt(const RRef<int64_t>& number) { return Fetch(number).value(); }
WEFT_RPC(FetchIt);
int64_t Use(const RRef<Cell>& cell) {
  return Call(cell, &Cell::Add, 1).value();
}
WEFT_RPC(Use);
int64_t UseLate(const RRef<Cell>& cell) {
  WaitHere();
  return Call(cell, &Cell::Add, 1).value();
}
WEFT_RPC(UseLate);
bool IsMine(const RRef<Cell>& cell) {
  return cell.is_owner() && cell.Local().ok();
}
WEFT_RPC(IsMine);
RRef<Cell> GiveBack(const RRef<Cell>& cell) { return cell; }
WEFT_RPC(GiveBack);
RRef<Cell> MakeHere(rpc::CallContext& context, int64_t value) {
  return MakeLocal(context.agent(), std::make_shared<Cell>(value)).value();
}
WEFT_RPC(MakeHere);
// Uses the reference at the end of a chain of workers.
int64_t PassOn(rpc::CallContext& context, const RRef<Cell>& cell,
               const std::vector<std::string>& names) {
  if (names.empty()) return Use(cell);
  const std::vector<std::string> rest(names.begin() + 1, names.end());
  return rpc::Call(context.To(names[0]), PassOn, cell, rest).value();
}
WEFT_RPC(PassOn);
int64_t UseAll(const std::map<std::string, std::vector<RRef<Cell>>>& all) {
  int64_t sum = 0;
  for (const auto& [name, cells] : all) {
    for (const RRef<Cell>& cell : cells) sum += Use(cell);
  }
  return sum;
}
WEFT_RPC(UseAll);
int64_t UseWithUnfit(const RRef<Cell>& a, const RRef<Cell>& b, const Unfit&) {
  return Use(a) + Use(b);
}
WEFT_RPC(UseWithUnfit);

RRef<Cell> GiveNothing(const RRef<Cell>&) { return RRef<Cell>(); }
WEFT_RPC(GiveNothing);
// Whatever a function asks of it.
std::string NameOfOwner(const RRef<Cell>& cell) { return cell.owner().name(); }
WEFT_RPC(NameOfOwner);

class Scenario : public ::testing::Test {
 protected:
  Scenario() {
    may_go_on = false;
    for (int i = 0; i < 4; ++i) {
      books_.push_back(References::Open(ranks_[i]).value());
    }
  }
  ~Scenario() override {
    may_go_on = true;
    for (int i = 0; i < 4; ++i) {
      EXPECT_TRUE(Becomes([&] { return IsEmpty(i); }))
          << "w" << i << " still has: "
          << ::testing::PrintToString(books_[i]->ExplainLeaks());
    }
    EXPECT_TRUE(Becomes([] { return live == 0; })) << live;
    for (const auto& books : books_) EXPECT_THAT(books->Close(kLong), IsOk());
  }
  bool IsEmpty(int rank) const {
    const References::Counts c = books_[rank]->counts();
    return c.held == 0 && c.open_children == 0 && c.owned == 0 &&
           c.waiting == 0 && c.creating == 0 &&
           ranks_.size_of_objects(rank) == 0;
  }
  rpc::Target From(int from, int to, absl::Duration timeout = kLong) {
    return ranks_[from].To(absl::StrCat("w", to), timeout);
  }
  RRef<Cell> MakeAt(int owner, int creator) {
    return rref::Make<Cell>(From(creator, owner), 10).value();
  }
  // The counts of the owner once nobody moves.
  int64_t Holders(int owner) const {
    return static_cast<int64_t>(books_[owner]->Holdings().size());
  }

  class CountedRanks : public rpc::Ranks {
   public:
    using rpc::Ranks::Ranks;
    int64_t size_of_objects(int rank) const {
      return const_cast<CountedRanks&>(*this)[rank].objects().size();
    }
  };
  CountedRanks ranks_{4};
  std::vector<std::shared_ptr<References>> books_;
};

TEST_F(Scenario, A_UserCreatesFetchesAndDrops) {
  const auto number = rref::Remote(From(kA, kO), Double, 21);
  ASSERT_THAT(number.status(), IsOk());
  EXPECT_THAT(Fetch(*number), IsOkAndHolds(42));
  // The owner serves it before its own account of the creation is done.
  EXPECT_TRUE(Becomes([&] { return books_[kO]->counts().owned == 1; }));
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
  EXPECT_EQ(books_[kO]->counts().owned, 1);
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
  EXPECT_TRUE(Becomes([&] { return books_[kA]->counts().open_children == 0; }));
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
  EXPECT_TRUE(Becomes([&] { return books_[kO]->counts().waiting >= 2; }));
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
  EXPECT_TRUE(Becomes([&] { return books_[kO]->counts().waiting == 1; }));
  may_go_on = true;
  EXPECT_THAT(used.Wait(kLong), IsOkAndHolds(42));
}

TEST_F(Scenario, L_ReferenceIsDroppedBeforeItsObjectIsMade) {
  {
    const auto cell = BeginMake<SlowCell>(From(kA, kO), 1);
    ASSERT_THAT(cell.status(), IsOk());
    EXPECT_TRUE(Becomes([] { return waiting == 1; }));
  }
  EXPECT_EQ(books_[kA]->counts().held, 1);  // until its creation has ended
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

// Not only the call that made it: the caller must know that it may have run.
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
  EXPECT_THAT(books_[kO]->ServeDelete(stranger, token.object, token.fork),
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
  EXPECT_EQ(books_[kA]->counts().open_children, 0);
  EXPECT_EQ(books_[kA]->counts().held, 1);
}

TEST_F(Scenario, V_DecodingFailsAfterReferencesWereTaken) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(
      rpc::Call(From(kA, kB), UseWithUnfit, cell, cell, Unfit{}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, "cannot be read"));
  EXPECT_TRUE(Becomes([&] { return books_[kB]->counts().held == 0; }));
}

TEST_F(Scenario, W_SendFailsDefinitely) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  EXPECT_THAT(rpc::Call(ranks_[kA].To("nobody"), Use, cell).status(),
              StatusIs(absl::StatusCode::kNotFound, "nobody"));
  EXPECT_EQ(books_[kA]->counts().open_children, 0);
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
  for (const auto& books : books_) EXPECT_THAT(books->Close(kLong), IsOk());
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
  EXPECT_THAT(books_[kA]->Close(kLong), IsOk());
}

TEST_F(Scenario, AJ_CycleOfReferencesEndsWithClose) {
  {
    const RRef<Cell> a = MakeAt(kO, kA);
    const RRef<Cell> b = MakeAt(kB, kA);
    ASSERT_THAT(Call(a, &Cell::Put, b), IsOk());
    ASSERT_THAT(Call(b, &Cell::Put, a), IsOk());
  }
  // Not collected: each is held by the other.
  EXPECT_TRUE(Becomes([&] { return books_[kA]->counts().held == 0; }));
  EXPECT_EQ(live, 2);
  EXPECT_THAT(::testing::PrintToString(books_[kO]->ExplainLeaks()),
              HasSubstr("w2"));
  EXPECT_THAT(books_[kO]->Close(kLong), IsOk());
  EXPECT_THAT(books_[kB]->Close(kLong), IsOk());
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
  explicit Forger(const std::shared_ptr<References>& books) : books_(books) {}
  absl::Status Register(const rpc::Worker& from, const Token& token) const {
    return books_->ServeRegister(from, token).Wait(kLong);
  }

 private:
  const std::shared_ptr<References> books_;
};

TEST_F(Scenario, ForgedAndRepeatedForksAreRefused) {
  const RRef<Cell> cell = MakeAt(kO, kA);
  ASSERT_THAT(cell.Confirmed().Wait(kLong), IsOk());
  const Forger forger(books_[kO]);
  const rpc::Worker b{"w2", ranks_[kB].key(), ""};
  Token token = cell.reference()->token();
  // A fork that exists.
  EXPECT_THAT(forger.Register(b, token),
              StatusIs(absl::StatusCode::kAlreadyExists, "registered"));
  // Without the secret.
  token.fork = {ranks_[kB].key(), 77};
  ++token.secret;
  EXPECT_THAT(forger.Register(b, token),
              StatusIs(absl::StatusCode::kPermissionDenied, "secret"));
  // Of an object that was never made, and of one of an incarnation to come.
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
  // By a program that has kept the handle, which is void.
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
    // Of what cannot return an error, the function that asked fails.
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
  EXPECT_EQ(books_[kA]->counts().open_children, 0);
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
