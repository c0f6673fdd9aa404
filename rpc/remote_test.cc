// Results that stay where they were made.

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rpc/testing/handle_test_objects.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::IsWoken;
using ::weft::testing::kPatience;
using ::weft::testing::StatusIs;

absl::StatusOr<int64_t> Fail() { return absl::AbortedError("no value"); }
WEFT_RPC(Fail);

// ------------------------------------------------------------------- results

TEST(Remote, AResultStaysThereUntilItIsFetched) {
  Ranks ranks(2);
  const Target b = ranks[0].To("w1");
  const auto kept = Remote(b, Twice, Tensor::FromVector<float>({1, 2}));
  ASSERT_THAT(kept, IsOk());
  EXPECT_THAT(Fetch(*kept)->ToVector<float>(), ElementsAre(2, 4));
  EXPECT_THAT(Fetch(*kept)->ToVector<float>(), ElementsAre(2, 4));
  ASSERT_THAT(Release(*kept), IsOk());
  EXPECT_THAT(Fetch(*kept), StatusIs(absl::StatusCode::kNotFound, ""));
  const auto soon = Remote(b, Soon, 5);
  EXPECT_EQ(*Fetch(*soon), 5);
}

TEST(Remote, AFunctionThatFailsLeavesNothingAndSaysSoEachTime) {  // F62
  RanksOptions options;
  options.limits.objects = 1;
  Ranks ranks(2, options);
  const auto kept = RemoteAsync(ranks[0].To("w1"), Fail);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(kept.Wait(absl::Seconds(30)),
                StatusIs(absl::StatusCode::kAborted, "Fail: no value"));
  }
  EXPECT_THAT(Remote(ranks[0].To("w1"), Soon, 1), IsOk());  // there is room
}

// Whether they begin late or not at all.
TEST(Remote, TwoThatFailedEachHaveTheirOwnError) {  // PROBE-P2
  Gate gate;
  RanksOptions options;
  options.threads = options.max_threads = 1;
  Ranks ranks(2, options);
  const Target w1 = ranks[0].To("w1");
  const Future<Handle<Gated>> busy = MakeAsync<Gated>(w1, 1);
  EXPECT_TRUE(IsWoken(gate.began));  // its only thread
  const Target brief = w1.WithTimeout(absl::Milliseconds(200));
  const auto first = MakeAsync<Embedding>(brief, 1, 1);
  const auto second = RemoteAsync(brief, Soon, 1);
  EXPECT_THAT(first.Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "Embedding::new: the deadline passed"));
  EXPECT_THAT(second.Wait(kPatience),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "Soon: the deadline passed"));
  gate.Open();
  const auto made = busy.Wait(kPatience);
  ASSERT_THAT(made, IsOk());
  EXPECT_THAT(Release(*made), IsOk());
  EXPECT_THAT(ranks[0].AwaitIdle(kPatience), IsOk());
  EXPECT_THAT(ranks[1].AwaitIdle(kPatience), IsOk());
  EXPECT_TRUE(Objects().WaitForNone());
  EXPECT_THAT(LeftAt(ranks[1]), IsEmpty());
}

TEST(Remote, TwoThatAreGivenUpEachHaveTheirOwnError) {  // PROBE-P2
  Gate gate;
  RanksOptions options;
  options.threads = options.max_threads = 1;
  Ranks ranks(2, options);
  const Target w1 = ranks[0].To("w1");
  const auto first = MakeAsync<Gated>(w1, 1);
  EXPECT_TRUE(IsWoken(gate.began));
  const auto second = MakeAsync<Gated>(w1, 2);
  first.Cancel(absl::CancelledError("one"));
  second.Cancel(absl::CancelledError("two"));
  EXPECT_THAT(first.Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "one"));
  EXPECT_THAT(second.Wait(kPatience),
              StatusIs(absl::StatusCode::kCancelled, "two"));
  // Comes after what tells w1 of both, and needs no thread of its pool.
  EXPECT_THAT(AskPending(w1).Wait(kPatience), IsOk());
  gate.Open();
  EXPECT_THAT(ranks[0].AwaitIdle(kPatience), IsOk());
  EXPECT_THAT(ranks[1].AwaitIdle(kPatience), IsOk());
  EXPECT_TRUE(Objects().WaitForNone());
  EXPECT_EQ(gate.begun, 1);
}

TEST(Remote, AFetchThatIsLateMayBeMadeAgain) {  // F52
  Gate gate;
  RanksOptions options;
  options.threads = options.max_threads = 1;
  Ranks ranks(2, options);
  const Target b = ranks[0].To("w1");
  const auto kept = Remote(b, Soon, 5);
  ASSERT_THAT(kept, IsOk());
  const Future<Handle<Gated>> busy = MakeAsync<Gated>(b, 1);
  EXPECT_TRUE(IsWoken(gate.began));  // its only thread
  const auto is_late =
      StatusIs(absl::StatusCode::kDeadlineExceeded, "deadline");
  const Handle<int64_t> brief = kept->WithTimeout(absl::Milliseconds(200));
  EXPECT_THAT(FetchAsync(brief).Wait(kPatience), is_late);
  const Future<int64_t> patient = FetchAsync(*kept);
  EXPECT_THAT(FetchAsync(brief).Wait(kPatience), is_late);
  EXPECT_FALSE(patient.IsReady());  // the time-out was not the object's
  gate.Open();
  EXPECT_THAT(patient.Wait(kPatience), IsOkAndHolds(5));
  EXPECT_EQ(*Fetch(*kept), 5);
  EXPECT_THAT(busy.Wait(kPatience), IsOk());
}

TEST(Remote, WorksWithinOneWorker) {
  Ranks ranks(1);
  const auto kept = Remote(ranks[0].To("w0"), Soon, 6);
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(*Fetch(*kept), 6);
  EXPECT_THAT(Release(*kept), IsOk());
}

}  // namespace
}  // namespace weft::rpc
