#include "weft/train/core/push_deadline.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace weft::train {
namespace {

constexpr absl::Duration kMinute = absl::Minutes(1);

Instant At(double seconds) { return Instant() + absl::Seconds(seconds); }

TEST(PushDeadline, EachRoundHasTheWholeTime) {
  PushDeadline deadline(kMinute);
  deadline.Begin(0, At(10));
  EXPECT_EQ(deadline.until(), At(70));
  deadline.Begin(1, At(50));
  EXPECT_EQ(deadline.until(), At(110));
  EXPECT_EQ(deadline.Lasted(At(80)), absl::Seconds(30));
}

TEST(PushDeadline, WhoPushesAgainHasWhatIsLeft) {
  PushDeadline deadline(kMinute);
  deadline.Begin(3, At(0));
  deadline.Begin(3, At(20));
  EXPECT_EQ(deadline.until(), At(60));
}

// A rank ends since its push was not answered for a minute; its parts are
// pushed by those that are left.
TEST(PushDeadline, PartsOfWhoHasEndedAreNotAwaitedForAWholeTimeMore) {
  PushDeadline deadline(kMinute);
  deadline.Begin(3, At(0));
  deadline.Begin(3, At(60));
  EXPECT_EQ(deadline.until(), At(90));
  EXPECT_EQ(deadline.Lasted(deadline.until()), absl::Seconds(90));
}

TEST(PushDeadline, OfNoTimeIsOverAtOnce) {
  for (const absl::Duration none : {absl::ZeroDuration(), absl::Seconds(-1)}) {
    PushDeadline deadline(none);
    deadline.Begin(0, At(5));
    EXPECT_LE(deadline.until(), At(5));
  }
}

}  // namespace
}  // namespace weft::train
