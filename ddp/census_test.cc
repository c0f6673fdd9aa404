#include "weft/ddp/census.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft::ddp {
namespace {

using ::testing::ElementsAre;

Census Of(const std::vector<CensusEntry>& ranks, int parameters) {
  const int world = static_cast<int>(ranks.size());
  Tensor sum = WriteCensus(ranks[0], 0, world);
  for (int rank = 1; rank < world; ++rank) {
    sum = Add(sum, WriteCensus(ranks[rank], rank, world));
  }
  return ReadCensus(sum, world, parameters);
}

TEST(Census, SaysWhatSomeRankHasAndTheLowestThatHasIt) {
  const Census census = Of({{0, false, {false, false}, {false, false}},
                            {2.5, false, {true, false}, {false, false}},
                            {3, true, {true, false}, {true, false}}},
                           2);
  EXPECT_EQ(census.total_weight, 5.5);
  EXPECT_EQ(census.first_rank_with_data, 1);
  EXPECT_EQ(census.first_rank_with_gradients, 2);
  EXPECT_THAT(census.is_used, ElementsAre(true, false));
  EXPECT_THAT(census.is_whole, ElementsAre(true, false));
}

TEST(Census, OfRanksWithNothingHasNoRank) {
  const Census census =
      Of({{0, false, {false}, {}}, {0, false, {false}, {}}}, 1);
  EXPECT_EQ(census.total_weight, 0);
  EXPECT_EQ(census.first_rank_with_data, 0);
  EXPECT_EQ(census.first_rank_with_gradients, -1);
  EXPECT_THAT(census.is_used, ElementsAre(false));
  // Nobody asked.
  EXPECT_THAT(census.is_whole, ElementsAre(true));
}

}  // namespace
}  // namespace weft::ddp
