#include "weft/rref/rref.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/session/retry_policy.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

std::atomic<int> live_counters{0};

class Counter {
 public:
  explicit Counter(int64_t start) : value_(start) { ++live_counters; }
  ~Counter() { --live_counters; }
  int64_t Add(int64_t n) { return value_ += n; }

 private:
  int64_t value_;
};
WEFT_RPC_CLASS(Counter, int64_t);
WEFT_RPC_METHOD(Counter, Add);

int64_t AddThrough(const RRef<Counter>& counter, int64_t n) {
  return Call(counter, &Counter::Add, n).value();
}
WEFT_RPC(AddThrough);

// Passes its argument on to `name`.
int64_t PassOn(rpc::CallContext& context, const RRef<Counter>& counter,
               const std::string& name) {
  return rpc::Call(context.To(name), AddThrough, counter, 1).value();
}
WEFT_RPC(PassOn);

RRef<Counter> GiveBack(const RRef<Counter>& counter) { return counter; }
WEFT_RPC(GiveBack);

std::vector<RRef<Counter>> kept;
void KeepIt(const RRef<Counter>& counter) { kept.push_back(counter); }
WEFT_RPC(KeepIt);

int64_t CountAll(const std::map<std::string, std::vector<RRef<Counter>>>& all) {
  int64_t sum = 0;
  for (const auto& [name, refs] : all) {
    for (const RRef<Counter>& ref : refs) {
      if (ref.has_value()) sum += Call(ref, &Counter::Add, 0).value();
    }
  }
  return sum;
}
WEFT_RPC(CountAll);

int64_t Double(int64_t x) { return 2 * x; }
WEFT_RPC(Double);

bool HasLocal(const RRef<Counter>& counter) { return counter.Local().ok(); }
WEFT_RPC(HasLocal);

// Three workers; w0 mostly owns.
class RRefTest : public ::testing::Test {
 protected:
  RRefTest() {
    kept.clear();
    for (int i = 0; i < 3; ++i) {
      references_.push_back(References::Open(ranks_[i]).value());
    }
  }
  ~RRefTest() override {
    kept.clear();
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(testing::Becomes([&] { return IsEmpty(i); }))
          << "w" << i << " still has references";
    }
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
    // An object is destroyed after its owner's table has given it up.
    EXPECT_TRUE(testing::Becomes([] { return live_counters == 0; }));
  }
  bool IsEmpty(int rank) const {
    const References::Counts c = references_[rank]->counts();
    return c.held == 0 && c.open_children == 0 && c.owned == 0 &&
           c.waiting == 0;
  }
  RRef<Counter> MakeAt(int owner, int creator = 1) {
    return rref::Make<Counter>(ranks_[creator].To(absl::StrCat("w", owner)), 10)
        .value();
  }

  rpc::Ranks ranks_{3};
  std::vector<std::shared_ptr<References>> references_;
};

TEST_F(RRefTest, ObjectIsUsedAndEndsWithItsLastCopy) {
  RRef<Counter> ref = MakeAt(0);
  RRef<Counter> copy = ref;
  EXPECT_EQ(Call(ref, &Counter::Add, 1).value(), 11);
  ref = RRef<Counter>();
  EXPECT_EQ(Call(copy, &Counter::Add, 1).value(), 12);
  EXPECT_EQ(live_counters, 1);
  copy = RRef<Counter>();
  EXPECT_TRUE(testing::Becomes([] { return live_counters == 0; }));
}

TEST_F(RRefTest, ThirdWorkerUsesAReferenceThatWasPassedToIt) {
  const RRef<Counter> ref = MakeAt(0);
  const auto sum = rpc::Call(ranks_[1].To("w2"), AddThrough, ref, 5);
  ASSERT_THAT(sum.status(), IsOk());
  EXPECT_EQ(*sum, 15);
}

TEST_F(RRefTest, MakerMayDropItsOwnBeforeTheCallIsDelivered) {
  RRef<Counter> ref = MakeAt(0);
  Future<int64_t> sum = rpc::CallAsync(ranks_[1].To("w2"), AddThrough, ref, 5);
  ref = RRef<Counter>();
  EXPECT_EQ(sum.Wait(absl::Seconds(30)).value(), 15);
}

TEST_F(RRefTest, ReferencePassesAlongAChainOfWorkers) {
  const RRef<Counter> ref = MakeAt(2);
  const auto sum = rpc::Call(ranks_[1].To("w0"), PassOn, ref, "w1");
  ASSERT_THAT(sum.status(), IsOk());
  EXPECT_EQ(*sum, 11);
}

TEST_F(RRefTest, ResultReferenceIsTheCallers) {
  RRef<Counter> ref = MakeAt(0);
  RRef<Counter> back = rpc::Call(ranks_[1].To("w2"), GiveBack, ref).value();
  ref = RRef<Counter>();
  EXPECT_EQ(Call(back, &Counter::Add, 1).value(), 11);
}

TEST_F(RRefTest, OwnerGetsItsOwnObjectBack) {
  const RRef<Counter> ref = MakeAt(0);
  EXPECT_THAT(ref.Local().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "is at w0"));
  EXPECT_TRUE(rpc::Call(ranks_[1].To("w0"), HasLocal, ref).value());
}

TEST_F(RRefTest, OwnerSharesItsOwnObject) {
  RRef<Counter> ref =
      MakeLocal(ranks_[0], std::make_shared<Counter>(7)).value();
  EXPECT_TRUE(ref.is_owner());
  EXPECT_TRUE(ref.Local().ok());
  EXPECT_EQ(rpc::Call(ranks_[0].To("w1"), AddThrough, ref, 1).value(), 8);
  ASSERT_THAT(rpc::Call(ranks_[0].To("w2"), KeepIt, ref), IsOk());
  ref = RRef<Counter>();
  EXPECT_EQ(live_counters, 1);  // w2 holds it
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(Call(kept[0], &Counter::Add, 1).value(), 9);
}

TEST_F(RRefTest, HolderKeepsTheObjectAfterItsMakerDroppedIt) {
  RRef<Counter> ref = MakeAt(0);
  ASSERT_THAT(rpc::Call(ranks_[1].To("w2"), KeepIt, ref), IsOk());
  ref = RRef<Counter>();
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(Call(kept[0], &Counter::Add, 1).value(), 11);
  ASSERT_TRUE(
      testing::Becomes([&] { return references_[0]->Holdings().size() == 1; }));
  EXPECT_EQ(references_[0]->Holdings()[0].holder, "w2");
}

TEST_F(RRefTest, ContainersCarrySeveralAndEmptyReferences) {
  const RRef<Counter> a = MakeAt(0);
  const RRef<Counter> b = MakeAt(2);
  const std::map<std::string, std::vector<RRef<Counter>>> all = {
      {"x", {a, a}}, {"y", {b, RRef<Counter>()}}};
  EXPECT_EQ(rpc::Call(ranks_[1].To("w0"), CountAll, all).value(), 30);
}

TEST_F(RRefTest, FetchCopiesTheResultOfARemoteCall) {
  const auto ref = rref::Remote(ranks_[1].To("w0"), Double, 21);
  ASSERT_THAT(ref.status(), IsOk());
  EXPECT_EQ(Fetch(*ref).value(), 42);
  EXPECT_EQ(Fetch(*ref).value(), 42);
}

TEST_F(RRefTest, OwnersEndFailsItsReferences) {
  const RRef<Counter> ref = MakeAt(0);
  ASSERT_THAT(ref.Confirmed().Wait(absl::Seconds(30)), IsOk());
  ranks_[1].PeerGone({0, 1}, "killed");
  EXPECT_THAT(Call(ref, &Counter::Add, 1).status(),
              StatusIs(absl::StatusCode::kUnavailable));
  ranks_[0].PeerGone({1, 1}, "killed");
}

TEST_F(RRefTest, HoldersEndReleasesItsReferences) {
  {
    const RRef<Counter> ref = MakeAt(0);
    ASSERT_THAT(rpc::Call(ranks_[1].To("w2"), KeepIt, ref), IsOk());
  }
  ASSERT_TRUE(
      testing::Becomes([&] { return references_[0]->Holdings().size() == 1; }));
  EXPECT_EQ(live_counters, 1);
  ranks_[0].PeerGone({2, 1}, "killed");
  EXPECT_TRUE(testing::Becomes([] { return live_counters == 0; }));
  ranks_[2].PeerGone({0, 1}, "killed");
}

TEST_F(RRefTest, CallsThatCannotCarryAReferenceSayWhy) {
  const RRef<Counter> ref = MakeAt(0);
  EXPECT_THAT(rpc::Call(ranks_[1].To("w2").WithRetry(rpc::RetryPolicy()),
                        AddThrough, ref, 1)
                  .status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, "WithRetry"));
}

TEST_F(RRefTest, WorkerPassesReferencesToItself) {
  // Its own object, and one of another worker; as arguments and results.
  RRef<Counter> own =
      MakeLocal(ranks_[1], std::make_shared<Counter>(7)).value();
  RRef<Counter> made = MakeAt(1);
  RRef<Counter> far = MakeAt(0);
  for (RRef<Counter>* ref : {&own, &made, &far}) {
    const int64_t before = Call(*ref, &Counter::Add, 0).value();
    EXPECT_EQ(rpc::Call(ranks_[1].To("w1"), AddThrough, *ref, 1).value(),
              before + 1);
    RRef<Counter> back = rpc::Call(ranks_[1].To("w1"), GiveBack, *ref).value();
    *ref = RRef<Counter>();
    EXPECT_EQ(Call(back, &Counter::Add, 1).value(), before + 2);
    ASSERT_THAT(rpc::Call(ranks_[1].To("w1"), KeepIt, back), IsOk());
  }
  EXPECT_TRUE(testing::Becomes([] { return live_counters == 3; }));
  kept.clear();
  EXPECT_TRUE(testing::Becomes([] { return live_counters == 0; }));
}

TEST_F(RRefTest, EmptyReferenceIsRefusedAtTheCaller) {
  EXPECT_THAT(Call(RRef<Counter>(), &Counter::Add, 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "empty RRef"));
}

TEST(References, AgentWithoutReferencesNamesTheMissingCall) {
  rpc::Ranks ranks(2);
  EXPECT_THAT(
      rref::Make<Counter>(ranks[1].To("w0"), 1).status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, "References::Open"));
}

TEST(References, PeerWithoutReferencesRefusesTheReference) {
  rpc::Ranks ranks(3);
  auto zero = References::Open(ranks[0]).value();
  auto one = References::Open(ranks[1]).value();
  {
    const RRef<Counter> ref = rref::Make<Counter>(ranks[1].To("w0"), 1).value();
    EXPECT_THAT(rpc::Call(ranks[1].To("w2"), AddThrough, ref, 1).status(),
                StatusIs(absl::StatusCode::kUnimplemented));
  }
  EXPECT_THAT(one->Close(absl::Seconds(20)), IsOk());
  EXPECT_THAT(zero->Close(absl::Seconds(20)), IsOk());
}

TEST(References, CloseReleasesReferencesAndLaterHandlesAreHarmless) {
  rpc::Ranks ranks(2);
  auto zero = References::Open(ranks[0]).value();
  auto one = References::Open(ranks[1]).value();
  RRef<Counter> ref = rref::Make<Counter>(ranks[1].To("w0"), 1).value();
  EXPECT_THAT(one->Close(absl::Seconds(20)), IsOk());
  // The delete may come before the creating call has ended at the owner.
  EXPECT_TRUE(testing::Becomes([] { return live_counters == 0; }));
  ref = RRef<Counter>();
  EXPECT_THAT(zero->Close(absl::Seconds(20)), IsOk());
}

TEST(References, HandleDroppedAfterItsAgentEndedDoesNothing) {
  auto ranks = std::make_unique<rpc::Ranks>(2);
  auto zero = References::Open((*ranks)[0]).value();
  auto one = References::Open((*ranks)[1]).value();
  RRef<Counter> ref = rref::Make<Counter>((*ranks)[1].To("w0"), 1).value();
  RRef<Counter> own =
      MakeLocal((*ranks)[1], std::make_shared<Counter>(1)).value();
  ranks.reset();
  EXPECT_TRUE(ref.Confirmed().IsReady());
  EXPECT_THAT(Call(ref, &Counter::Add, 1).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "worker w1 has closed its references"));
  EXPECT_THAT(own.Local().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(one->Close(absl::Seconds(20)), IsOk());  // does nothing
  ref = RRef<Counter>();
  own = RRef<Counter>();
  EXPECT_EQ(live_counters, 0);
}

TEST(References, QuotaOfAHolderNamesIt) {
  rpc::Ranks ranks(3);
  ReferencesOptions options;
  options.max_forks_per_holder = 2;
  auto zero = References::Open(ranks[0], options).value();
  auto one = References::Open(ranks[1]).value();
  auto two = References::Open(ranks[2]).value();
  {
    const RRef<Counter> ref = rref::Make<Counter>(ranks[1].To("w0"), 1).value();
    for (int i = 0; i < 2; ++i) {
      ASSERT_THAT(rpc::Call(ranks[1].To("w2"), KeepIt, ref), IsOk());
    }
    EXPECT_THAT(rpc::Call(ranks[1].To("w2"), KeepIt, ref),
                StatusIs(absl::StatusCode::kResourceExhausted, "limit 2"));
  }
  kept.clear();
  for (const auto& references : {one, two, zero}) {
    EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
  }
}

}  // namespace
}  // namespace weft::rref
