#include "weft/train/core/state_handover.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;
using Transfer = StateHandover::Transfer;

TEST(StateHandover, PartsComeFromAllWhoHoldThem) {
  StateHandover handover({true, true, false, true}, 0, {4, 4, 4, 4, 4, 4});
  EXPECT_THAT(
      handover.NextRound({{}, {}, {0, 1, 2, 3, 4, 5}, {}}),
      ElementsAre(Transfer{0, 2, 0}, Transfer{1, 2, 1}, Transfer{3, 2, 2},
                  Transfer{0, 2, 3}, Transfer{1, 2, 4}, Transfer{3, 2, 5}));
  EXPECT_THAT(handover.NextRound({{}, {}, {}, {}}), IsEmpty());
}

TEST(StateHandover, LargePartsWeighMore) {
  StateHandover handover({true, true, false}, 0, {10, 4, 4, 4});
  EXPECT_THAT(handover.NextRound({{}, {}, {0, 1, 2, 3}}),
              ElementsAre(Transfer{0, 2, 0}, Transfer{1, 2, 1},
                          Transfer{1, 2, 2}, Transfer{1, 2, 3}));
}

TEST(StateHandover, WhatHasComeBeforeIsNotSentAgain) {
  StateHandover handover({true, false}, 0, {4, 4, 4});
  EXPECT_THAT(handover.NextRound({{}, {2}}), ElementsAre(Transfer{0, 1, 2}));
}

TEST(StateHandover, WrongPartIsAskedOfTheSourceThenOfAnyOther) {
  StateHandover handover({false, true, true, true}, 2, {4});
  std::set<int> asked;
  EXPECT_THAT(handover.NextRound({{0}, {}, {}, {}}),
              ElementsAre(Transfer{1, 0, 0}));
  EXPECT_THAT(handover.SentWrong(0, 0), IsEmpty());
  EXPECT_THAT(handover.NextRound({{0}, {}, {}, {}}),
              ElementsAre(Transfer{2, 0, 0}));
  EXPECT_THAT(handover.SentWrong(0, 0), ElementsAre(1));
  EXPECT_THAT(handover.NextRound({{0}, {}, {}, {}}),
              ElementsAre(Transfer{3, 0, 0}));
  EXPECT_EQ(handover.Unobtainable(0), std::nullopt);
  EXPECT_THAT(handover.NextRound({{0}, {}, {}, {}}), IsEmpty());
  EXPECT_EQ(handover.Unobtainable(0), 0);
  EXPECT_EQ(handover.Unobtainable(1), std::nullopt);
  EXPECT_THAT(handover.SentWrong(0, 0), ElementsAre(1, 2, 3));
}

TEST(StateHandover, PartsAreToldAsRanges) {
  EXPECT_EQ(FormatParts({}), "");
  EXPECT_EQ(FormatParts({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
  EXPECT_THAT(ParseParts("", 3), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(ParseParts("0-2,5,7-8", 9),
              IsOkAndHolds(ElementsAre(0, 1, 2, 5, 7, 8)));
  for (const char* bad : {"x", "1-", "-1", "2-1", "1,1", "3,2", "0-2-3", "9",
                          "0-9", ",", "1,", "99999999999"}) {
    EXPECT_THAT(ParseParts(bad, 9),
                StatusIs(absl::StatusCode::kInvalidArgument, "rising ranges"))
        << bad;
  }
}

}  // namespace
}  // namespace weft::train
