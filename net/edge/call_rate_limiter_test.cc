#include "weft/net/edge/call_rate_limiter.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace weft::net {
namespace {

int CountAllowed(CallRateLimiter& limiter, const std::string& peer,
                 Instant now) {
  int allowed = 0;
  while (allowed < 100'000 && limiter.Allows(peer, now)) ++allowed;
  return allowed;
}

TEST(CallRateLimiter, SoManyAtOnceAndAQuarterOfThemEachSecond) {
  CallRateLimiter limiter(1000);
  Instant now;
  EXPECT_EQ(CountAllowed(limiter, "a", now), 1000);
  EXPECT_EQ(CountAllowed(limiter, "a", now), 0);
  now = now + absl::Seconds(1);
  EXPECT_EQ(CountAllowed(limiter, "a", now), 250);
  now = now + absl::Seconds(60);
  EXPECT_EQ(CountAllowed(limiter, "a", now), 1000);
}

TEST(CallRateLimiter, OnePeersIsNotAnothers) {
  CallRateLimiter limiter(10);
  EXPECT_EQ(CountAllowed(limiter, "a", Instant()), 10);
  EXPECT_EQ(CountAllowed(limiter, "b", Instant()), 10);
}

TEST(CallRateLimiter, VeryManyPeersAreForgottenOnceTheyHaveTheirAllowance) {
  CallRateLimiter limiter(1);
  const Instant later = Instant() + absl::Seconds(1);
  for (int i = 0; i < 4095; ++i) {
    EXPECT_TRUE(limiter.Allows(absl::StrCat(i), Instant()));
  }
  EXPECT_TRUE(limiter.Allows("a", later));
  const Instant whole = Instant() + absl::Seconds(4);
  EXPECT_TRUE(limiter.Allows("b", whole));
  EXPECT_FALSE(limiter.Allows("a", whole));  // remembered: not yet whole
}

}  // namespace
}  // namespace weft::net
