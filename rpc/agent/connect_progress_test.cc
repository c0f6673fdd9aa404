#include "weft/rpc/agent/connect_progress.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/rpc/function.h"
#include "weft/rpc/testing/simulated_ranks.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

int64_t Next(int64_t number) { return number + 1; }
WEFT_RPC(Next);

Instant At(int64_t seconds) {
  return Instant::FromNanoseconds(seconds * 1'000'000'000);
}

TEST(ConnectProgress, LastsFromTheLastAnswerWithinABound) {
  constexpr absl::Duration kGiveUp = absl::Seconds(10);
  ConnectProgress progress;
  EXPECT_EQ(progress.Until(At(100), kGiveUp), At(110));
  progress.Note(At(95));
  EXPECT_EQ(progress.Until(At(100), kGiveUp), At(110));
  progress.Note(At(104));
  EXPECT_EQ(progress.Until(At(100), kGiveUp), At(114));
  progress.Note(At(158));
  EXPECT_EQ(progress.Until(At(100), kGiveUp), At(160));
}

TEST(ConnectProgress, LastsLongerAfterOthersThatTookLong) {
  constexpr absl::Duration kGiveUp = absl::Seconds(10);
  ConnectProgress progress;
  progress.Note(At(104), absl::Seconds(3));
  progress.Note(At(105), absl::Seconds(1));
  EXPECT_EQ(progress.Until(At(100), kGiveUp), At(129));
  // Not once all of that is long ago.
  EXPECT_EQ(progress.Until(At(130), kGiveUp), At(140));
  progress.Note(At(106), absl::Seconds(50));
  EXPECT_EQ(progress.Until(At(100), kGiveUp), At(160));
}

// What a busy machine looks like: first connections come about one by one.
TEST(ConnectProgress, PeerIsWaitedForWhileOthersAnswerForTheFirstTime) {
  SimulatedRanks ranks(6, {});
  ranks.network().Cut("w0", "w1");
  const Instant began = ranks.simulator().Now();
  const auto seconds = [&] {
    return absl::ToInt64Seconds(ranks.simulator().Now() - began);
  };
  const Future<int64_t> waits =
      CallAsync(ranks[0].To("w1", absl::Minutes(5)), Next, int64_t{1});
  for (int peer = 2; peer < 6; ++peer) {
    EXPECT_THAT(waits.Wait(absl::Seconds(6)).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(Call(ranks[0].To(absl::StrCat("w", peer)), Next, int64_t{1}),
                IsOkAndHolds(2));
  }
  EXPECT_GE(seconds(), 24);
  // A peer that has answered before says nothing.
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(waits.Wait(absl::Seconds(2)).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(Call(ranks[0].To("w5"), Next, int64_t{1}), IsOkAndHolds(2));
  }
  EXPECT_THAT(waits.Wait(absl::Minutes(5)).status(),
              StatusIs(absl::StatusCode::kUnavailable, "could not be reached"));
  EXPECT_GE(seconds(), 33);
  EXPECT_LE(seconds(), 36);
}

TEST(ConnectProgress, PeerIsWaitedForWhileOthersCallForTheFirstTime) {
  SimulatedRanks ranks(6, {});
  ranks.network().Cut("w0", "w1");
  const Instant began = ranks.simulator().Now();
  const Future<int64_t> waits =
      CallAsync(ranks[0].To("w1", absl::Minutes(5)), Next, int64_t{1});
  for (int peer = 2; peer < 6; ++peer) {
    EXPECT_THAT(waits.Wait(absl::Seconds(6)).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(Call(ranks[peer].To("w0"), Next, int64_t{1}), IsOkAndHolds(2));
  }
  for (int i = 0; i < 3; ++i) {  // not for the first time
    EXPECT_THAT(waits.Wait(absl::Seconds(2)).status(),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_THAT(Call(ranks[2].To("w0"), Next, int64_t{1}), IsOkAndHolds(2));
  }
  EXPECT_THAT(waits.Wait(absl::Minutes(5)).status(),
              StatusIs(absl::StatusCode::kUnavailable, "could not be reached"));
  const absl::Duration took = ranks.simulator().Now() - began;
  EXPECT_GE(took, absl::Seconds(33));
  EXPECT_LE(took, absl::Seconds(36));
}

}  // namespace
}  // namespace weft::rpc
