#include "weft/device/free_blocks.h"

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace weft::device {
namespace {

TEST(FreeBlocks, FindsNothingWhereNothingIs) {
  FreeBlocks blocks;
  EXPECT_EQ(blocks.Find(512, false), nullptr);
  EXPECT_EQ(blocks.Find(int64_t{1} << 48, true), nullptr);
}

TEST(FreeBlocks, FindsABlockOfJustThatSizeFirst) {
  FreeBlocks blocks;
  std::vector<FreeBlock> all(40);
  for (int64_t i = 0; i < 40; ++i) {
    all[i].bytes = 512 * (i + 1);
    blocks.Insert(all[i]);
  }
  for (FreeBlock& block : all) {
    EXPECT_EQ(blocks.Find(block.bytes, false), &block);
    EXPECT_EQ(blocks.Find(block.bytes - 511, false)->bytes, block.bytes)
        << "what is no multiple is not rounded down";
  }
}

// Against the best fit of an ordered map.
TEST(FreeBlocks, FindsWhatIsAtMostASixteenthLargerThanTheBestFit) {
  std::mt19937_64 random(7);
  FreeBlocks blocks;
  std::vector<FreeBlock> all(500);
  std::multimap<int64_t, FreeBlock*> model;
  for (int step = 0; step < 20000; ++step) {
    FreeBlock& block = all[random() % all.size()];
    if (block.bytes == 0) {
      const int64_t units = int64_t{1} << (random() % 24);
      block.bytes = 512 * (units + static_cast<int64_t>(random() % units));
      blocks.Insert(block);
      model.emplace(block.bytes, &block);
    } else {
      blocks.Remove(block);
      for (auto it = model.find(block.bytes);; ++it) {
        if (it->second != &block) continue;
        model.erase(it);
        break;
      }
      block.bytes = 0;
    }
    const int64_t wanted =
        512 * (1 + static_cast<int64_t>(random() % (1 << 20)));
    const auto best = model.lower_bound(wanted);
    const FreeBlock* const in_full = blocks.Find(wanted, true);
    ASSERT_EQ(in_full == nullptr, best == model.end());
    if (in_full == nullptr) continue;
    ASSERT_GE(in_full->bytes, wanted);
    // Within a class, after the first few; a class is a sixteenth wide.
    ASSERT_LE(in_full->bytes, best->first + best->first / 16 + 512);
    const FreeBlock* const quick = blocks.Find(wanted, false);
    if (quick != nullptr) {
      ASSERT_GE(quick->bytes, wanted);
    }
  }
}

}  // namespace
}  // namespace weft::device
