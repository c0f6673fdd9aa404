#include "weft/input/libsvm.h"

#include <fstream>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::input {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseLibSvm, ReadsRowsOfAnyLength) {
  const auto rows =
      ParseLibSvm("+1 1:0.5 7:-2\r\n\n# all comment\n-1 # none\n0 3:1", "f");
  WEFT_ASSERT_OK(rows);
  EXPECT_THAT(rows->labels, ElementsAre(1, -1, 0));
  EXPECT_THAT(rows->offsets, ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(rows->indices, ElementsAre(1, 7, 3));
  EXPECT_THAT(rows->values, ElementsAre(0.5f, -2.0f, 1.0f));
  EXPECT_EQ(rows->features, 8);
}

TEST(ParseLibSvm, ErrorNamesTheLine) {
  EXPECT_THAT(ParseLibSvm("1 1:1\n1 x\n", "f"),
              StatusIs(kInvalid, "f:2: wanted index:value"));
  EXPECT_THAT(ParseLibSvm("1 -1:1", "f"), StatusIs(kInvalid, "-1:1"));
  EXPECT_THAT(ParseLibSvm("1 1099511627777:1", "f"),
              StatusIs(kInvalid, "[0, 2^40]"));
  EXPECT_THAT(ParseLibSvm("1 3:1 3:2", "f"),
              StatusIs(kInvalid, "wanted an index above 3"));
  EXPECT_THAT(ParseLibSvm("1 3:inf", "f"), StatusIs(kInvalid, "\"inf\""));
  EXPECT_THAT(ParseLibSvm("one 3:1", "f"), StatusIs(kInvalid, "\"one\""));
}

TEST(LibSvmDataset, BatchesAsEmbeddingBagTakesThem) {
  const TempDir dir;
  std::ofstream(dir.Path("d.svm")) << "1 1:10 5:50\n0\n1 2:20\n";
  const auto data = LibSvmDataset::Open(dir.Path("d.svm"));
  WEFT_ASSERT_OK(data);
  EXPECT_EQ(data->features(), 6);
  const auto batch = data->GetBatch({2, 1, 0});
  WEFT_ASSERT_OK(batch);
  EXPECT_THAT((*batch)[0].ToVector<int64_t>(), ElementsAre(2, 1, 5));
  EXPECT_THAT((*batch)[1].ToVector<float>(), ElementsAre(20, 10, 50));
  EXPECT_THAT((*batch)[2].ToVector<int64_t>(), ElementsAre(0, 1, 1));
  EXPECT_THAT((*batch)[3].ToVector<float>(), ElementsAre(1, 0, 1));
  const auto row = data->Get(0);
  WEFT_ASSERT_OK(row);
  EXPECT_EQ(row->size(), 3u);
  EXPECT_EQ((*row)[2].item<float>(), 1.0f);
}

}  // namespace
}  // namespace weft::input
