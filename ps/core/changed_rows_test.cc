#include "weft/ps/core/changed_rows.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<int64_t> NumbersOf(const RowSet& rows) {
  std::vector<int64_t> numbers;
  for (int64_t at = rows.FirstFrom(0); at >= 0; at = rows.FirstFrom(at + 1)) {
    numbers.push_back(at);
  }
  return numbers;
}

TEST(ChangedRows, KnowsWhatHasChangedSinceTheNewestFreeze) {
  ChangedRows rows;
  EXPECT_FALSE(rows.Freeze({"a", ""}).has_value());
  rows.Change(3);
  rows.Change(5);
  rows.Change(3);
  const auto since = rows.Freeze({"b", "a"});
  ASSERT_TRUE(since.has_value());
  EXPECT_THAT(NumbersOf(since->rows), ElementsAre(3, 5));
  EXPECT_THAT(since->removed, IsEmpty());
  rows.Change(1);
  const auto next = rows.Freeze({"c", "b"});
  ASSERT_TRUE(next.has_value());
  EXPECT_THAT(NumbersOf(next->rows), ElementsAre(1));
}

TEST(ChangedRows, WhatAFreezeThatWasGivenUpHadIsInTheNext) {
  ChangedRows rows;
  (void)rows.Freeze({"a", ""});
  rows.Change(3);
  ASSERT_TRUE(rows.Remove(7, 9, 70));
  for (int i = 0; i < 5; ++i) {
    const auto given_up = rows.Freeze({absl::StrCat("lost", i), "a"});
    ASSERT_TRUE(given_up.has_value());
    rows.Change(10 + i);
  }
  const auto since = rows.Freeze({"b", "a"});
  ASSERT_TRUE(since.has_value());
  EXPECT_THAT(NumbersOf(since->rows), ElementsAre(3, 10, 11, 12, 13, 14));
  EXPECT_THAT(since->removed, ElementsAre(70u));
}

TEST(ChangedRows, OtherBasesAreNotKnown) {
  ChangedRows rows;
  EXPECT_FALSE(rows.Freeze({"a", "before"}).has_value());
  EXPECT_FALSE(rows.Freeze({"b", "other"}).has_value());
  EXPECT_FALSE(rows.Freeze({"c", "a"}).has_value()) << "b took its place";
  EXPECT_TRUE(rows.Freeze({"d", "c"}).has_value());
  EXPECT_FALSE(rows.Freeze({"e", ""}).has_value()) << "none was wanted";
  EXPECT_FALSE(rows.Freeze({"f", "c"}).has_value());
  EXPECT_TRUE(rows.Freeze({"g", "f"}).has_value());
}

TEST(ChangedRows, TheLastRowTakesThePlaceOfOneThatGoes) {
  ChangedRows rows;
  (void)rows.Freeze({"a", ""});
  rows.Change(9);
  (void)rows.Freeze({"b", "a"});
  rows.Change(2);
  ASSERT_TRUE(rows.Remove(2, 9, 20));  // 9, which changed before b, is 2 now
  ASSERT_TRUE(rows.Remove(8, 8, 80));
  auto since_a = rows.Freeze({"c", "a"});
  ASSERT_TRUE(since_a.has_value());
  EXPECT_THAT(NumbersOf(since_a->rows), ElementsAre(2));
  EXPECT_THAT(since_a->removed, UnorderedElementsAre(20u, 80u));
}

TEST(ChangedRows, OneAttemptThatIsFrozenTwiceHasAllSinceItsFirst) {
  ChangedRows rows;
  (void)rows.Freeze({"a", ""});
  rows.Change(1);
  (void)rows.Freeze({"b", "a"});
  rows.Change(2);
  const auto again = rows.Freeze({"b", "a"});
  ASSERT_TRUE(again.has_value());
  EXPECT_THAT(NumbersOf(again->rows), ElementsAre(1, 2));
  rows.Change(3);
  const auto since_b = rows.Freeze({"c", "b"});
  ASSERT_TRUE(since_b.has_value());
  // Whichever of the two was written: 2 may not be in the first.
  EXPECT_THAT(NumbersOf(since_b->rows), ElementsAre(2, 3));
}

TEST(ChangedRows, GivesUpWhenTooManyRowsHaveGone) {
  ChangedRows rows;
  (void)rows.Freeze({"a", ""});
  for (int64_t i = 0; i < ChangedRows::kLeastRemoved; ++i) {
    ASSERT_TRUE(rows.Remove(0, 100, static_cast<uint64_t>(i)));
  }
  EXPECT_TRUE(rows.Remove(0, 100, 5)) << "that key had gone before";
  EXPECT_FALSE(rows.Remove(0, 100, 99999));
  ChangedRows large;
  (void)large.Freeze({"a", ""});
  for (int64_t i = 0; i < 5000; ++i) {
    ASSERT_TRUE(large.Remove(0, 10'000, static_cast<uint64_t>(i)));
  }
  EXPECT_FALSE(large.Remove(0, 10'000, 5000));
}

}  // namespace
}  // namespace weft::ps
