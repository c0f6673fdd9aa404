#include "weft/telemetry/logger.h"

#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "weft/base/fake_clock.h"
#include "weft/telemetry/field.h"
#include "weft/tests/support/run_ranks.h"

namespace weft::telemetry {
namespace {

using ::nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

class LoggerTest : public ::testing::Test {
 protected:
  Logger Make(LogFormat format, Level level = Level::kInfo) {
    Logger::Options options;
    options.job = "mnist";
    options.role = "trainer";
    options.rank = 3;
    options.format = format;
    options.level = level;
    options.max_lines_per_second = 2;
    options.output = &out_;
    options.clock = &clock_;
    return Logger(options);
  }
  std::vector<std::string> Lines() const {
    return absl::StrSplit(out_.str(), '\n', absl::SkipEmpty());
  }

  std::ostringstream out_;
  FakeClock clock_;
};

TEST_F(LoggerTest, TextNamesLevelRankMessageFieldsAndPlace) {
  Logger logger = Make(LogFormat::kText);
  WEFT_LOG(logger, Info, "joined after ").With("servers", 2).With("who", "a b")
      << 1.5 << " s";
  EXPECT_THAT(Lines(), ElementsAre(MatchesRegex(
                           "I [0-9:.]+ trainer3 joined after 1.5 s servers=2 "
                           "who=\"a b\" \\(logger_test.cc:[0-9]+\\)")));
}

TEST_F(LoggerTest, JsonKeepsTheTypesOfFields) {
  Logger logger = Make(LogFormat::kJson);
  WEFT_LOG(logger, Warning, "slow")
      .With("bool", true)
      .With("int", -5)
      .With("large", uint64_t{1} << 63)
      .With("real", 0.5)
      .With("nan", std::nan(""))
      .With("took", absl::Milliseconds(1500))
      .With("status", absl::NotFoundError("gone"));
  ASSERT_THAT(Lines(), SizeIs(1));
  const json line = json::parse(Lines()[0]);
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["job"], "mnist");
  EXPECT_EQ(line["role"], "trainer");
  EXPECT_EQ(line["rank"], 3);
  EXPECT_EQ(line["message"], "slow");
  EXPECT_THAT(line["ts"].get<std::string>(),
              MatchesRegex("[0-9]{4}-[0-9-]+T[0-9:.]+Z"));
  EXPECT_EQ(line["fields"], json({{"bool", true},
                                  {"int", -5},
                                  {"large", uint64_t{1} << 63},
                                  {"real", 0.5},
                                  {"nan", "nan"},
                                  {"took", "1.5s"},
                                  {"status", "NOT_FOUND: gone"}}));
}

// What a peer may put into a name or a message.
const std::vector<std::string>& HostileStrings() {
  static const auto& hostile = *new std::vector<std::string>{
      "\",\"level\":\"error",
      "one\ntwo\r\n{\"ts\":0}",
      "\x1b[2J\x1b]0;title\x07",
      std::string("nul\0inside", 10),
      "\xff\xfe not utf-8 \xc3",
      "\xc0\xaf overlong \xed\xa0\x80 surrogate",
      "\xc2\x9b"
      "31m C1 control",
      "back\\slash and {} %s %n",
      std::string(100000, '"'),
  };
  return hostile;
}

TEST_F(LoggerTest, HostileTextIsOneValidJsonLine) {
  for (const std::string& text : HostileStrings()) {
    out_.str("");
    Logger logger = Make(LogFormat::kJson);
    WEFT_LOG(logger, Info, text).With(text, text);
    ASSERT_THAT(Lines(), SizeIs(1)) << text;
    const json line = json::parse(Lines()[0], nullptr, /*exceptions=*/false);
    ASSERT_FALSE(line.is_discarded()) << text;
    EXPECT_EQ(line["level"], "info");
    EXPECT_THAT(line["fields"], SizeIs(1));
  }
}

TEST_F(LoggerTest, HostileTextCannotForgeALineOrMoveTheCursor) {
  for (const std::string& text : HostileStrings()) {
    out_.str("");
    Logger logger = Make(LogFormat::kText);
    WEFT_LOG(logger, Info, text).With(text, text);
    ASSERT_THAT(Lines(), SizeIs(1));
    const std::string line = Lines()[0];
    for (const unsigned char c : line) EXPECT_TRUE(c >= 0x20 && c != 0x7F);
    EXPECT_THAT(line, ::testing::Not(HasSubstr("\xc2\x9b")));
  }
}

TEST_F(LoggerTest, JsonEscapesControlCharactersAndQuotes) {
  Logger logger = Make(LogFormat::kJson, Level::kInfo);
  const std::string raw = "a\u202Eb\x7f\u009B31m\u2028 größe 🙂";
  WEFT_LOG(logger, Info, raw).With("who", raw);
  ASSERT_EQ(Lines().size(), 1u);
  const std::string line = Lines()[0];
  EXPECT_THAT(line, ::testing::HasSubstr("a\\u202eb\\u007f\\u009b31m\\u2028 "
                                         "größe 🙂"));
  const auto parsed = nlohmann::json::parse(line);
  EXPECT_EQ(parsed["message"], raw);
  EXPECT_EQ(parsed["fields"]["who"], raw);
}

TEST(Printable, KeepsPrintableTextAndEscapesTheRest) {
  EXPECT_EQ(Printable("größe 漢字 🙂"), "größe 漢字 🙂");
  EXPECT_EQ(Printable("a\tb\x01\xff"), "a\\tb\\x01\\xff");
  EXPECT_EQ(Printable("\xe6\xbc"), "\\xe6\\xbc");  // cut in the middle
  // Text that is shown in another order than it is read.
  EXPECT_EQ(Printable("gpj\u202Eexe\u2066\u200F\u2028"),
            "gpj\\u202eexe\\u2066\\u200f\\u2028");
}

TEST_F(LoggerTest, ArgumentsBelowTheLevelAreNotEvaluated) {
  Logger logger = Make(LogFormat::kText, Level::kWarning);
  int evaluated = 0;
  WEFT_LOG(logger, Info, "x") << ++evaluated;
  EXPECT_EQ(evaluated, 0);
  EXPECT_THAT(Lines(), IsEmpty());
  logger.SetLevel(Level::kDebug);
  WEFT_LOG(logger, Debug, "x") << ++evaluated;
  EXPECT_THAT(Lines(), SizeIs(1));
}

TEST_F(LoggerTest, RateLimitedCallSiteCountsSuppressedLines) {
  Logger logger = Make(LogFormat::kJson);
  const auto shout = [&] { WEFT_LOG(logger, Info, "again"); };
  for (int i = 0; i < 10; ++i) shout();
  WEFT_LOG(logger, Info, "another place");
  EXPECT_THAT(Lines(), SizeIs(3));
  clock_.Advance(absl::Seconds(1));
  shout();
  ASSERT_THAT(Lines(), SizeIs(4));
  EXPECT_EQ(json::parse(Lines()[3])["fields"]["suppressed"], 8);
}

TEST_F(LoggerTest, LinesOfManyThreadsStayWhole) {
  Logger logger = Make(LogFormat::kJson);
  weft::testing::RunRanks(4, [&](int rank) {
    for (int i = 0; i < 50; ++i) {
      logger.Write(Level::kInfo, {"site.cc", 100 * rank + i}, "hello",
                   {{"rank", rank}});
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(Lines(), SizeIs(200));
  for (const std::string& line : Lines()) {
    EXPECT_TRUE(json::accept(line)) << line;
  }
}

}  // namespace
}  // namespace weft::telemetry
