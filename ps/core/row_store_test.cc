#include "weft/ps/core/row_store.h"

#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
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
  EXPECT_FALSE(rows.Find(0).exists());
  EXPECT_FALSE(rows.Find(7).exists());
  EXPECT_TRUE(rows.FindAll({}).empty());
  EXPECT_EQ(rows.size(), 0);
}

TEST(RowStore, NewRowIsZeroAndKeepsWrittenValues) {
  RowStore rows(3, 0);
  RowStore::Row row = rows.Add(~uint64_t{0});
  EXPECT_EQ(rows.key(row), ~uint64_t{0});
  EXPECT_EQ(rows.step(row), 0u);
  EXPECT_THAT(std::vector<float>(rows.floats(row), rows.floats(row) + 3),
              Each(0.0f));
  rows.set_step(row, 4000000000u);
  rows.floats(row)[0] = 1;
  rows.floats(row)[2] = 3;
  const RowStore::Row other = rows.Add(0);
  row = rows.Find(~uint64_t{0});
  EXPECT_EQ(rows.step(row), 4000000000u);
  EXPECT_EQ(rows.step(other), 0u);
  EXPECT_THAT(std::vector<float>(rows.floats(row), rows.floats(row) + 3),
              ElementsAre(1, 0, 3));
}

// The values by which tests know rows; 0 where there is none.
std::vector<float> ValuesOf(const RowStore& rows,
                            absl::Span<const RowStore::Row> found) {
  std::vector<float> values;
  for (RowStore::Row row : found) {
    values.push_back(row.exists() ? *rows.floats(row) : 0);
  }
  return values;
}
void Add(RowStore& rows, uint64_t key, float value) {
  *rows.floats(rows.Add(key)) = value;
}

TEST(RowStore, SameKeysAgainAreFoundWhereTheyAre) {
  RowStore rows(1, 0);
  const std::vector<uint64_t> keys = {7, 8};
  const auto found = [&] { return ValuesOf(rows, rows.FindAll(keys)); };
  Add(rows, 7, 1);
  EXPECT_THAT(found(), ElementsAre(1, 0));
  Add(rows, 8, 2);
  EXPECT_THAT(found(), ElementsAre(1, 2));
  for (uint64_t key = 100; key < 200; ++key) {  // rows move
    Add(rows, key, 3);
    ASSERT_THAT(found(), ElementsAre(1, 2));
  }
  rows.Clear();
  EXPECT_THAT(found(), Each(0));
  Add(rows, 8, 4);
  EXPECT_THAT(found(), ElementsAre(0, 4));
}

TEST(RowStore, KeyThatRepeatsIsFoundEachTime) {
  RowStore rows(1, 0);
  Add(rows, 7, 1);
  EXPECT_THAT(ValuesOf(rows, rows.FindAll({7, 8, 7, 7})),
              ElementsAre(1, 0, 1, 1));
}

TEST(RowStore, FindOrAddAllMakesWhatIsMissingAndNothingElse) {
  RowStore rows(1, 0);
  std::vector<uint64_t> made;
  const auto make = [&](uint64_t key, RowStore::Row row) {
    made.push_back(key);
    EXPECT_EQ(*rows.floats(row), 0.0f);
    *rows.floats(row) = static_cast<float>(key);
  };
  EXPECT_TRUE(rows.FindOrAddAll({}, make).empty());
  EXPECT_THAT(ValuesOf(rows, rows.FindOrAddAll({5, 6}, make)),
              ElementsAre(5, 6));
  EXPECT_THAT(ValuesOf(rows, rows.FindOrAddAll({4, 5, 6, 7}, make)),
              ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(ValuesOf(rows, rows.FindOrAddAll({4, 5, 6, 7}, make)),
              ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(made, ElementsAre(5, 6, 4, 7));
  std::vector<uint64_t> keys(RowStore::kMostKeys);
  std::vector<float> wanted;
  for (int i = 0; i < 20; ++i) {  // the last chunk moves while they are added
    wanted.clear();
    for (size_t k = 0; k < keys.size(); ++k) {
      keys[k] = 1000 + i * 100 + k;
      wanted.push_back(static_cast<float>(keys[k]));
    }
    ASSERT_EQ(ValuesOf(rows, rows.FindOrAddAll(keys, make)), wanted);
  }
  EXPECT_EQ(rows.size(), 4 + 19 * 100 + 256);
}

// The key whose mixed value is `mixed`.
uint64_t Unmix64(uint64_t mixed) {
  mixed = (mixed ^ (mixed >> 31) ^ (mixed >> 62)) * 0x319642b2d24d8ec3u;
  mixed = (mixed ^ (mixed >> 27) ^ (mixed >> 54)) * 0x96de1b173f119089u;
  return (mixed ^ (mixed >> 30) ^ (mixed >> 60)) - 0x9e3779b97f4a7c15u;
}

// Keys that somebody chose: all go to one group, the first or the last, with
// one tag, or with each of them, of which one stands for a place that is free.
TEST(RowStore, FindsKeysOfOneGroupAndOneTag) {
  for (const uint64_t upper : {uint64_t{0}, ~uint64_t{0} << 32}) {
    for (const bool one_tag : {true, false}) {
      for (const int placed_bits : {0, 10}) {
        RowStore rows(1, placed_bits);
        std::vector<uint64_t> keys;
        for (uint64_t i = 0; i < 600; ++i) {
          keys.push_back(Unmix64(upper | (one_tag ? i << 8 : i)));
          ASSERT_EQ(Mix64(keys.back()) >> 32, upper >> 32);
        }
        for (size_t i = 0; i < keys.size(); ++i) {
          ASSERT_FALSE(rows.Find(keys[i]).exists()) << i;
          Add(rows, keys[i], static_cast<float>(i));
          ASSERT_EQ(*rows.floats(rows.Find(keys[i / 2])),
                    static_cast<float>(i / 2));
        }
        for (size_t i = 0; i < keys.size(); ++i) {
          ASSERT_EQ(*rows.floats(rows.Find(keys[i])), static_cast<float>(i));
        }
        ASSERT_FALSE(rows.Find(Unmix64(upper | 0xfffff00)).exists());
        ASSERT_FALSE(rows.Find(Unmix64(upper ^ (uint64_t{1} << 63))).exists());
      }
    }
  }
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
        ASSERT_EQ(row.exists(), wanted.count(key) != 0);
        if (!row.exists()) row = rows.Add(key);
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
        found.insert(found.end(), its.begin(), its.end());
      }
      ASSERT_FALSE(found.back().exists());
      for (size_t i = 0; i + 1 < keys.size(); ++i) {
        ASSERT_EQ(rows.key(found[i]), keys[i]);
        ASSERT_EQ(rows.floats(found[i])[0], wanted[keys[i]]);
        ASSERT_EQ(rows.floats(found[i])[floats - 1], wanted[keys[i]]);
      }
      rows.Clear();
      ASSERT_EQ(rows.size(), 0);
      ASSERT_FALSE(rows.Find(keys[0]).exists());
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
