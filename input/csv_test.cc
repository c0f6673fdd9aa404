#include "weft/input/csv.h"

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

TEST(ParseCsv, ReadsNamesAndNumbers) {
  const auto table =
      ParseCsv("a,\"b \"\"x\"\"\"\r\n1, -2.5 \n\"3\",4e1", {}, "f");
  WEFT_ASSERT_OK(table);
  EXPECT_THAT(table->names, ElementsAre("a", "b \"x\""));
  EXPECT_EQ(table->values.shape(), Shape({2, 2}));
  EXPECT_EQ(table->values.ToVector<float>(),
            std::vector<float>({1, -2.5, 3, 40}));
}

TEST(ParseCsv, TakesOtherDelimitersAndNoHeader) {
  const auto table = ParseCsv("1;2\n3;4\n", {';', false, {}}, "f");
  WEFT_ASSERT_OK(table);
  EXPECT_TRUE(table->names.empty());
  EXPECT_EQ(table->values.ToVector<float>(), std::vector<float>({1, 2, 3, 4}));
  EXPECT_EQ(ParseCsv("a,b\n", {}, "f")->values.numel(), 0);
}

TEST(ParseCsv, PutsAValueForEmptyFieldsOnlyIfOneIsGiven) {
  CsvOptions options;
  EXPECT_THAT(ParseCsv("a,b\n1,\n", options, "f"),
              StatusIs(kInvalid, "f:2, column 2: wanted a finite number"));
  options.missing = -1.0f;
  EXPECT_EQ(ParseCsv("a,b\n1,\n", options, "f")->values.ToVector<float>(),
            std::vector<float>({1, -1}));
}

TEST(ParseCsv, ErrorNamesLineAndColumn) {
  EXPECT_THAT(ParseCsv("a,b\n1,2\n3,x\n", {}, "f"),
              StatusIs(kInvalid,
                       "f:3, column 2: wanted a finite number, found "
                       "\"x\""));
  EXPECT_THAT(ParseCsv("a,b\n1,nan\n", {}, "f"), StatusIs(kInvalid, "nan"));
  EXPECT_THAT(ParseCsv("a,b\n1,0x10\n", {}, "f"), StatusIs(kInvalid, "0x10"));
  EXPECT_THAT(ParseCsv("", {}, "f"), StatusIs(kInvalid, "f: wanted at least"));
  EXPECT_THAT(ParseCsv("a,b\n1,1e99\n", {}, "f"), StatusIs(kInvalid, "1e99"));
  EXPECT_THAT(ParseCsv("a,b\n1\n", {}, "f"),
              StatusIs(kInvalid, "f:2: wanted 2 fields, found 1"));
  EXPECT_THAT(ParseCsv("a,b\n1,\"2\n3", {}, "f"),
              StatusIs(kInvalid, "f:2: a quoted field does not end"));
  EXPECT_THAT(ParseCsv("a,b\n1,\"2\"3\n", {}, "f"),
              StatusIs(kInvalid, "f:2: wanted ','"));
}

TEST(ParseCsv, CountsLinesInsideQuotedFields) {
  EXPECT_THAT(ParseCsv("\"a\nb\",c\n1,x\n", {}, "f"),
              StatusIs(kInvalid, "f:3, column 2"));
}

TEST(CsvDataset, SeparatesTheLabelColumn) {
  const TempDir dir;
  std::ofstream(dir.Path("d.csv")) << "x,y,z\n1,2,3\n4,5,6\n";
  CsvDataset::Options options;
  options.path = dir.Path("d.csv");
  options.label_column = "y";
  const auto data = CsvDataset::Open(options);
  WEFT_ASSERT_OK(data);
  EXPECT_EQ(data->features(), 2);
  const auto batch = data->GetBatch({1, 0});
  WEFT_ASSERT_OK(batch);
  EXPECT_EQ((*batch)[0].ToVector<float>(), std::vector<float>({4, 6, 1, 3}));
  EXPECT_EQ((*batch)[1].ToVector<float>(), std::vector<float>({5, 2}));
  options.label_column = "w";
  EXPECT_THAT(CsvDataset::Open(options), StatusIs(kInvalid, "no column \"w\""));
  options.csv.header = false;  // nothing names the columns
  std::ofstream(dir.Path("d.csv")) << "1,2,3\n4,5,6\n";
  EXPECT_THAT(CsvDataset::Open(options), StatusIs(kInvalid, "no column \"w\""));
}

}  // namespace
}  // namespace weft::input
