#include "weft/net/edge/waste.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace weft::net {
namespace {

int CountAllowed(Waste& waste, const std::string& peer, Instant now) {
  int allowed = 0;
  while (allowed < 100'000 && waste.Allows(peer, now)) ++allowed;
  return allowed;
}

TEST(Waste, SoManyAtOnceAndAQuarterOfThemEachSecond) {
  Waste waste(1000);
  Instant now;
  EXPECT_EQ(CountAllowed(waste, "a", now), 1000);
  EXPECT_EQ(CountAllowed(waste, "a", now), 0);
  now = now + absl::Seconds(1);
  EXPECT_EQ(CountAllowed(waste, "a", now), 250);
  now = now + absl::Seconds(60);
  EXPECT_EQ(CountAllowed(waste, "a", now), 1000);
}

TEST(Waste, OnePeersIsNotAnothers) {
  Waste waste(10);
  EXPECT_EQ(CountAllowed(waste, "a", Instant()), 10);
  EXPECT_EQ(CountAllowed(waste, "b", Instant()), 10);
}

TEST(Waste, VeryManyPeersAreForgottenOnceTheyHaveTheirAllowance) {
  Waste waste(1);
  const Instant later = Instant() + absl::Seconds(1);
  for (int i = 0; i < 4095; ++i) {
    EXPECT_TRUE(waste.Allows(absl::StrCat(i), Instant()));
  }
  EXPECT_TRUE(waste.Allows("a", later));
  const Instant whole = Instant() + absl::Seconds(4);
  EXPECT_TRUE(waste.Allows("b", whole));
  EXPECT_FALSE(waste.Allows("a", whole));  // remembered: not yet whole
}

}  // namespace
}  // namespace weft::net
