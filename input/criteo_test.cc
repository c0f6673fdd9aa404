#include "weft/input/criteo.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/input/gzip_fixture.h"
#include "weft/tensor/shape.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::input {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::weft::testing::StatusIs;
using ::weft::testing::TempDir;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// A line of `label`, integers 0, 1, ..., 12 and categories 0, 1, ..., 19
// (hexadecimal), with the fields of `other` in place of some.
std::string Line(const std::string& label,
                 const std::vector<std::pair<int, std::string>>& other = {}) {
  std::vector<std::string> fields = {label};
  for (int j = 0; j < criteo::kDense; ++j) fields.push_back(absl::StrCat(j));
  for (int f = 0; f < criteo::kFields; ++f) {
    fields.push_back(absl::StrCat(absl::Hex(f, absl::kZeroPad8)));
  }
  for (const auto& [column, field] : other) fields[column - 1] = field;
  return absl::StrJoin(fields, "\t");
}

TEST(ParseCriteo, ReadsLabelsIntegersAndCategories) {
  const auto rows = ParseCriteo(
      Line("1") + "\n" + Line("0", {{15, "FFFFFFFF"}, {16, "a"}}), {}, "f");
  WEFT_ASSERT_OK(rows);
  ASSERT_EQ(rows->size(), 2);
  EXPECT_THAT(rows->labels, ElementsAre(1, 0));
  EXPECT_EQ(rows->dense.size(), 2u * criteo::kDense);
  EXPECT_EQ(rows->dense[0], 0);
  EXPECT_FLOAT_EQ(rows->dense[12], std::log(13.0f));
  EXPECT_EQ(rows->categories[25], 0x19u);
  EXPECT_EQ(rows->categories[26], 0xffffffffu);
  EXPECT_EQ(rows->categories[27], 0xau);
  EXPECT_THAT(rows->missing, Each(0));
  EXPECT_EQ(rows->skipped, 0);
}

TEST(ParseCriteo, FieldsMayBeMissingAndIntegersNegative) {
  const auto rows = ParseCriteo(Line("0", {{2, ""},
                                           {3, "-3"},
                                           {4, "-9223372036854775808"},
                                           {5, "9223372036854775807"},
                                           {14, ""},
                                           {15, ""},
                                           {40, ""}}) +
                                    "\r\n",
                                {}, "f");
  WEFT_ASSERT_OK(rows);
  EXPECT_THAT(std::vector<float>(rows->dense.begin(), rows->dense.begin() + 3),
              Each(0));
  EXPECT_FLOAT_EQ(
      rows->dense[3],
      std::log(static_cast<float>(std::numeric_limits<int64_t>::max())));
  EXPECT_EQ(rows->dense[12], 0);
  EXPECT_THAT(rows->missing, ElementsAre(1u | 1u << 25));
}

TEST(ParseCriteo, ErrorNamesLineColumnAndWhatWasWanted) {
  const struct {
    std::string line, wanted;
  } kCases[] = {
      {Line("2"), "f:2, column 1: wanted a label of 0 or 1, found \"2\""},
      {Line(""), "f:2, column 1: wanted a label of 0 or 1, found \"\""},
      {Line("0", {{2, "1.5"}}),
       "f:2, column 2: wanted an integer of 64 bits, or nothing, found "
       "\"1.5\""},
      {Line("0", {{14, "9223372036854775808"}}), "f:2, column 14: wanted an "},
      {Line("0", {{14, " 7"}}), "f:2, column 14: wanted an integer"},
      {Line("0", {{15, "68fd1e6g"}}),
       "f:2, column 15: wanted 1 to 8 hexadecimal digits, or nothing, found "
       "\"68fd1e6g\""},
      {Line("0", {{40, "123456789"}}), "f:2, column 40: wanted 1 to 8"},
      {Line("0", {{40, "0x1"}}), "f:2, column 40: wanted 1 to 8"},
      {Line("0", {{40, std::string(1000, 'x')}}), "xxx...\""},
      {Line("0", {{40, std::string("\0", 1)}}), "found \"\\x00\""},
      {Line("0") + "\t",
       "f:2: wanted 40 fields with tabs between (label, 13 "
       "integers, 26 categories), found 41"},
      {"", "f:2: wanted 40 fields"},
      {"0,1,2", "found 1"},
      {Line("0").substr(2), "found 39"},  // as the test set, without a label
  };
  for (const auto& [line, wanted] : kCases) {
    const std::string text = Line("1") + "\n" + line + "\n" + Line("1");
    EXPECT_THAT(ParseCriteo(text, {}, "f"), StatusIs(kInvalid, wanted)) << line;
  }
  EXPECT_THAT(ParseCriteo("", {}, "f"), StatusIs(kInvalid, "an empty file"));
}

TEST(ParseCriteo, BadLinesAreSkippedAndCountedOnlyIfAskedTo) {
  const std::string text =
      absl::StrJoin({Line("1"), std::string("x"), Line("0"), Line("3"),
                     Line("0", {{2, "?"}}), Line("1")},
                    "\n");
  EXPECT_THAT(ParseCriteo(text, {}, "f"), StatusIs(kInvalid, "f:2: wanted"));
  CriteoOptions skip;
  skip.skip_bad_lines = true;
  const auto rows = ParseCriteo(text, skip, "f");
  WEFT_ASSERT_OK(rows);
  EXPECT_THAT(rows->labels, ElementsAre(1, 0, 1));
  EXPECT_EQ(rows->skipped, 3);
  EXPECT_THAT(rows->first_skipped, ::testing::StartsWith("f:2: wanted 40"));
  // A file of another form is an error all the same.
  EXPECT_THAT(
      ParseCriteo("a\nb\n", skip, "f"),
      StatusIs(kInvalid, "none of 2 lines could be read; the first: f:1: "));
}

TEST(CriteoDataset, BatchesAreThoseOfTheOtherClickData) {
  const TempDir dir;
  const std::string text = Line("1") + "\n" + Line("x") + "\n" +
                           Line("0", {{2, ""}, {15, ""}}) + "\n";
  std::ofstream(dir.Path("clicks.gz"), std::ios::binary) << Gzip(text);
  CriteoDataset::Options options;
  options.path = dir.Path("clicks.gz");
  EXPECT_THAT(CriteoDataset::Open(options),
              StatusIs(kInvalid, "clicks.gz:2, column 1"));
  options.criteo.skip_bad_lines = true;
  const auto data = CriteoDataset::Open(options);
  WEFT_ASSERT_OK(data);
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(data->skipped(), 1);
  const auto batch = data->GetBatch({1, 0});
  WEFT_ASSERT_OK(batch);
  ASSERT_EQ(batch->size(), 3u);
  EXPECT_EQ((*batch)[0].shape(), Shape({2, criteo::kFields}));
  EXPECT_EQ((*batch)[1].shape(), Shape({2, criteo::kDense}));
  EXPECT_THAT((*batch)[2].ToVector<float>(), ElementsAre(0, 1));
  const auto keys = (*batch)[0].ToVector<int64_t>();
  EXPECT_EQ(keys[0], criteo::MissingKeyOf(0));
  EXPECT_EQ(keys[1], criteo::KeyOf(1, 1));
  EXPECT_EQ(keys[26], criteo::KeyOf(0, 0));
  const auto one = data->Get(0);
  WEFT_ASSERT_OK(one);
  EXPECT_EQ((*one)[0].shape(), Shape({criteo::kFields}));
  EXPECT_EQ((*one)[2].item<float>(), 1);
  EXPECT_THAT(data->Get(2), StatusIs(kInvalid, "CriteoDataset"));
}

}  // namespace
}  // namespace weft::input
