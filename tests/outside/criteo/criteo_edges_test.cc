// Click logs as users have them: files of a spreadsheet, of another system, cut
// off, empty, packed twice. What is promised is quoted from input/criteo.h.

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/input/criteo.h"
#include "weft/input/gzip_fixture.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::input {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::vector<std::string> Fields(int label = 1) {
  std::vector<std::string> fields = {absl::StrCat(label)};
  for (int i = 0; i < criteo::kDense; ++i) fields.push_back(absl::StrCat(i));
  for (int i = 0; i < criteo::kFields; ++i) {
    fields.push_back(absl::StrCat(absl::Hex(0xabc0 + i, absl::kZeroPad8)));
  }
  return fields;
}
std::string Line(const std::vector<std::string>& fields) {
  return absl::StrJoin(fields, "\t");
}
// A good line whose field `at` is `text`.
std::string With(int at, const std::string& text) {
  std::vector<std::string> fields = Fields();
  fields[at] = text;
  return Line(fields);
}
absl::StatusOr<CriteoRows> Parse(const std::string& text, bool skips = false) {
  CriteoOptions options;
  options.skip_bad_lines = skips;
  return ParseCriteo(text, options, "file");
}

class CriteoFile : public ::testing::Test {
 protected:
  absl::StatusOr<CriteoDataset> Open(const std::string& bytes,
                                     bool skips = false,
                                     int64_t max_bytes = 1 << 20) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    CriteoDataset::Options options;
    options.path = path_;
    options.criteo.skip_bad_lines = skips;
    options.max_bytes = max_bytes;
    return CriteoDataset::Open(options);
  }
  testing::TempDir dir_;
  const std::string path_ = dir_.Path("train.txt");
};

// "Lines end with \n or \r\n; the last may lack it." In any mixture.
TEST_F(CriteoFile, AnyEndsOfLinesGiveTheSameRows) {
  const std::string a = Line(Fields(0)), b = Line(Fields(1));
  for (const std::string& text :
       {a + "\n" + b + "\n", a + "\n" + b, a + "\r\n" + b + "\r\n",
        a + "\r\n" + b, a + "\n" + b + "\r\n", a + "\r\n" + b + "\n"}) {
    const std::string members =
        Gzip(text.substr(0, 7)) + Gzip("") + Gzip(text.substr(7));
    for (const std::string& bytes : {text, Gzip(text), members}) {
      const auto data = Open(bytes);
      ASSERT_THAT(data, IsOk());
      ASSERT_EQ(data->size(), 2);
      const auto batch = data->GetBatch({1, 0});
      ASSERT_THAT(batch, IsOk());
      EXPECT_EQ((*batch)[2].ToVector<float>(), (std::vector<float>{1, 0}));
      EXPECT_EQ((*batch)[0].ToVector<int64_t>()[25],
                criteo::KeyOf(25, 0xabc0 + 25));
      EXPECT_EQ((*batch)[1].ToVector<float>()[12], std::log1p(12.0f));
    }
  }
  // An empty last field, with either end and without one.
  std::vector<std::string> last = Fields();
  last.back() = "";
  for (const std::string end : {"", "\n", "\r\n"}) {
    const auto data = Open(Line(last) + end);
    ASSERT_THAT(data, IsOk()) << end.size();
    EXPECT_EQ((*data->Get(0))[0].ToVector<int64_t>()[25],
              criteo::MissingKeyOf(25));
  }
}

// "Also if all lines were skipped, or there is none": with and without skips.
TEST_F(CriteoFile, FilesWithoutARowAreRefusedByTheirName) {
  for (const bool skips : {false, true}) {
    for (const std::string& bytes :
         {std::string(), std::string("\n"), std::string("\r\n"),
          std::string("\n\n\n"), Gzip(""), std::string("label,I1,I2\n"),
          std::string("\xef\xbb\xbf"), std::string(1000, '\0'),
          std::string(50000, '\t')}) {
      const auto data = Open(bytes, skips);
      EXPECT_THAT(data, StatusIs(kInvalid, path_)) << bytes.size();
    }
  }
  CriteoDataset::Options options;
  options.path = dir_.Path("nowhere");
  EXPECT_THAT(CriteoDataset::Open(options),
              StatusIs(absl::StatusCode::kNotFound, "nowhere"));
  options.path = dir_.path();
  EXPECT_THAT(CriteoDataset::Open(options), StatusIs(kInvalid, dir_.path()));
  options.path = "";
  EXPECT_FALSE(CriteoDataset::Open(options).ok());
}

// "kInvalidArgument, with line and column counted from 1".
TEST(CriteoLines, WhatIsWrongIsSaidWithLineAndColumn) {
  const std::string good = Line(Fields());
  const auto expect = [&](const std::string& bad, const std::string& column) {
    for (const std::string end : {"\n", "\r\n", ""}) {
      const auto rows = Parse(good + "\n" + good + "\r\n" + bad + end);
      EXPECT_THAT(rows, StatusIs(kInvalid, "file")) << bad;
      EXPECT_THAT(rows.status().ToString(), HasSubstr("3")) << bad;
      EXPECT_THAT(rows.status().ToString(), HasSubstr(column)) << bad;
    }
  };
  for (const std::string label :
       {"", "2", "-1", "01", "1.0", "0 ", " 1", "true", "\"1\"", "x"}) {
    expect(With(0, label), "1");
  }
  for (const std::string integer :
       {"1.5", "x", "1e3", " 1", "1 ", "+-1", "0x10", "9223372036854775808",
        "-9223372036854775809", "99999999999999999999999", "1,000", "\"1\"",
        "-", "nan"}) {
    expect(With(13, integer), "14");
  }
  for (const std::string category : {"123456789", "g", "0x12", " ab", "ab ",
                                     "-1", "\"ab\"", "ab,cd", "\xff"}) {
    expect(With(14, category), "15");
    expect(With(39, category), "40");
  }
  // 39 and 41 fields, commas or blanks in place of tabs, a blank line.
  std::vector<std::string> fields = Fields();
  fields.pop_back();
  expect(Line(fields), "39");
  fields = Fields();
  fields.push_back("");
  expect(Line(fields), "41");
  expect(absl::StrJoin(Fields(), ","), "1");
  expect(absl::StrJoin(Fields(), " "), "1");
}

// The first line counts, too, and what a file of another program begins with.
TEST(CriteoLines, ByteOrderMarkAndHeaderAreBadLinesAsOthers) {
  const std::string good = Line(Fields());
  for (const std::string& first :
       {"\xef\xbb\xbf" + good, std::string("label\tI1\tI2"), std::string(),
        std::string("# comment"), good + "\r"}) {
    const std::string text = first + "\r\n" + good + "\n" + good;
    EXPECT_THAT(Parse(text), StatusIs(kInvalid, "1"));
    const auto rows = Parse(text, true);
    ASSERT_THAT(rows, IsOk()) << first;
    EXPECT_EQ(rows->size(), 2) << first;
    EXPECT_EQ(rows->skipped, 1) << first;
    EXPECT_THAT(rows->first_skipped, HasSubstr("1"));
  }
}

// "an integer of 64 bits, or nothing; 1 to 8 hexadecimal digits, or nothing";
// "log(1 + x); 0 where x is missing or negative".
TEST(CriteoLines, ValuesAtTheirEdgesAreTaken) {
  const std::vector<std::pair<std::string, float>> integers = {
      {"", 0},
      {"-1", 0},
      {"0", 0},
      {"-9223372036854775808", 0},
      {"9223372036854775807", std::log1p(9223372036854775807.0f)},
      {"1", std::log(2.0f)}};
  for (const auto& [text, wanted] : integers) {
    const auto rows = Parse(With(1, text));
    ASSERT_THAT(rows, IsOk()) << text;
    EXPECT_FLOAT_EQ(rows->dense[0], wanted) << text;
  }
  const std::vector<std::pair<std::string, uint32_t>> categories = {
      {"0", 0},
      {"ffffffff", 0xffffffff},
      {"FFFFFFFF", 0xffffffff},
      {"00000000", 0},
      {"a", 10},
      {"DeadBeef", 0xdeadbeef}};
  for (const auto& [text, wanted] : categories) {
    const auto rows = Parse(With(14, text));
    ASSERT_THAT(rows, IsOk()) << text;
    EXPECT_EQ(rows->categories[0], wanted) << text;
    EXPECT_EQ(rows->missing[0], 0u);
  }
  // All missing: 26 keys that differ, and from every category's.
  std::vector<std::string> none(40);
  none[0] = "0";
  const auto rows = Parse(Line(none));
  ASSERT_THAT(rows, IsOk());
  EXPECT_EQ(rows->missing[0], (1u << 26) - 1);
  EXPECT_THAT(rows->dense, Each(0));
  for (int f = 0; f < criteo::kFields; ++f) {
    for (int g = 0; g < criteo::kFields; ++g) {
      EXPECT_NE(criteo::MissingKeyOf(f), criteo::KeyOf(g, 0xffffffff));
      EXPECT_EQ(criteo::MissingKeyOf(f) == criteo::MissingKeyOf(g), f == g);
    }
  }
}

// Any text is rows and bad lines, and never more: each line that is not skipped
// is a row, whatever bytes change.
TEST(CriteoLines, RandomDamageIsSkippedLineByLine) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (int line = 0; line < 4; ++line) text += Line(Fields(line % 2)) + "\n";
    for (int n = static_cast<int>(random() % 4); n >= 0; --n) {
      const char bytes[] = "\t\n\r\0-0f9 g\x80";
      text[random() % text.size()] = bytes[random() % (sizeof(bytes) - 1)];
    }
    const auto rows = Parse(text, true);
    if (!rows.ok()) continue;
    int64_t lines = 0;
    for (const auto line : absl::StrSplit(text, '\n')) lines += !line.empty();
    EXPECT_LE(rows->size() + rows->skipped, lines + 5);
    EXPECT_THAT(rows->dense, SizeIs(rows->size() * criteo::kDense));
    EXPECT_THAT(rows->categories, SizeIs(rows->size() * criteo::kFields));
    EXPECT_THAT(rows->missing, SizeIs(rows->size()));
    for (const float x : rows->dense) EXPECT_TRUE(std::isfinite(x) && x >= 0);
    EXPECT_EQ(rows->skipped == 0, rows->first_skipped.empty());
  }
}

// read_file.h: "kInvalidArgument for a [...] damaged or cut gzip stream;
// kResourceExhausted over max_bytes"; "`max_bytes`: of the file, unpacked".
TEST_F(CriteoFile, PackedFilesThatAreCutDamagedOrTooLargeAreRefused) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += Line(Fields(i % 2)) + "\n";
  const std::string packed = Gzip(text);
  EXPECT_THAT(Open(packed), IsOk());
  for (const size_t cut : {size_t{10}, packed.size() / 2, packed.size() - 1}) {
    EXPECT_THAT(Open(packed.substr(0, cut)), StatusIs(kInvalid, path_)) << cut;
    // Nor with skips: what is missing is no bad line.
    EXPECT_THAT(Open(packed.substr(0, cut), true), StatusIs(kInvalid, path_));
  }
  std::string flipped = packed;
  flipped[flipped.size() / 2] ^= 0x40;
  EXPECT_THAT(Open(flipped, true), StatusIs(kInvalid, path_));
  EXPECT_FALSE(Open(packed + "tail").ok());
  // Packed twice: the text is no click log.
  EXPECT_THAT(Open(Gzip(packed)), StatusIs(kInvalid, path_));
  EXPECT_THAT(Open(packed, false, 1000),
              StatusIs(absl::StatusCode::kResourceExhausted, path_));
  EXPECT_THAT(Open(text, false, static_cast<int64_t>(text.size()) - 1),
              StatusIs(absl::StatusCode::kResourceExhausted, path_));
  EXPECT_THAT(Open(text, false, static_cast<int64_t>(text.size())), IsOk());
}

// dataset.h: places outside of it are an error, and a batch of none is one.
TEST_F(CriteoFile, PlacesOutsideAreRefusedAndABatchOfNoneIsOne) {
  const auto data = Open(Line(Fields()) + "\n");
  ASSERT_THAT(data, IsOk());
  for (const int64_t place :
       {int64_t{-1}, int64_t{1}, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    EXPECT_FALSE(data->Get(place).ok()) << place;
    EXPECT_FALSE(data->GetBatch({0, place}).ok()) << place;
  }
  const auto none = data->GetBatch({});
  if (none.ok()) {
    EXPECT_EQ((*none)[0].shape(), (Shape{0, criteo::kFields}));
    EXPECT_EQ((*none)[1].shape(), (Shape{0, criteo::kDense}));
    EXPECT_EQ((*none)[2].shape(), (Shape{0}));
  }
}

}  // namespace
}  // namespace weft::input
