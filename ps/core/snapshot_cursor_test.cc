#include "weft/ps/core/snapshot_cursor.h"

#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Rest(SnapshotCursor& cursor) {
  std::vector<int64_t> numbers;
  for (int64_t n = cursor.Next(); n >= 0; n = cursor.Next()) {
    numbers.push_back(n);
  }
  return numbers;
}

TEST(SnapshotCursor, GivesEachRowOnce) {
  SnapshotCursor cursor(5);
  EXPECT_EQ(cursor.Next(), 0);
  EXPECT_FALSE(cursor.Take(0));  // the reader has it
  EXPECT_TRUE(cursor.Take(3));
  EXPECT_FALSE(cursor.Take(3));
  EXPECT_EQ(cursor.left(), 3);
  EXPECT_THAT(Rest(cursor), ElementsAre(1, 2, 4));
  EXPECT_EQ(cursor.left(), 0);
  EXPECT_FALSE(cursor.Take(4));
}

TEST(SnapshotCursor, HasNoRowsThatCameLater) {
  SnapshotCursor cursor(2);
  EXPECT_FALSE(cursor.Take(2));
  EXPECT_FALSE(cursor.Take(1'000'000));
  SnapshotCursor empty(0);
  EXPECT_FALSE(empty.Take(0));
  EXPECT_EQ(empty.Next(), SnapshotCursor::kNone);
}

TEST(SnapshotCursor, MarksRowsOfManyBlocks) {
  constexpr int64_t kRows = 3 * 4096 + 7;
  SnapshotCursor cursor(kRows);
  for (int64_t n = kRows - 1; n >= 0; n -= 2) EXPECT_TRUE(cursor.Take(n));
  const std::vector<int64_t> rest = Rest(cursor);
  EXPECT_EQ(rest.size(), static_cast<size_t>(kRows / 2));
  for (int64_t n : rest) EXPECT_EQ(n % 2, 1);
}

// A store as RowStore is: rows are numbered, and the last one takes the number
// of one that goes. A row is a key and a value.
class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed) {
    for (int i = 0, n = Below(200); i < n; ++i) rows_.push_back({++key_, 0});
  }

  // Whatever happens between, the snapshot is the store as it was.
  void Check() {
    for (int i = 0, n = Below(50); i < n; ++i) Change();
    const std::vector<Row> wanted = rows_;
    SnapshotCursor cursor(static_cast<int64_t>(rows_.size()));
    cursor_ = &cursor;
    while (cursor.left() > 0) {
      if (Below(3) == 0) {
        copied_.push_back(rows_[cursor.Next()]);
      } else {
        Change();
      }
    }
    cursor_ = nullptr;
    Change();
    std::map<uint64_t, int> by_key;
    for (const Row& row : copied_) {
      ASSERT_TRUE(by_key.emplace(row.first, row.second).second) << row.first;
    }
    ASSERT_EQ(by_key, (std::map<uint64_t, int>(wanted.begin(), wanted.end())));
  }

 private:
  using Row = std::pair<uint64_t, int>;

  int Below(int n) { return static_cast<int>(random_() % n); }
  void Before(size_t number) {
    if (cursor_ != nullptr && cursor_->Take(static_cast<int64_t>(number))) {
      copied_.push_back(rows_[number]);
    }
  }
  void Change() {
    switch (rows_.empty() ? 0 : Below(4)) {
      case 0:
        rows_.push_back({++key_, 0});
        return;
      case 1: {
        const size_t number = Below(static_cast<int>(rows_.size()));
        Before(number);
        Before(rows_.size() - 1);
        rows_[number] = rows_.back();
        rows_.pop_back();
        return;
      }
      default: {
        const size_t number = Below(static_cast<int>(rows_.size()));
        Before(number);
        ++rows_[number].second;
        return;
      }
    }
  }

  std::mt19937_64 random_;
  uint64_t key_ = 0;
  std::vector<Row> rows_;
  std::vector<Row> copied_;
  SnapshotCursor* cursor_ = nullptr;
};

TEST(SnapshotCursor, SnapshotIsTheStoreAsItWasWhateverChangesMeanwhile) {
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(seed);
    Model(seed).Check();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace weft::ps
