#include "weft/ps/core/row_store.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <list>
#include <random>
#include <unordered_map>
#include <utility>
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

// --- Removal -----------------------------------------------------------------

// Keys of which many want the same places: those of a partition, and few of
// them, so that each comes and goes often.
struct RemovalCase {
  uint64_t keys;
  int64_t floats;
  int operations;
  double grows;  // how much likelier a row is made than removed, at first
};

class Removal : public ::testing::TestWithParam<RemovalCase> {};

TEST_P(Removal, KeepsWhatAMapKeeps) {
  const RemovalCase& is = GetParam();
  RowStore rows(is.floats, 0);
  std::unordered_map<uint64_t, float> wanted;
  std::mt19937_64 random(17);
  for (int i = 0; i < is.operations; ++i) {
    const uint64_t key = random() % is.keys;
    // It fills for a while, and then empties, and so on.
    const double odds = i / 50000 % 2 == 0 ? is.grows : 1 - is.grows;
    const bool makes = static_cast<double>(random() % 1000) < odds * 1000;
    if (makes) {
      const auto [it, is_new] =
          wanted.emplace(key, static_cast<float>(random() % 1000));
      ASSERT_EQ(rows.Find(key).exists(), !is_new);
      if (is_new) {
        const RowStore::Row row = rows.Add(key);
        for (int64_t f = 0; f < is.floats; ++f) {
          ASSERT_EQ(rows.floats(row)[f], 0) << "of a row that was there before";
          rows.floats(row)[f] = it->second;
        }
        RowStore::set_step(row, static_cast<uint32_t>(key));
      }
    } else {
      ASSERT_EQ(rows.Remove(key), wanted.erase(key) == 1);
    }
    ASSERT_EQ(rows.size(), static_cast<int64_t>(wanted.size()));
    const uint64_t other = random() % is.keys;
    const RowStore::Row found = rows.Find(other);
    const auto expected = wanted.find(other);
    ASSERT_EQ(found.exists(), expected != wanted.end()) << "operation " << i;
    if (!found.exists()) continue;
    ASSERT_EQ(RowStore::key(found), other);
    ASSERT_EQ(rows.floats(found)[is.floats - 1], expected->second);
  }
  for (int64_t i = 0; i < rows.size(); ++i) {
    const RowStore::Row row = rows.At(i);
    ASSERT_EQ(wanted.at(RowStore::key(row)), *rows.floats(row));
    ASSERT_EQ(RowStore::step(row), static_cast<uint32_t>(RowStore::key(row)));
  }
  for (const auto& [key, value] : wanted) {
    ASSERT_EQ(*rows.floats(rows.Find(key)), value);
  }
}

INSTANTIATE_TEST_SUITE_P(RowStore, Removal,
                         ::testing::Values(RemovalCase{12, 1, 400000, 0.6},
                                           RemovalCase{300, 3, 1000000, 0.7},
                                           RemovalCase{50000, 2, 2000000, 0.8},
                                           RemovalCase{200, 5000, 50000, 0.7}));

TEST(RowStore, RememberedRowsAreForgottenOnceOneIsRemoved) {
  RowStore rows(1, 0);
  for (uint64_t key = 0; key < 100; ++key) {
    Add(rows, key, static_cast<float>(key + 1));
  }
  const std::vector<uint64_t> keys = {3, 99, 50};
  EXPECT_THAT(ValuesOf(rows, rows.FindAll(keys)), ElementsAre(4, 100, 51));
  EXPECT_TRUE(rows.Remove(3));  // the last one takes its block
  EXPECT_THAT(ValuesOf(rows, rows.FindAll(keys)), ElementsAre(0, 100, 51));
  EXPECT_FALSE(rows.Remove(3));
}

TEST(RowStore, MemoryOfRemovedRowsIsGivenBack) {
  RowStore rows(1, 0);
  constexpr uint64_t kRows = 200000;
  for (uint64_t key = 0; key < kRows; ++key) Add(rows, key, 1);
  const int64_t full = rows.memory_bytes();
  for (uint64_t key = 0; key < kRows - 1000; ++key) rows.Remove(key);
  EXPECT_LT(rows.memory_bytes(), full / 50);
  for (uint64_t key = kRows - 1000; key < kRows; ++key) rows.Remove(key);
  EXPECT_EQ(rows.size(), 0);
  EXPECT_FALSE(rows.Find(0).exists());
  Add(rows, 0, 2);
  EXPECT_EQ(*rows.floats(rows.Find(0)), 2);
}

TEST(RowStore, GrowthIsWhatItTakes) {
  for (const int64_t floats : {1, 100, 5000}) {
    RowStore rows(floats, 0);
    std::mt19937_64 random(3);
    for (uint64_t key = 0; key < 3000;) {
      const auto n = static_cast<int64_t>(1 + random() % 200);
      const int64_t before = rows.memory_bytes();
      const int64_t growth = rows.GrowthOf(n);
      for (int64_t i = 0; i < n; ++i) rows.Add(key++);
      // But for the list of chunks, 16 bytes each at most, and the last keys.
      const int64_t grown = rows.memory_bytes() - before;
      EXPECT_GE(grown, growth) << key;
      EXPECT_LE(grown, growth + 16 * static_cast<int64_t>(key) + 64) << key;
    }
  }
}

// --- Use ---------------------------------------------------------------------

TEST(RowStore, OldestIsTheOneThatWasNotTouchedForLongest) {
  RowStore rows(1, 0, /*keeps_use=*/true);
  std::list<std::pair<uint64_t, int64_t>> wanted;  // oldest first
  std::unordered_map<uint64_t, decltype(wanted)::iterator> at;
  std::mt19937_64 random(5);
  for (int64_t now = 1; now < 1000000; ++now) {
    const uint64_t key = random() % 3000;
    const bool fills = now / 20000 % 2 == 0;
    const auto it = at.find(key);
    if (it == at.end()) {
      if (rows.size() > (fills ? 2500 : 300)) {
        const RowStore::Row oldest = rows.Oldest();
        ASSERT_EQ(RowStore::key(oldest), wanted.front().first);
        ASSERT_EQ(rows.touched(oldest), wanted.front().second);
        at.erase(wanted.front().first);
        wanted.pop_front();
        ASSERT_TRUE(rows.Remove(RowStore::key(oldest)));
      }
      rows.Touch(rows.Add(key), now);
    } else if (random() % 16 == 0) {  // one from the middle
      ASSERT_TRUE(rows.Remove(key));
      wanted.erase(it->second);
      at.erase(it);
      continue;
    } else {
      rows.Touch(rows.Find(key), now);
      wanted.erase(it->second);
    }
    wanted.emplace_back(key, now);
    at[key] = std::prev(wanted.end());
  }
  while (rows.size() > 0) {
    ASSERT_EQ(RowStore::key(rows.Oldest()), wanted.front().first);
    rows.Remove(wanted.front().first);
    wanted.pop_front();
  }
  EXPECT_TRUE(wanted.empty());
}

TEST(RowStore, OrderOfUseComesBackFromWhenRowsWereTouched) {
  RowStore rows(1, 0, /*keeps_use=*/true);
  // In ascending order of Mix64 within each moment, as messages have them.
  std::vector<uint64_t> order;
  for (uint64_t key = 0; key < 500; ++key) order.push_back(key);
  std::sort(order.begin(), order.end(),
            [](uint64_t a, uint64_t b) { return Mix64(a) < Mix64(b); });
  for (int64_t now = 0; now < 5; ++now) {
    for (uint64_t key : order) {
      if (key % 5 != static_cast<uint64_t>(now)) continue;
      rows.Touch(rows.Add(key), now);
    }
  }
  RowStore copy(1, 0, /*keeps_use=*/true);
  for (int64_t i = rows.size() - 1; i >= 0; --i) {
    const uint64_t key = RowStore::key(rows.At(i));
    copy.SetTouched(copy.Add(key), rows.touched(rows.At(i)), 4);
  }
  copy.SortByUse();
  while (rows.size() > 0) {
    const uint64_t key = RowStore::key(rows.Oldest());
    ASSERT_EQ(RowStore::key(copy.Oldest()), key);
    ASSERT_EQ(copy.touched(copy.Oldest()), rows.touched(rows.Oldest()));
    rows.Remove(key);
    copy.Remove(key);
  }
}

TEST(RowStore, TimesBeyond32BitsTellInWhichOrderRowsWereTouched) {
  RowStore rows(1, 0, /*keeps_use=*/true);
  constexpr int64_t kAge = RowStore::kExactAge;
  rows.Touch(rows.Add(1), 5);
  rows.Touch(rows.Add(2), 3 * kAge);
  rows.Touch(rows.Add(3), 10 * kAge + 7);
  rows.Touch(rows.Find(2), 11 * kAge - 1);
  EXPECT_EQ(rows.touched(rows.Find(2)), 11 * kAge - 1);
  EXPECT_EQ(rows.touched(rows.Find(3)), 10 * kAge + 7);
  EXPECT_EQ(RowStore::key(rows.Oldest()), 1u);
  EXPECT_GE(11 * kAge - 1 - rows.touched(rows.Find(1)), kAge);
}

}  // namespace
}  // namespace weft::ps
