#include "weft/ps/core/row_store.h"

#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/placement.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(RowStore, FindsNothingWhileItIsEmpty) {
  RowStore rows(1, 0);
  EXPECT_EQ(rows.memory_bytes(), 0);
  EXPECT_EQ(rows.Find(0), RowStore::kNoRow);
  EXPECT_EQ(rows.Find(7), RowStore::kNoRow);
  EXPECT_EQ(rows.size(), 0);
}

TEST(RowStore, NewRowIsZeroAndKeepsWrittenValues) {
  RowStore rows(3, 0);
  const RowStore::Row row = rows.Add(~uint64_t{0});
  EXPECT_EQ(rows.key(row), ~uint64_t{0});
  EXPECT_EQ(rows.step(row), 0u);
  EXPECT_THAT(std::vector<float>(rows.floats(row), rows.floats(row) + 3),
              Each(0.0f));
  rows.set_step(row, 4000000000u);
  rows.floats(row)[0] = 1;
  rows.floats(row)[2] = 3;
  const RowStore::Row other = rows.Add(0);
  EXPECT_EQ(rows.step(row), 4000000000u);
  EXPECT_EQ(rows.step(other), 0u);
  EXPECT_THAT(std::vector<float>(rows.floats(row), rows.floats(row) + 3),
              ElementsAre(1, 0, 3));
}

TEST(RowStore, SameKeysAgainAreFoundWhereTheyAre) {
  RowStore rows(1, 0);
  const std::vector<uint64_t> keys = {7, 8};
  const RowStore::Row first = rows.Add(7);
  EXPECT_THAT(rows.FindAll(keys), ElementsAre(first, RowStore::kNoRow));
  const RowStore::Row second = rows.Add(8);
  EXPECT_THAT(rows.FindAll(keys), ElementsAre(first, second));
  rows.Add(9);
  EXPECT_THAT(rows.FindAll(keys), ElementsAre(first, second));
  rows.Clear();
  EXPECT_THAT(rows.FindAll(keys), Each(RowStore::kNoRow));
  const RowStore::Row anew = rows.Add(8);
  EXPECT_THAT(rows.FindAll(keys), ElementsAre(RowStore::kNoRow, anew));
}

// Through all sizes of chunks and of the index, for rows from a few bytes to
// more than a chunk, with keys of one partition and of all.
TEST(RowStore, AgreesWithAMapForRowsOfAnyLength) {
  for (const int64_t floats : {1, 3, 15, 16, 100, 3000}) {
    for (const int placed_bits : {0, 4}) {
      RowStore rows(floats, placed_bits);
      std::unordered_map<uint64_t, float> wanted;
      std::mt19937_64 random(floats);
      for (int i = 0; i < (floats > 1000 ? 300 : 20000); ++i) {
        const uint64_t key = random() % 30000;
        if (placed_bits > 0 && Mix64(key) >> 60 != 5) continue;
        RowStore::Row row = rows.Find(key);
        ASSERT_EQ(row == RowStore::kNoRow, wanted.count(key) == 0);
        if (row == RowStore::kNoRow) row = rows.Add(key);
        wanted[key] = static_cast<float>(i);
        rows.floats(row)[0] = static_cast<float>(i);
        rows.floats(row)[floats - 1] = static_cast<float>(i);
      }
      ASSERT_EQ(rows.size(), static_cast<int64_t>(wanted.size()));
      std::vector<uint64_t> keys;
      for (const auto& [key, value] : wanted) keys.push_back(key);
      keys.push_back(1 << 30);  // not there
      std::vector<RowStore::Row> found;
      for (size_t i = 0; i < keys.size(); i += RowStore::kMostKeys) {
        const auto part =
            absl::MakeConstSpan(keys).subspan(i, RowStore::kMostKeys);
        const auto its = rows.FindAll(part);
        ASSERT_EQ(its, rows.FindAll(part));
        found.insert(found.end(), its.begin(), its.end());
      }
      ASSERT_EQ(found.back(), RowStore::kNoRow);
      for (size_t i = 0; i + 1 < keys.size(); ++i) {
        ASSERT_EQ(rows.key(found[i]), keys[i]);
        ASSERT_EQ(rows.floats(found[i])[0], wanted[keys[i]]);
        ASSERT_EQ(rows.floats(found[i])[floats - 1], wanted[keys[i]]);
      }
      rows.Clear();
      ASSERT_EQ(rows.size(), 0);
      ASSERT_EQ(rows.Find(keys[0]), RowStore::kNoRow);
      ASSERT_EQ(rows.floats(rows.Add(keys[0]))[0], 0.0f);
    }
  }
}

// One weight and two slots, as with Adam: issue 19's bound of 48 bytes, for a
// table's usual share of rows in a partition.
TEST(RowStore, ARowOfOneWeightAndTwoSlotsTakesUnder48Bytes) {
  for (const int64_t n : {1000, 5000, 10000, 100000}) {
    RowStore rows(3, 0);
    for (int64_t key = 0; key < n; ++key) rows.Add(key);
    EXPECT_LT(rows.memory_bytes(), 48 * n) << n << " rows";
    EXPECT_GT(rows.memory_bytes(), 24 * n) << n << " rows";
  }
}

}  // namespace
}  // namespace weft::ps
