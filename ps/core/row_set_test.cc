#include "weft/ps/core/row_set.h"

#include <cstdint>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace weft::ps {
namespace {

TEST(RowSet, IsASetOfNumbersForAnyOperations) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int64_t range = seed % 3 == 0 ? 100 : 20'000;
    RowSet rows;
    std::set<int64_t> wanted;
    for (int i = 0; i < 200; ++i) {
      const auto number = static_cast<int64_t>(random() % range);
      switch (random() % 5) {
        case 0:
          ASSERT_EQ(rows.Remove(number), wanted.erase(number) == 1);
          break;
        case 1: {
          const auto next = wanted.lower_bound(number);
          ASSERT_EQ(rows.FirstFrom(number),
                    next == wanted.end() ? RowSet::kNone : *next);
          break;
        }
        case 2:
          ASSERT_EQ(rows.Contains(number), wanted.count(number) == 1);
          break;
        default:
          ASSERT_EQ(rows.Add(number), wanted.insert(number).second);
          break;
      }
      ASSERT_EQ(rows.size(), static_cast<int64_t>(wanted.size()));
    }
    RowSet both;
    both.Add(7);
    both.AddAll(rows);
    wanted.insert(7);
    int64_t at = -1;
    for (int64_t number : wanted) {
      at = both.FirstFrom(at + 1);
      ASSERT_EQ(at, number);
    }
    EXPECT_EQ(both.FirstFrom(at + 1), RowSet::kNone);
    EXPECT_EQ(both.size(), static_cast<int64_t>(wanted.size()));
    const RowSet moved = std::move(both);
    EXPECT_EQ(moved.size(), static_cast<int64_t>(wanted.size()));
    EXPECT_EQ(both.size(), 0);  // NOLINT: what is left is empty
  }
}

TEST(RowSet, FewRowsOfALargePartitionTakeLittle) {
  RowSet rows;
  rows.Add(10'000'000);
  EXPECT_LT(rows.memory_bytes(), 64 * 1024);
  for (int64_t number = 0; number < 1'000'000; ++number) rows.Add(number);
  EXPECT_LT(rows.memory_bytes(), 1'000'000 / 8 + 64 * 1024);
}

}  // namespace
}  // namespace weft::ps
