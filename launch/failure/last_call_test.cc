#include "weft/launch/failure/last_call.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace weft::launch {
namespace {

const std::vector<RoleSize> kRoles = {{"ps", 2}, {"trainer", 4}};

constexpr char kError[] =
    "error: step 216 of rank 0: AllReduce #656, rank 0 of group trainer/world: "
    "rank 2 has ended (its stream: closed); it last called AllReduce #655 "
    "(f32[12], kSum); rank 3 has not called it and last called Broadcast #651 "
    "(f32[1]) (peer lost)";

TEST(CallIn, IsTheOperationWithItsGroup) {
  EXPECT_EQ(CallIn(kError), "AllReduce #656 of group trainer/world");
  EXPECT_EQ(CallIn("error: Barrier #3: no answer"), "Barrier #3");
}

TEST(CallIn, IsTheFunctionOfARemoteCallWhereNoOperationIsNamed) {
  EXPECT_EQ(CallIn("error: ps0: weft::ps::Exchange: is gone (peer lost)"),
            "weft::ps::Exchange");
}

TEST(CallIn, IsEmptyForTextThatNamesNoCall) {
  for (const char* text :
       {"", "training 3 %", "error: issue #3",
        "terminate called after "
        "throwing an instance of 'std::bad_alloc'",
        "a :: b", "::x", "AllReduce #", "allReduce #3", "#3"}) {
    EXPECT_EQ(CallIn(text), "") << text;
  }
}

TEST(CallOfPeerIn, IsWhatIsSaidOfThatRank) {
  EXPECT_EQ(CallOfPeerIn(kError, "trainer2", kRoles), "AllReduce #655");
  EXPECT_EQ(CallOfPeerIn(kError, "trainer3", kRoles), "Broadcast #651");
  EXPECT_EQ(CallOfPeerIn(kError, "trainer1", kRoles), "");
  EXPECT_EQ(CallOfPeerIn(kError, "ps2", kRoles), "");
  EXPECT_EQ(CallOfPeerIn("trainer2 is gone; it last called Gather #9 (x)",
                         "trainer2", kRoles),
            "Gather #9");
  // The ranks of another group have other numbers.
  EXPECT_EQ(CallOfPeerIn("rank 0 of group sub: rank 2 has ended; it last "
                         "called AllReduce #655",
                         "trainer2", kRoles),
            "");
  EXPECT_EQ(CallOfPeerIn("rank 2 of trainer/world has called nothing yet",
                         "trainer2", kRoles),
            "");
}

}  // namespace
}  // namespace weft::launch
