#include "weft/ps/export/difference.h"

#include <limits>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/export/saved_tables.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::ps {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;

class Differences : public ::testing::Test {
 protected:
  Difference Between(const std::vector<TableContent>& a,
                     const std::vector<TableContent>& b, float model_b = 1.5f) {
    // The two were saved by different numbers of servers, which does not
    // matter.
    const auto before = Opened(SaveTables(dir_.path(), 1, a, 2));
    const auto after = Opened(SaveTables(dir_.path(), 2, b, 3, model_b));
    const auto difference = DifferenceBetween(*before, *after);
    EXPECT_THAT(difference, IsOk());
    return *difference;
  }

  testing::TempDir dir_;

 private:
  std::shared_ptr<const SavedCheckpoint> Opened(const std::string& name) {
    auto opened = SavedCheckpoint::Open(dir_.path(), name);
    EXPECT_THAT(opened, IsOk());
    return *std::move(opened);
  }
};

TEST_F(Differences, OfWhatIsEqualIsNone) {
  EXPECT_TRUE(
      Between({Words(50), Vector(5000)}, {Words(50), Vector(5000)}).IsNone());
}

TEST_F(Differences, OfASparseTableAreRowsAddedRemovedAndChanged) {
  const TableContent a = Words(50);
  TableContent b = Words(53);
  b.rows.erase(WordKey(10));
  b.rows[WordKey(20)][1] += 4.0f;
  b.rows[WordKey(30)][0] -= 6.0f;
  const Difference difference = Between({a}, {b});
  ASSERT_EQ(difference.tables.size(), 1u);
  const TableDifference& words = difference.tables[0];
  EXPECT_TRUE(words.is_compared);
  EXPECT_EQ(words.rows_a, 50);
  EXPECT_EQ(words.rows_b, 52);
  EXPECT_EQ(words.added, 3);
  EXPECT_EQ(words.removed, 1);
  EXPECT_EQ(words.changed, 2);
  EXPECT_EQ(words.state_changed, 0);
  EXPECT_EQ(words.weights.elements, 2);
  EXPECT_EQ(words.weights.largest, 6);
  EXPECT_EQ(words.largest_key, WordKey(30));
  EXPECT_FALSE(difference.IsNone());
}

TEST_F(Differences, OfADenseTableAreElements) {
  TableContent b = Vector(5000);
  b.version = 4;
  b.rows[0][3] += 2;
  b.rows[4][0] -= 1;
  b.rows[4][1] = std::numeric_limits<float>::quiet_NaN();
  const TableDifference vector = Between({Vector(5000)}, {b}).tables.at(0);
  EXPECT_TRUE(vector.is_dense);
  EXPECT_EQ(vector.weights.elements, 3);
  EXPECT_EQ(vector.weights.largest, std::numeric_limits<double>::infinity());
  EXPECT_EQ(vector.version_a, 3);
  EXPECT_EQ(vector.version_b, 4);
  EXPECT_EQ(vector.changed, 2);  // slices
}

TEST_F(Differences, OfTablesThatAreNotInBothOrOfAnotherFormAreSaid) {
  TableContent wide = Words(4);
  wide.spec.set_dim(3);
  for (auto& [key, row] : wide.rows) row.push_back(0);
  const Difference difference = Between({Words(4), Vector(5)}, {wide});
  ASSERT_EQ(difference.tables.size(), 2u);
  EXPECT_FALSE(difference.tables[0].is_in_b);  // vector
  EXPECT_FALSE(difference.tables[1].is_compared);
  EXPECT_THAT(difference.tables[1].spec, HasSubstr("dim"));
  EXPECT_FALSE(difference.IsNone());
}

TEST_F(Differences, OfTheTrainersModelAreElementsToo) {
  const Difference difference = Between({Words(4)}, {Words(4)}, 1.75f);
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_EQ(difference.tensors[0].name, "bias");
  EXPECT_EQ(difference.tensors[0].elements.elements, 3);
  EXPECT_EQ(difference.tensors[0].elements.largest, 0.25);
  EXPECT_FALSE(difference.IsNone());
}

}  // namespace
}  // namespace weft::ps
