#include "weft/launch/run/starts.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;

Instant At(double seconds) {
  return Instant::FromNanoseconds(static_cast<int64_t>(seconds * 1e9));
}

// Pauses after so many lives in a row, in seconds; each joins after `joins`
// seconds, if that is not negative, and ends after `lives`.
std::vector<double> Pauses(int count, double joins, double lives) {
  Starts starts;
  std::vector<double> pauses;
  double now = 100;
  for (int i = 0; i < count; ++i) {
    starts.Begin(At(now));
    if (joins >= 0) starts.Join(At(now + joins));
    now += lives;
    starts.End(At(now));
    pauses.push_back(absl::ToDoubleSeconds(starts.Pause()));
    now += pauses.back();
  }
  return pauses;
}

TEST(Starts, ProcessThatEndsAgainAndAgainIsStartedAfterLongerAndLongerPauses) {
  const std::vector<double> wanted = {0, 0, 1, 2, 4, 8, 16, 32, 60, 60};
  EXPECT_EQ(Pauses(10, /*joins=*/-1, /*lives=*/0.5), wanted);
  EXPECT_EQ(Pauses(10, /*joins=*/-1, /*lives=*/30), wanted);
  // It joins the others, which is a pause of theirs, and dies at once.
  EXPECT_EQ(Pauses(10, /*joins=*/5, /*lives=*/6), wanted);
}

TEST(Starts, ProcessThatTakesPartIsStartedAtOnceHoweverOftenItDies) {
  EXPECT_THAT(Pauses(5, /*joins=*/1, /*lives=*/4), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(Pauses(5, /*joins=*/-1, /*lives=*/70),
              ElementsAre(0, 0, 0, 0, 0));
}

TEST(Starts, OneLifeIsEnoughToBeginAnew) {
  Starts starts;
  for (int i = 0; i < 6; ++i) {
    starts.Begin(At(i));
    starts.End(At(i + 0.5));
  }
  EXPECT_TRUE(starts.is_hopeless());
  EXPECT_EQ(starts.futile_starts(), 6);
  starts.Begin(At(10));
  EXPECT_FALSE(starts.HasStayed(At(11)));
  starts.Join(At(11));
  starts.End(At(20));
  EXPECT_FALSE(starts.is_hopeless());
  EXPECT_EQ(starts.Pause(), absl::ZeroDuration());
}

TEST(Starts, ThreeQuickEndsInARowAreHopeless) {
  Starts starts;
  for (const double life : {1.9, 1.9, 2.1, 1.9, 1.9}) {
    starts.Begin(At(0));
    starts.End(At(life));
    EXPECT_FALSE(starts.is_hopeless());
  }
  starts.Begin(At(0));
  starts.End(At(1));
  EXPECT_TRUE(starts.is_hopeless());
}

TEST(Starts, KillsOfOneThatTakesPartMakeItPauseAndNotHopeless) {
  Starts starts;
  std::vector<double> pauses;
  for (int i = 0; i < 6; ++i) {
    starts.Begin(At(100 * i));
    starts.Join(At(100 * i + 0.5));
    starts.End(At(100 * i + 1));
    EXPECT_FALSE(starts.never_takes_part());
    pauses.push_back(absl::ToDoubleSeconds(starts.PauseOfQuickEnds()));
  }
  EXPECT_THAT(pauses, ElementsAre(0, 0, 1, 2, 4, 8));
  // One that ends before it takes part counts from the last that did.
  for (const bool is_hopeless : {false, false, true}) {
    starts.Begin(At(1000));
    starts.End(At(1001));
    EXPECT_EQ(starts.never_takes_part(), is_hopeless);
  }
}

}  // namespace
}  // namespace weft::launch
