#include "weft/ddp/shard_tree.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::ddp {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

void Bracket(std::string& left, std::string& right) {
  left = absl::StrCat("(", left, "+", right, ")");
}

// How the sum of all shards is bracketed if `ranks` ranks own them.
std::string SumOver(int ranks, int shards) {
  ShardTree<std::string> of_all;
  for (int r = 0; r < ranks; ++r) {
    ShardTree<std::string> own;
    const ShardRange range = OwnShards(r, ranks, shards);
    for (int s = range.begin; s < range.end; ++s) {
      own.Add({s, s + 1}, absl::StrCat(s), Bracket);
    }
    const std::vector<ShardRange> subtrees = SubtreesOf(range);
    EXPECT_EQ(own.parts().size(), subtrees.size());
    for (size_t i = 0; i < own.parts().size(); ++i) {
      auto& part = own.parts()[i];
      EXPECT_EQ(part.shards, subtrees[i]) << r << " of " << ranks;
      of_all.Add(part.shards, part.value, Bracket);
    }
  }
  EXPECT_THAT(of_all.parts(), SizeIs(1));
  return of_all.parts()[0].value;
}

TEST(ShardTree, AddsInOneOrderForAnyNumberOfRanks) {
  EXPECT_EQ(SumOver(1, 8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
  for (const int shards : {1, 2, 4, 8, 16, 64}) {
    const std::string wanted = SumOver(1, shards);
    for (int ranks = 2; ranks <= shards; ++ranks) {
      EXPECT_EQ(SumOver(ranks, shards), wanted) << ranks << " of " << shards;
    }
  }
}

TEST(ShardTree, RanksOwnAllShardsAlmostEqually) {
  EXPECT_EQ(OwnShards(0, 3, 8), (ShardRange{0, 3}));
  EXPECT_EQ(OwnShards(1, 3, 8), (ShardRange{3, 6}));
  EXPECT_EQ(OwnShards(2, 3, 8), (ShardRange{6, 8}));
  for (int ranks = 1; ranks <= 16; ++ranks) {
    int end = 0;
    for (int r = 0; r < ranks; ++r) {
      const ShardRange own = OwnShards(r, ranks, 16);
      EXPECT_EQ(own.begin, end);
      EXPECT_THAT(own.size(), ::testing::AnyOf(16 / ranks, 16 / ranks + 1));
      end = own.end;
    }
    EXPECT_EQ(end, 16);
  }
  // Also where the product of both is beyond 32 bits.
  EXPECT_EQ(OwnShards(4095, 4096, 4096), (ShardRange{4095, 4096}));
}

TEST(ShardTree, SubtreesAreAsLargeAsTheyCanBe) {
  EXPECT_THAT(SubtreesOf({3, 8}),
              ElementsAre(ShardRange{3, 4}, ShardRange{4, 8}));
  EXPECT_THAT(SubtreesOf({1, 7}),
              ElementsAre(ShardRange{1, 2}, ShardRange{2, 4}, ShardRange{4, 6},
                          ShardRange{6, 7}));
  EXPECT_THAT(SubtreesOf({0, 8}), ElementsAre(ShardRange{0, 8}));
  EXPECT_THAT(SubtreesOf({5, 5}), SizeIs(0));
}

TEST(ShardTree, RefusesOtherNumbersOfShards) {
  EXPECT_THAT(CheckVirtualShards(8, 8), IsOk());
  EXPECT_THAT(CheckVirtualShards(1, 1), IsOk());
  for (const int shards : {0, -8, 3, 12, 8192}) {
    EXPECT_THAT(
        CheckVirtualShards(shards, 1),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("power of two from 1 to 4096, found ", shards)));
  }
  EXPECT_THAT(CheckVirtualShards(4, 5),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "for each of 5 ranks, found 4"));
}

}  // namespace
}  // namespace weft::ddp
