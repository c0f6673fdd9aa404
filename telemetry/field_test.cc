#include "weft/telemetry/field.h"

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/telemetry/field_json.h"

namespace weft::telemetry {
namespace {

using ::nlohmann::ordered_json;

// The UTF-8 of one code point, by RFC 3629's table.
std::string Utf8(uint32_t c) {
  const auto tail = [c](int shift) {
    return static_cast<char>(0x80 | (c >> shift & 0x3F));
  };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) {
    return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  }
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

// What may change a terminal, end a line or turn the direction of text.
bool IsControl(uint32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E ||
         c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069) || c == 0xFEFF;
}

bool IsAscii(absl::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7F) return false;
  }
  return true;
}

// nlohmann's parser takes valid UTF-8 only.
bool IsUtf8(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    quoted.push_back(c);
  }
  return ordered_json::accept(quoted + "\"");
}

TEST(Printable, LeavesEachCharacterThatIsSafeAndNoOther) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;  // Surrogates are no characters.
    const std::string text = "a" + Utf8(c) + "z";
    const std::string shown = Printable(text);
    if (!IsControl(c)) {
      ASSERT_EQ(shown, text) << c;
    } else {
      ASSERT_TRUE(IsAscii(shown)) << c;
      ASSERT_EQ(shown.front(), 'a');
      ASSERT_EQ(shown.back(), 'z');
      ASSERT_EQ(shown[1], '\\') << c;
    }
  }
}

// Each pair of bytes, alone and before the end of a longer sequence.
TEST(Printable, OfAnyBytesIsSafeUtf8) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      for (const absl::string_view end : {"", "\x80", "\x80\xBF", "x"}) {
        std::string text = {static_cast<char>(first),
                            static_cast<char>(second)};
        text.append(end.data(), end.size());
        const std::string shown = Printable(text);
        ASSERT_TRUE(IsUtf8(shown)) << first << " " << second;
        ASSERT_EQ(Printable(shown), shown);  // Nothing is left to escape.
      }
    }
  }
}

TEST(Printable, RefusesOverlongFormsSurrogatesAndWhatIsTooLarge) {
  for (const absl::string_view bad :
       {"\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xED\xBF\xBF", "\xF0\x80\x80\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80", "\xE2\x82",
        "\xF0\x9F\x98"}) {
    EXPECT_TRUE(IsAscii(Printable(bad))) << Printable(bad);
  }
}

// One line, of characters that are safe to show, that reads back as it was.
TEST(DumpLine, OfEachCharacterReadsBack) {
  for (uint32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c < 0xE000) continue;
    const ordered_json object = {{"k" + Utf8(c), Utf8(c) + "\\\""}};
    const std::string line = DumpLine(object);
    ASSERT_EQ(ordered_json::parse(line), object) << c;
    ASSERT_EQ(Printable(line), line) << c;
  }
}

TEST(DumpLine, OfAnyBytesIsOneSafeLine) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first),
                                static_cast<char>(second)};
      const std::string line = DumpLine(ordered_json(text));
      ASSERT_EQ(Printable(line), line) << first << " " << second;
      ASSERT_TRUE(ordered_json::accept(line));
    }
  }
}

TEST(Field, HoldsEachKindOfValue) {
  const auto text = [](const Field& field) { return ToText(field); };
  EXPECT_EQ(text({"k", true}), "k=true");
  EXPECT_EQ(text({"k", std::numeric_limits<int64_t>::min()}),
            "k=-9223372036854775808");
  EXPECT_EQ(text({"k", std::numeric_limits<uint64_t>::max()}),
            "k=18446744073709551615");
  EXPECT_EQ(text({"k", int8_t{-1}}), "k=-1");
  EXPECT_EQ(text({"k", uint8_t{200}}), "k=200");
  EXPECT_EQ(text({"k", 0.5f}), "k=0.5");
  EXPECT_EQ(text({"k", std::numeric_limits<double>::infinity()}), "k=inf");
  EXPECT_EQ(text({"k", absl::Milliseconds(1500)}), "k=1.5s");
  EXPECT_EQ(text({"k", absl::NotFoundError("no x")}), "k=\"NOT_FOUND: no x\"");
  EXPECT_EQ(text({"k", ""}), "k=\"\"");
  EXPECT_EQ(text({"k", "a b"}), "k=\"a b\"");
  EXPECT_EQ(text({"k", "a=b"}), "k=\"a=b\"");
  EXPECT_EQ(text({"k", "a\nb"}), "k=\"a\\nb\"");
  EXPECT_EQ(text({"k", "x\\\" admin=true"}), "k=\"x\\\\\\\" admin=true\"");
  EXPECT_EQ(text({"k\n", absl::string_view("v")}), "k\\n=v");
}

// JSON has no infinity and no NaN.
TEST(ToJson, KeepsValuesAsTheyAre) {
  const Fields fields = {{"b", false},
                         {"i", int64_t{-5}},
                         {"u", std::numeric_limits<uint64_t>::max()},
                         {"d", 0.1},
                         {"n", std::numeric_limits<double>::quiet_NaN()},
                         {"m", -std::numeric_limits<double>::infinity()}};
  EXPECT_EQ(DumpLine(ToJson(fields)),
            R"({"b":false,"i":-5,"u":18446744073709551615,"d":0.1,)"
            R"("n":"nan","m":"-inf"})");
}

}  // namespace
}  // namespace weft::telemetry
