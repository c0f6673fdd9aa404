#include "weft/launch/failure/failure_report.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RankReport Rank(const std::string& name, Exit exit, int after_seconds,
                const std::string& line = "") {
  RankReport rank;
  rank.name = name;
  rank.pid = 100;
  rank.exit = exit;
  rank.after = absl::Seconds(after_seconds);
  if (!line.empty()) rank.tail = {"begins", line};
  return rank;
}

std::string ReportOf(const FailureFacts& facts) {
  return FailureReport(facts, MakeFailureTable(facts));
}

class FailureReportTest : public ::testing::Test {
 protected:
  FailureReportTest() {
    facts_.roles = {{"ps", 2}, {"trainer", 1}};
    facts_.host = "h";
    facts_.first = "trainer0";
    facts_.ranks = {
        Rank("trainer0", {10, 0}, 2, "error: ps1: is gone (peer lost)"),
        Rank("ps0", {10, 0}, 3, "error: trainer0 has left (peer lost)")};
    facts_.ranks[1].was_asked = true;
  }
  FailureFacts facts_;
};

TEST_F(FailureReportTest, NamesAServerThatIsStoppedBeforeItsVictims) {
  RankReport stopped = Rank("ps1", {0, 0}, 5);
  stopped.was_asked = stopped.was_stopped = true;
  facts_.ranks.push_back(stopped);
  const std::string report = ReportOf(facts_);
  EXPECT_THAT(report, StartsWith("weft: ---- ps1 failed first\n"));
  EXPECT_THAT(report, HasSubstr("how: stopped by a signal"));
  EXPECT_THAT(report,
              HasSubstr("trainer0 names it: error: ps1: is gone (peer lost)"));
  EXPECT_THAT(report, ContainsRegex("trainer0 +h +exit code 10 .peer lost. +2s "
                                    "+victim of ps1 +-\n"));
  EXPECT_THAT(report, ContainsRegex("ps0 +h +exit code 10 .peer lost. +3s "
                                    "+victim of trainer0 +-\n"));
}

// The launcher hears of the victim's end first, and has asked the other to end
// when it hears of that.
TEST_F(FailureReportTest, NamesAServerWhoseDeathIsHeardOfAfterItsVictims) {
  RankReport killed = Rank("ps1", {0, SIGKILL}, 2);
  killed.was_asked = true;
  facts_.ranks.push_back(killed);
  EXPECT_THAT(ReportOf(facts_), StartsWith("weft: ---- ps1 failed first\n"));
  facts_.ranks.back().exit = {0, SIGTERM};  // as it was asked
  EXPECT_THAT(ReportOf(facts_), AllOf(HasSubstr("trainer0 failed first"),
                                      HasSubstr("it lost ps1, which ended")));
}

TEST_F(FailureReportTest, NamesARankOfAnotherNode) {
  EXPECT_THAT(ReportOf(facts_),
              AllOf(StartsWith("weft: ---- ps1 failed first\n"),
                    HasSubstr("only trainer0 names it"),
                    HasSubstr("it runs on another node")));
}

TEST_F(FailureReportTest, SaysWhetherMemoryWasWanting) {
  facts_.ranks = {Rank("trainer0", {0, SIGKILL}, 2)};
  facts_.ranks[0].peak_bytes = int64_t{3} << 30;
  facts_.ranks[0].oom_kills = {-1, 1};
  EXPECT_THAT(ReportOf(facts_),
              AllOf(HasSubstr("memory: 3.0 GiB at most; the kernel killed 1 "),
                    HasSubstr("it wrote nothing"),
                    ContainsRegex("trainer0 .* out of memory ")));
  facts_.ranks[0].oom_kills = {-1, 0};
  EXPECT_THAT(ReportOf(facts_), HasSubstr("killed no process"));
  facts_.ranks[0].exit = {3, 0};
  EXPECT_THAT(ReportOf(facts_), Not(HasSubstr("killed no process")));
}

// A table is read by columns: all rows of it have the same.
TEST_F(FailureReportTest, ColumnsOfTheTableBeginInOnePlace) {
  RankReport killed = Rank("ps1", {0, SIGKILL}, 2);
  facts_.ranks.push_back(killed);
  const std::vector<std::string> lines = absl::StrSplit(ReportOf(facts_), '\n');
  ASSERT_GE(lines.size(), 5u);
  const size_t why = lines[1].find("why");
  ASSERT_NE(why, std::string::npos);
  EXPECT_EQ(lines[2].find("killed by a signal"), why);
  EXPECT_EQ(lines[3].find("victim of ps1"), why);
  EXPECT_EQ(lines[4].find("victim of trainer0"), why);
}

TEST_F(FailureReportTest, OfManyVictimsAFewLinesAreShownAndAllRows) {
  facts_.roles = {{"ps", 2}, {"trainer", 40}};
  facts_.log_dir = "/logs";
  for (int i = 1; i < 40; ++i) {
    facts_.ranks.push_back(Rank(absl::StrCat("trainer", i), {10, 0}, 4,
                                "error: ps1 is gone (peer lost)"));
  }
  const std::string report = ReportOf(facts_);
  EXPECT_THAT(report, ContainsRegex("trainer39 .*victim of ps1"));
  EXPECT_THAT(report, HasSubstr("ps0: error: trainer0 has left (peer lost); "
                                "all of its output: /logs/ps0.log\n"));
  EXPECT_THAT(report, HasSubstr("  and 33 more that failed\n"));
}

TEST_F(FailureReportTest, OfAJobThatGoesOnSaysHowManyDo) {
  facts_.is_shrunk = true;
  facts_.going_on = 3;
  facts_.ranks = {Rank("trainer0", {0, SIGSEGV}, 2)};
  EXPECT_THAT(
      ReportOf(facts_),
      AllOf(StartsWith("weft: ---- trainer0 failed; 3 of this node go on\n"),
            Not(HasSubstr("failed first"))));
}

TEST_F(FailureReportTest, FieldsAreThoseOfTheRows) {
  facts_.ranks.push_back(Rank("ps1", {0, SIGKILL}, 2, "last"));
  const auto rows = FailureFields(facts_, MakeFailureTable(facts_));
  ASSERT_EQ(rows.size(), 3u);
  const auto text = [&](size_t row, const std::string& key) -> std::string {
    for (const telemetry::Field& field : rows[row]) {
      if (field.key == key) return std::get<std::string>(field.value);
    }
    return "none";
  };
  EXPECT_EQ(text(0, "rank"), "ps1");
  EXPECT_EQ(text(0, "class"), "killed-by-signal");
  EXPECT_EQ(text(0, "last_lines"), "begins\nlast");
  EXPECT_EQ(text(1, "rank"), "trainer0");
  EXPECT_EQ(text(1, "class"), "lost-peer");
  EXPECT_EQ(text(1, "victim_of"), "ps1");
}

TEST_F(FailureReportTest, PrintsNoControlCharactersOfARank) {
  facts_.ranks[0].tail = {"\x1b[2J", "error: ps1 \x1b[2J"};
  EXPECT_THAT(ReportOf(facts_), Not(HasSubstr("\x1b")));
}

TEST(IsStopped, TellsAProcessThatIsStoppedFromOneThatRuns) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT_FALSE(IsStopped(child));
  kill(child, SIGSTOP);
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  EXPECT_TRUE(IsStopped(child));
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  EXPECT_FALSE(IsStopped(child));
}

}  // namespace
}  // namespace weft::launch
