// Tests of HeldCalls.

#include "weft/rendezvous/core/held_calls.h"

#include <string>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

Instant At(int seconds) { return Instant() + absl::Seconds(seconds); }

TEST(HeldCalls, AreTakenByTopicByDeadlineOrAlone) {
  HeldCalls<std::string> held;
  EXPECT_TRUE(held.NextDeadline().is_infinite());
  held.Hold(1, "a", At(3), "one");
  held.Hold(2, "b", At(1), "two");
  held.Hold(3, "a", At(2), "three");
  held.Hold(4, "a", At(1), "four");
  EXPECT_EQ(held.size(), 4);
  EXPECT_EQ(held.NextDeadline(), At(1));
  EXPECT_THAT(held.TakeExpired(At(0)), IsEmpty());
  EXPECT_THAT(held.TakeExpired(At(1)),
              ElementsAre(Pair(2, "two"), Pair(4, "four")));
  EXPECT_THAT(held.TakeFor("b"), IsEmpty());
  EXPECT_THAT(
      held.TakeIf("a", [](const std::string& call) { return call == "three"; }),
      ElementsAre(Pair(3, "three")));
  EXPECT_EQ(held.NextDeadline(), At(3));
  held.Drop(3);  // not held any more
  EXPECT_EQ(held.size(), 1);
  held.Drop(1);
  EXPECT_THAT(held.TakeFor("a"), IsEmpty());
  EXPECT_TRUE(held.NextDeadline().is_infinite());
}

}  // namespace
}  // namespace weft::rendezvous
