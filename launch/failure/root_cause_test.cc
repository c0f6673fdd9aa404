#include "weft/launch/failure/root_cause.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/sim/random.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using How = RankEnd::How;

const std::vector<RoleSize> kRoles = {{"ps", 8}, {"trainer", 16}};

std::vector<std::string> Named(absl::string_view line,
                               absl::string_view self = "trainer0") {
  return RanksNamedIn(line, self, kRoles);
}

TEST(RanksNamedIn, FindsTheNamesOfWorkers) {
  EXPECT_THAT(Named("error: ps1: the server's incarnation 1@1.4 is gone"),
              ElementsAre("ps1"));
  EXPECT_THAT(Named("error: trainer1: ps1: gone; ps1 was lost"),
              ElementsAre("trainer1", "ps1"));
  EXPECT_THAT(Named("waits for trainer2, trainer13 (and trainer0)"),
              ElementsAre("trainer2", "trainer13"));
}

TEST(RanksNamedIn, TakesPathsAndOtherWordsForNoNames) {
  EXPECT_THAT(Named("wrote /tmp/trainer1/ps1.log, a-ps2, ps, psx1, ps1x, "
                    "ps-1, my_trainer1, rank 3"),
              IsEmpty());
  EXPECT_THAT(Named(""), IsEmpty());
  EXPECT_THAT(Named("ranks that there are not: ps8, trainer16, "
                    "trainer99999999999999999999"),
              IsEmpty());
}

TEST(RanksNamedIn, TakesTheRanksOfTheGroupOfARole) {
  EXPECT_THAT(Named("step 216 of rank 0: AllReduce #656, rank 0 of group "
                    "trainer/world: the process of rank 2 has ended; it last"),
              ElementsAre("trainer2"));
  // Ranks of another group are numbered otherwise.
  EXPECT_THAT(Named("rank 0 of group trainer/world/sub: rank 2 has ended"),
              IsEmpty());
}

RootCause Find(const std::vector<RankEnd>& ranks, absl::string_view first) {
  return FindRootCause(ranks, first, kRoles);
}

TEST(FindRootCause, IsTheRankThatWasHeardOfFirstIfItFailedByItself) {
  const RootCause cause = Find(
      {{"ps0", How::kHung, 0, ""}, {"trainer0", How::kFailed, 1, "lost ps0"}},
      "trainer0");
  EXPECT_EQ(cause.rank, "trainer0");
  EXPECT_EQ(cause.victim, "");
}

TEST(FindRootCause, IsTheStoppedServerThatTheVictimsName) {
  const RootCause cause =
      Find({{"ps0", How::kLostPeer, 3, "error: trainer1: ps1: is gone"},
            {"ps1", How::kStopped, 0, ""},
            {"trainer0", How::kLostPeer, 1, "error: ps1: is gone"},
            {"trainer1", How::kLostPeer, 2, "error: ps1: is gone"}},
           "trainer0");
  EXPECT_EQ(cause.rank, "ps1");
  EXPECT_EQ(cause.victim, "trainer0");
  EXPECT_TRUE(cause.is_here);
  EXPECT_EQ(cause.suspect, "");
}

TEST(FindRootCause, FollowsVictimsThatNameVictims) {
  const RootCause cause =
      Find({{"trainer0", How::kLostPeer, 1, "error: trainer1 has left"},
            {"trainer1", How::kLostPeer, 2, "error: trainer2 has left"},
            {"trainer2", How::kLostPeer, 3, "error: no answer of trainer3"},
            {"trainer3", How::kHung, 0, "training 3 %"}},
           "trainer0");
  EXPECT_EQ(cause.rank, "trainer3");
  EXPECT_EQ(cause.victim, "trainer2");
}

TEST(FindRootCause, EndsWhereVictimsNameEachOther) {
  EXPECT_EQ(Find({{"trainer0", How::kLostPeer, 1, "error: trainer1 is late"},
                  {"trainer1", How::kLostPeer, 2, "error: trainer0 is late"}},
                 "trainer0")
                .rank,
            "trainer0");
}

TEST(FindRootCause, IsNotOneThatOnlyDidNotEndAndThatNobodyNames) {
  EXPECT_EQ(Find({{"trainer0", How::kLostPeer, 1, "error: something"},
                  {"trainer1", How::kHung, 0, ""}},
                 "trainer0")
                .rank,
            "trainer0");
}

TEST(FindRootCause, MayRunElsewhereOrHaveEndedWell) {
  RootCause cause = Find(
      {{"trainer0", How::kLostPeer, 1, "error: trainer5 is gone"}}, "trainer0");
  EXPECT_EQ(cause.rank, "trainer5");
  EXPECT_FALSE(cause.is_here);
  EXPECT_EQ(cause.victim, "trainer0");
  cause = Find({{"trainer0", How::kLostPeer, 1, "error: ps0 is gone"},
                {"ps0", How::kWell, 0, ""}},
               "trainer0");
  EXPECT_EQ(cause.rank, "trainer0");
  EXPECT_TRUE(cause.is_here);
  EXPECT_EQ(cause.suspect, "ps0");
}

// A rank fails, stops or hangs; each of the others loses it, or one that has
// lost it before; whoever of them is heard of first, the one is named.
TEST(FindRootCause, NamesTheOneOfManyInjectedFailures) {
  sim::Random random(1);
  for (int round = 0; round < 2000; ++round) {
    const int size = 2 + static_cast<int>(random.Below(7));
    const int culprit = static_cast<int>(random.Below(size));
    const How how[] = {How::kFailed, How::kStopped, How::kHung};
    std::vector<RankEnd> ranks(size);
    std::vector<int> lost = {culprit};  // in the order of their ends
    for (int i = 0; i < size; ++i) ranks[i].name = absl::StrCat("trainer", i);
    ranks[culprit].how = how[random.Below(3)];
    ranks[culprit].order = size;  // heard of last
    for (int i = 0; i < size; ++i) {
      if (i == culprit) continue;
      ranks[i].how = How::kLostPeer;
      ranks[i].order = static_cast<int>(lost.size());
      ranks[i].last_line =
          absl::StrCat("error: ", ranks[lost[random.Below(lost.size())]].name,
                       " is gone; start the job again");
      lost.push_back(i);
    }
    for (const int first : lost) {
      if (first == culprit) continue;
      const RootCause cause = Find(ranks, ranks[first].name);
      ASSERT_EQ(cause.rank, ranks[culprit].name) << "round " << round;
      ASSERT_EQ(cause.suspect, "");
    }
  }
}

}  // namespace
}  // namespace weft::launch
