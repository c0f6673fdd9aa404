// References at the edges of what rref/rref.h and docs/rref_protocol.md
// promise: to an object still being made, empty ones, those of another agent,
// those that were kept beyond their time.

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/catch_to_status.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/outcome.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {
namespace {

using ::testing::SizeIs;
using ::weft::testing::Becomes;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

std::atomic<int> live{0};
std::atomic<int> inside{0};  // functions that wait for the test
std::atomic<bool> may_go_on{false};

void WaitHere() {
  ++inside;
  EXPECT_TRUE(Becomes([] { return may_go_on.load(); }));
  --inside;
}

class Box {
 public:
  explicit Box(int64_t value) : value_(value) { ++live; }
  ~Box() { --live; }
  int64_t Add(int64_t n) { return value_ += n; }

 private:
  std::atomic<int64_t> value_;
};
WEFT_RPC_CLASS(Box, int64_t);
WEFT_RPC_METHOD(Box, Add);

class LateBox : public Box {
 public:
  explicit LateBox(int64_t value) : Box(value) { WaitHere(); }
  int64_t AddTo(int64_t n) { return Add(n); }
};
WEFT_RPC_CLASS(LateBox, int64_t);
WEFT_RPC_METHOD(LateBox, AddTo);

class NoBox {
 public:
  explicit NoBox(int64_t) {
    WaitHere();
    throw std::runtime_error("there is no wood");
  }
  int64_t Get() { return 0; }
};
WEFT_RPC_CLASS(NoBox, int64_t);
WEFT_RPC_METHOD(NoBox, Get);

int64_t LateNumber(int64_t x) {
  WaitHere();
  return x;
}
WEFT_RPC(LateNumber);

// Sums what it can, and reports each reference that it cannot use.
using Found = std::vector<std::string>;
std::string FoundOf(const absl::StatusOr<int64_t>& result) {
  return result.ok() ? absl::StrCat(*result)
                     : absl::StatusCodeToString(result.status().code());
}
Found UseEach(const std::vector<RRef<Box>>& list,
              const std::map<std::string, std::optional<RRef<Box>>>& named,
              const RRef<Box>& alone) {
  Found found;
  for (const RRef<Box>& box : list) {
    found.push_back(FoundOf(Call(box, &Box::Add, 1)));
  }
  for (const auto& [name, box] : named) {
    found.push_back(box.has_value() ? FoundOf(Call(*box, &Box::Add, 1))
                                    : "none");
  }
  found.push_back(FoundOf(Call(alone, &Box::Add, 1)));
  return found;
}
WEFT_RPC(UseEach);

std::vector<RRef<Box>> SendBack(const std::vector<RRef<Box>>& boxes) {
  return boxes;
}
WEFT_RPC(SendBack);

Found UseLateBox(const RRef<LateBox>& box) {
  return {FoundOf(Call(box, &LateBox::AddTo, 1))};
}
WEFT_RPC(UseLateBox);

std::string OutcomeOf(const RRef<NoBox>& box) {
  const absl::Status used = Call(box, &NoBox::Get).status();
  return absl::StrCat(absl::StatusCodeToString(used.code()),
                      rpc::OutcomeUnknown(used) ? " unknown" : " known");
}
WEFT_RPC(OutcomeOf);

bool IsMadeHere(const RRef<LateBox>& box) { return box.Local().ok(); }
WEFT_RPC(IsMadeHere);

class RRefEdges : public ::testing::Test {
 protected:
  RRefEdges() {
    may_go_on = false;
    for (int i = 0; i < 4; ++i) {
      references_.push_back(References::Open(ranks_[i]).value());
    }
  }
  ~RRefEdges() override {
    may_go_on = true;
    for (const auto& references : references_) {
      EXPECT_TRUE(Becomes([&] {
        const References::Counts c = references->counts();
        return references->is_closed() ||
               (c.held == 0 && c.open_children == 0 && c.owned == 0 &&
                c.waiting == 0 && c.creating == 0);
      })) << references->name()
          << ::testing::PrintToString(references->ExplainLeaks());
      if (!references->is_closed()) {
        EXPECT_THAT(references->Close(kLong), IsOk());
      }
    }
    EXPECT_TRUE(Becomes([] { return live == 0; })) << live;
  }
  rpc::Target From(int from, int to, absl::Duration timeout = kLong) {
    return ranks_[from].To(absl::StrCat("w", to), timeout);
  }
  RRef<Box> MakeAt(int owner, int creator) {
    return rref::Make<Box>(From(creator, owner), 10).value();
  }

  rpc::Ranks ranks_{4};
  std::vector<std::shared_ptr<References>> references_;
};

// ---- Empty ones.

TEST_F(RRefEdges, EmptyAndMovedFromOnesTravelBesideOthersAndFailAloneThere) {
  const RRef<Box> box = MakeAt(1, 0);
  RRef<Box> moved = box;
  const RRef<Box> taken = std::move(moved);
  const auto found = rpc::Call(
      From(0, 2), UseEach, std::vector<RRef<Box>>{RRef<Box>(), box, moved},
      std::map<std::string, std::optional<RRef<Box>>>{
          {"a", std::nullopt}, {"b", RRef<Box>()}, {"c", taken}},
      moved);
  EXPECT_THAT(found, IsOkAndHolds(Found{
                         "INVALID_ARGUMENT", "11", "INVALID_ARGUMENT", "none",
                         "INVALID_ARGUMENT", "12", "INVALID_ARGUMENT"}));
  const auto back =
      rpc::Call(From(0, 2), SendBack,
                std::vector<RRef<Box>>{moved, box, RRef<Box>(), taken});
  ASSERT_THAT(back, IsOk());
  ASSERT_THAT(*back, SizeIs(4));
  EXPECT_FALSE((*back)[0].has_value());
  EXPECT_FALSE((*back)[2].has_value());
  EXPECT_THAT(Call((*back)[1], &Box::Add, 1), IsOkAndHolds(13));
  EXPECT_THAT(Call((*back)[3], &Box::Add, 1), IsOkAndHolds(14));
}

TEST_F(RRefEdges, AssignmentOverAReferenceReleasesItAndEmptiesTheSource) {
  RRef<Box> one = MakeAt(1, 0);
  RRef<Box> two = MakeAt(1, 0);
  EXPECT_TRUE(Becomes([&] { return live == 2; }));
  one = std::move(two);
  EXPECT_TRUE(Becomes([] { return live == 1; }));
  EXPECT_FALSE(two.has_value());
  EXPECT_THAT(Call(two, &Box::Add, 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Call(one, &Box::Add, 1), IsOkAndHolds(11));
  one = RRef<Box>();
  EXPECT_TRUE(Becomes([] { return live == 0; }));
}

// ---- Objects still being made.

TEST_F(RRefEdges, ObjectStillBeingMadeAtHomeIsNotFoundUntilItIs) {
  const auto box = BeginMake<LateBox>(From(0, 0), 10);
  ASSERT_THAT(box, IsOk());
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  EXPECT_TRUE(box->is_owner());
  EXPECT_FALSE(box->Confirmed().IsReady());
  EXPECT_THAT(box->Local().status(), StatusIs(absl::StatusCode::kNotFound));
  const Future<int64_t> sum = CallAsync(*box, &LateBox::AddTo, 1);
  EXPECT_FALSE(sum.IsReady());
  may_go_on = true;
  EXPECT_THAT(sum.Wait(kLong), IsOkAndHolds(11));
  EXPECT_THAT(box->Confirmed().Wait(kLong), IsOk());
  EXPECT_THAT(box->Local(), IsOk());
}

// The call keeps the reference, and the waiting call keeps no other from the
// owner.
TEST_F(RRefEdges, CallOutlivesTheHandleOfAnObjectStillBeingMade) {
  Future<int64_t> sum = [&] {
    const auto box = BeginMake<LateBox>(From(0, 1), 10);
    return CallAsync(*box, &LateBox::AddTo, 5);
  }();
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  const RRef<Box> other = MakeAt(1, 0);
  EXPECT_THAT(Call(other, &Box::Add, 1), IsOkAndHolds(11));
  may_go_on = true;
  EXPECT_THAT(sum.Wait(kLong), IsOkAndHolds(15));
}

TEST_F(RRefEdges, CallGivenUpBeforeTheObjectIsMadeHarmsNoOtherCall) {
  const auto box = BeginMake<LateBox>(From(0, 1), 10);
  ASSERT_THAT(box, IsOk());
  const Future<int64_t> given_up = CallAsync(*box, &LateBox::AddTo, 100);
  const Future<int64_t> kept = CallAsync(*box, &LateBox::AddTo, 1);
  const Future<int64_t> late = CallAsync(
      box->WithTimeout(absl::Milliseconds(50)), &LateBox::AddTo, 1000);
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  given_up.Cancel();
  EXPECT_THAT(given_up.Wait(kLong).status(),
              StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(late.Wait(kLong).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(box->status(), IsOk());
  may_go_on = true;
  EXPECT_THAT(kept.Wait(kLong), IsOkAndHolds(11));
  EXPECT_THAT(Call(*box, &LateBox::AddTo, 1), IsOkAndHolds(12));
}

TEST_F(RRefEdges, ObjectStillBeingMadeIsUsedByManyWorkersAtOnce) {
  const auto box = BeginMake<LateBox>(From(0, 1), 0);
  ASSERT_THAT(box, IsOk());
  std::vector<Future<Found>> uses;
  for (int i = 0; i < 40; ++i) {
    uses.push_back(rpc::CallAsync(From(0, i % 4), UseLateBox, *box));
  }
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  may_go_on = true;
  for (const auto& use : uses) EXPECT_THAT(use.Wait(kLong), IsOk());
  EXPECT_THAT(Call(*box, &LateBox::AddTo, 0), IsOkAndHolds(40));
}

// At its creator a use ends with the error of the creation; elsewhere too, or
// with NOT_FOUND. The constructor was answered, so its outcome is known.
TEST_F(RRefEdges, UseOfAFailedCreationEndsAtEveryWorker) {
  const auto box = BeginMake<NoBox>(From(0, 1), 10);
  ASSERT_THAT(box, IsOk());
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  const Future<int64_t> before = CallAsync(*box, &NoBox::Get);
  const Future<std::string> passed =
      rpc::CallAsync(From(0, 2), OutcomeOf, *box);
  const Future<std::string> home = rpc::CallAsync(From(0, 1), OutcomeOf, *box);
  may_go_on = true;
  for (int i = 0; i < 2; ++i) {
    for (const absl::Status& used :
         {before.Wait(kLong).status(), Call(*box, &NoBox::Get).status(),
          box->Confirmed().Wait(kLong), box->status(),
          Call(box->WithTimeout(kLong), &NoBox::Get).status()}) {
      EXPECT_THAT(used,
                  StatusIs(absl::StatusCode::kInternal, "there is no wood"));
    }
    // The call that waited was given up on its way.
    for (const absl::Status& used :
         {Call(*box, &NoBox::Get).status(), box->Confirmed().Wait(kLong),
          box->status()}) {
      EXPECT_FALSE(rpc::OutcomeUnknown(used)) << used;
    }
  }
  for (const auto& elsewhere : {passed, home}) {
    const auto found = elsewhere.Wait(kLong);
    EXPECT_TRUE(elsewhere.IsReady());
    if (found.ok()) {
      EXPECT_THAT(*found,
                  ::testing::AnyOf("NOT_FOUND known", "INTERNAL known"));
    }
  }
}

TEST_F(RRefEdges, CreationThatWasNeverSentIsTheCallersErrorAndKnown) {
  const auto unknown = BeginMake<Box>(ranks_[0].To("nobody", kLong), 10);
  EXPECT_THAT(unknown.status(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_FALSE(rpc::OutcomeUnknown(unknown.status()));
  const auto negative =
      BeginMake<Box>(From(0, 1).WithTimeout(-absl::Seconds(1)), 10);
  EXPECT_FALSE(negative.ok());
  EXPECT_TRUE(rpc::IsLocal(negative.status())) << negative.status();
  EXPECT_FALSE(rpc::OutcomeUnknown(negative.status()));
  EXPECT_EQ(references_[0]->counts().creating, 0);
  EXPECT_EQ(live, 0);
}

// A creation whose deadline passed may have run, and each later use says so.
TEST_F(RRefEdges, CreationWhoseDeadlinePassedIsOfUnknownOutcomeAtEachUse) {
  MakeAt(1, 0);  // so that the next is sent at once
  const auto number = BeginRemote(From(0, 1, absl::Seconds(5)), LateNumber, 21);
  ASSERT_THAT(number, IsOk());
  const absl::Status made = number->Confirmed().Wait(kLong);
  EXPECT_THAT(made, StatusIs(absl::StatusCode::kDeadlineExceeded));
  for (const absl::Status& used :
       {made, Fetch(*number).status(), Fetch(*number).status(),
        FetchAsync(*number).Wait(kLong).status(), number->status()}) {
    EXPECT_THAT(used, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_TRUE(rpc::OutcomeUnknown(used)) << used;
  }
  may_go_on = true;
}

// ---- Time-outs.

TEST_F(RRefEdges, TimeoutsThatAreNoneFailTheirCallAlone) {
  const RRef<Box> box = MakeAt(1, 0);
  for (const absl::Duration bad :
       {-absl::Seconds(1), -absl::InfiniteDuration()}) {
    EXPECT_FALSE(Call(box.WithTimeout(bad), &Box::Add, 1).ok());
    EXPECT_FALSE(
        CallAsync(box.WithTimeout(bad), &Box::Add, 1).Wait(kLong).ok());
  }
  EXPECT_THAT(Call(box.WithTimeout(absl::InfiniteDuration()), &Box::Add, 1),
              IsOkAndHolds(11));
  const auto none = Call(box.WithTimeout(absl::ZeroDuration()), &Box::Add, 1);
  if (!none.ok()) {
    EXPECT_THAT(none.status(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
}

// ---- Another agent of the process.

int64_t UseOne(const RRef<Box>& box) { return Call(box, &Box::Add, 1).value(); }
WEFT_RPC(UseOne);

// A reference belongs to its agent; whoever has two of them in a process mixes
// them up one day.
TEST_F(RRefEdges, ReferenceOfAnotherAgentOfTheProcessIsRefusedOrUsedButSafe) {
  RRef<Box> box = MakeAt(1, 0);
  const auto sent = rpc::Call(From(2, 3), UseOne, box);
  if (sent.ok()) {
    EXPECT_EQ(*sent, 11);
  } else {
    EXPECT_FALSE(sent.status().message().empty());
  }
  const auto home = rpc::Call(From(2, 1), UseOne, box);
  EXPECT_EQ(home.ok(), sent.ok()) << home.status();
  EXPECT_THAT(Call(box, &Box::Add, 1), IsOk());
}

// ---- What has ended.

TEST_F(RRefEdges, ReferencesOfAClosedAgentFailInEveryUse) {
  RRef<Box> box = MakeAt(1, 0);
  const auto late = BeginMake<LateBox>(From(0, 1), 10);
  ASSERT_THAT(late, IsOk());
  EXPECT_TRUE(Becomes([] { return inside == 1; }));
  const Future<int64_t> waiting = CallAsync(*late, &LateBox::AddTo, 1);
  const auto handle = rpc::Make<Box>(From(0, 1), 10);
  ASSERT_THAT(handle, IsOk());
  may_go_on = true;
  EXPECT_THAT(references_[0]->Close(kLong), IsOk());
  EXPECT_TRUE(waiting.Wait(kLong).ok() || waiting.IsReady());
  const auto is_closed = StatusIs(absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(box.status(), is_closed);
  EXPECT_THAT(box.Local().status(), is_closed);
  EXPECT_THAT(Call(box, &Box::Add, 1).status(), is_closed);
  EXPECT_THAT(CallAsync(*late, &LateBox::AddTo, 1).Wait(kLong).status(),
              is_closed);
  EXPECT_THAT(rpc::Call(From(0, 2), UseOne, box).status(), is_closed);
  EXPECT_THAT(BeginMake<Box>(From(0, 1), 1).status(), is_closed);
  EXPECT_THAT(rref::Make<Box>(From(0, 1), 1).status(), is_closed);
  EXPECT_THAT(MakeLocal(ranks_[0], std::make_shared<Box>(1)).status(),
              is_closed);
  EXPECT_THAT(Share(ranks_[0], *handle).status(), is_closed);
  EXPECT_THAT(rpc::Release(*handle), IsOk());
  EXPECT_THAT(References::Open(ranks_[0]).status(), ::testing::Not(IsOk()));
  // A second Close does nothing.
  EXPECT_THAT(references_[0]->Close(kLong), IsOk());
}

// Only who was given a reference uses its object: an id is easily guessed.
TEST_F(RRefEdges, HandleOfAnIdThatWasNotGivenToThisWorkerIsRefused) {
  const RRef<Box> box = MakeAt(1, 0);
  const rpc::Handle<Box> guessed(From(2, 1), box.id());
  const auto used = rpc::Call(guessed, &Box::Add, 100);
  EXPECT_FALSE(used.ok());
  EXPECT_FALSE(rpc::Release(guessed).ok());
  const auto shared = Share(ranks_[2], guessed);
  if (shared.ok()) {
    EXPECT_FALSE(Call(*shared, &Box::Add, 100).ok());
  }
  EXPECT_THAT(Call(box, &Box::Add, 1), IsOkAndHolds(11));
}

TEST_F(RRefEdges, HandleIsSharedOnce) {
  const auto handle = rpc::Make<Box>(From(0, 1), 10);
  ASSERT_THAT(handle, IsOk());
  const auto one = Share(ranks_[0], *handle);
  ASSERT_THAT(one, IsOk());
  const auto two = Share(ranks_[0], *handle);
  EXPECT_THAT(Call(*one, &Box::Add, 1), IsOkAndHolds(11));
  if (two.ok()) {
    EXPECT_FALSE(two->Confirmed().Wait(kLong).ok());
    EXPECT_FALSE(Call(*two, &Box::Add, 1).ok());
  }
  EXPECT_THAT(one->Confirmed().Wait(kLong), IsOk());
  EXPECT_THAT(Call(*one, &Box::Add, 1), IsOkAndHolds(12));
}

// ---- Nothing to keep.

// A peer that fetched it would end the process.
TEST_F(RRefEdges, NullIsNoObject) {
  EXPECT_THAT(MakeLocal(ranks_[0], std::shared_ptr<int64_t>()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(MakeLocal(ranks_[0], std::shared_ptr<Box>()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace weft::rref
