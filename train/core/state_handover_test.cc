#include "weft/train/core/state_handover.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Transfer = StateHandover::Transfer;

constexpr int64_t kAll = 1000;  // one stretch

TEST(StateHandover, PartsComeFromAllWhoHoldThem) {
  StateHandover handover({true, true, false, true}, 0, {4, 4, 4, 4, 4, 4},
                         kAll);
  EXPECT_THAT(handover.NextRound({{}, {}, {}, {}}), IsEmpty());
  EXPECT_THAT(
      handover.NextRound({{}, {}, {0, 1, 2, 3, 4, 5}, {}}),
      ElementsAre(Transfer{0, 2, 0}, Transfer{1, 2, 1}, Transfer{3, 2, 2},
                  Transfer{0, 2, 3}, Transfer{1, 2, 4}, Transfer{3, 2, 5}));
  EXPECT_FALSE(handover.is_over());
  EXPECT_THAT(handover.NextRound({{}, {}, {}, {}}), IsEmpty());
  EXPECT_TRUE(handover.is_over());
}

TEST(StateHandover, HashesAreToldByStretches) {
  StateHandover handover({true, false}, 0, {4, 4, 4, 4, 4}, 8);
  EXPECT_EQ(handover.stretch().begin, 0);
  EXPECT_EQ(handover.stretch().end, 2);
  EXPECT_THAT(handover.NextRound({{}, {}}), IsEmpty());
  EXPECT_EQ(handover.stretch().end, 4);
  EXPECT_THAT(handover.NextRound({{}, {0, 1}}),
              ElementsAre(Transfer{0, 1, 0}, Transfer{0, 1, 1}));
  EXPECT_EQ(handover.stretch().begin, 4);
  EXPECT_EQ(handover.stretch().end, 5);
  EXPECT_THAT(handover.NextRound({{}, {}}), IsEmpty());
  EXPECT_FALSE(handover.is_over()) << "part 4 may be lacked";
  EXPECT_EQ(handover.stretch().begin, handover.stretch().end);
  EXPECT_THAT(handover.NextRound({{}, {4}}), ElementsAre(Transfer{0, 1, 4}));
  EXPECT_FALSE(handover.is_over()) << "part 4 may be wrong";
  EXPECT_THAT(handover.NextRound({{}, {}}), IsEmpty());
  EXPECT_TRUE(handover.is_over());
}

TEST(StateHandover, LargePartsWeighMore) {
  StateHandover handover({true, true, false}, 0, {10, 4, 4, 4}, kAll);
  EXPECT_THAT(handover.NextRound({{}, {}, {0, 1, 2, 3}}),
              ElementsAre(Transfer{0, 2, 0}, Transfer{1, 2, 1},
                          Transfer{1, 2, 2}, Transfer{1, 2, 3}));
}

TEST(StateHandover, WhatHasComeBeforeIsNotSentAgain) {
  StateHandover handover({true, false}, 0, {4, 4, 4}, kAll);
  EXPECT_THAT(handover.NextRound({{}, {2}}), ElementsAre(Transfer{0, 1, 2}));
}

TEST(StateHandover, WrongPartIsAskedOfTheSourceThenOfAnyOther) {
  StateHandover handover({false, true, true, true}, 2, {4, 4}, 4);
  EXPECT_THAT(handover.NextRound({{0}, {}, {}, {}}),
              ElementsAre(Transfer{1, 0, 0}));
  EXPECT_THAT(handover.SentWrong(0, 0), IsEmpty());
  EXPECT_THAT(handover.NextRound({{0, 1}, {}, {}, {}}),
              ElementsAre(Transfer{2, 0, 0}, Transfer{1, 0, 1}));
  EXPECT_THAT(handover.SentWrong(0, 0), ElementsAre(1));
  EXPECT_THAT(handover.NextRound({{0}, {}, {}, {}}),
              ElementsAre(Transfer{3, 0, 0}));
  EXPECT_EQ(handover.Unobtainable(0), std::nullopt);
  EXPECT_THAT(handover.NextRound({{0}, {}, {}, {}}), IsEmpty());
  EXPECT_EQ(handover.Unobtainable(0), 0);
  EXPECT_EQ(handover.Unobtainable(1), std::nullopt);
  EXPECT_THAT(handover.SentWrong(0, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(handover.SentWrong(0, 1), IsEmpty());
}

}  // namespace
}  // namespace weft::train
