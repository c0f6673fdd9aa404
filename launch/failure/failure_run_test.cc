// `weft run` whose ranks, real processes, fail in some way: what its table and
// its events call them.

#include <signal.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::launch {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using ::weft::testing::IsOkAndHolds;

constexpr absl::Duration kLong = absl::Seconds(60);

class FailureRun : public ::testing::Test {
 protected:
  // Three trainers run `script`, in which `await FILE` waits for a file of $D,
  // `lost RANK` says whom it has lost, and `dead` waits until the one that said
  // `dies` has ended.
  void Run(std::vector<std::string> flags, const std::string& script) {
    std::vector<std::string> argv = {testing::RunfilePath("launch/weft"), "run",
                                     "--events=" + dir_.Path("events"),
                                     "--nproc-per-node=3"};
    argv.insert(argv.end(), flags.begin(), flags.end());
    for (const std::string& word :
         {std::string("sh"), std::string("-c"),
          absl::StrCat("D=", dir_.path(),
                       "; await() { while ! [ -e $D/$1 ]; do sleep 0.02; done; "
                       "}; lost() { echo \"error: trainer$1 is gone\"; }; "
                       "dies() { echo $$ > $D/own; mv $D/own $D/pid; }; "
                       "dead() { await pid; while grep -q \"^State:.[^Z]\" "
                       "/proc/$(cat $D/pid)/status 2>/dev/null; do sleep 0.02; "
                       "done; }; ",
                       script)}) {
      argv.push_back(word);
    }
    auto process = testing::Process::Start({std::move(argv), {}});
    ASSERT_THAT(process, testing::IsOk());
    const auto code = (*process)->Wait(kLong);
    output_ = (*process)->output();
    ASSERT_THAT(code, testing::IsOk()) << output_;
    code_ = *code;
  }

  // The events "failure", in the order of the file.
  std::vector<json> Failures() const {
    std::ifstream file(dir_.Path("events"));
    std::vector<json> all;
    for (std::string line; std::getline(file, line);) {
      const json event = json::parse(line, nullptr, false);
      EXPECT_TRUE(event.is_object()) << line;
      if (event["event"] == "failure") all.push_back(event);
    }
    return all;
  }

  // The rows of the last table, each by "rank class victim_of".
  std::vector<std::string> LastTable() const {
    std::vector<std::string> rows;
    for (const json& event : Failures()) {
      if (event["place"] == 0) rows.clear();
      rows.push_back(absl::StrCat(event["rank"].get<std::string>(), " ",
                                  event["class"].get<std::string>(), " ",
                                  event["victim_of"].get<std::string>()));
    }
    return rows;
  }

  const testing::TempDir dir_;
  std::string output_;
  int code_ = -1;
};

TEST_F(FailureRun, KilledTrainerOfThreeIsTheCauseOfThoseThatLostIt) {
  Run({"--log-dir=" + dir_.Path("logs")},
      "[ $RANK = 2 ] && { dies; kill -9 $$; }; dead; lost 2; exit 10");
  EXPECT_THAT(code_, AnyOf(128 + SIGKILL, 10));  // as either is heard of first
  EXPECT_THAT(output_, HasSubstr("---- trainer2 failed first"));
  EXPECT_THAT(output_, ContainsRegex("trainer2 .*killed by SIGKILL .*killed by "
                                     "a signal"));
  EXPECT_THAT(output_, HasSubstr("all of its output: " +
                                 dir_.Path("logs/trainer2.log")));
  const std::vector<std::string> rows = LastTable();
  ASSERT_EQ(rows.size(), 3u) << output_;
  EXPECT_EQ(rows[0], "trainer2 killed-by-signal ");
  const json cause = Failures().front();
  EXPECT_EQ(cause["log_file"], dir_.Path("logs/trainer2.log"));
  EXPECT_EQ(cause["exit_code"], 128 + SIGKILL);
  EXPECT_EQ(cause["shrunk"], false);
}

// Its cause ends only once its launcher has heard of it.
TEST_F(FailureRun, VictimThatExitsBeforeTheCauseIsNamedBehindIt) {
  Run({},
      "if [ $RANK = 1 ]; then trap \"\" TERM; touch $D/ready1; await heard; "
      "kill -9 $$; fi; "
      "[ $RANK = 0 ] && { await ready1; await ready2; lost 1; touch $D/lost; "
      "exit 10; }; "
      "trap \"touch $D/heard; exit 0\" TERM; touch $D/ready2; "
      "while :; do sleep 0.02; done");
  EXPECT_EQ(code_, 10) << output_;
  EXPECT_THAT(output_, HasSubstr("---- trainer1 failed first"));
  EXPECT_THAT(output_, HasSubstr("trainer0 names it: error: trainer1 is gone"));
  const std::vector<std::string> rows = LastTable();
  EXPECT_EQ(rows, (std::vector<std::string>{"trainer1 killed-by-signal ",
                                            "trainer0 lost-peer trainer1",
                                            "trainer2 ended-by-launcher "}))
      << output_;
}

TEST_F(FailureRun, SegmentationFaultIsTheCauseOfVictimsOfAnyExitCode) {
  Run({},
      "[ $RANK = 1 ] && { dies; kill -SEGV $$; }; dead; echo connection "
      "closed; exit 1");
  const std::vector<std::string> rows = LastTable();
  ASSERT_EQ(rows.size(), 3u) << output_;
  EXPECT_EQ(rows[0], "trainer1 killed-by-signal ") << output_;
  EXPECT_THAT(output_, ContainsRegex("trainer1 .*killed by SIGSEGV"));
}

TEST_F(FailureRun, RefusedInputIsSaidAndTheOthersAreEndedByTheLauncher) {
  Run({},
      "[ $RANK = 0 ] && { echo \"error: --rolle names no flag (usage)\"; "
      "exit 2; }; exec sleep 1000");
  EXPECT_EQ(code_, 2);
  std::vector<std::string> rows = LastTable();
  ASSERT_EQ(rows.size(), 3u) << output_;
  EXPECT_EQ(rows[0], "trainer0 refused-input ");
  rows.erase(rows.begin());
  // They end in any order.
  EXPECT_THAT(rows, UnorderedElementsAre("trainer1 ended-by-launcher ",
                                         "trainer2 ended-by-launcher "))
      << output_;
}

TEST_F(FailureRun, ElasticJobThatShrinksWritesTheTableAndTheOthersGoOn) {
  Run({"--elastic=1:3"},
      "if [ $RANK = 1 ] && mkdir $D/once; then kill -SEGV $$; fi; "
      "[ $RANK = 1 ] && touch $D/again; await again");
  EXPECT_EQ(code_, 0) << output_;
  EXPECT_THAT(output_, HasSubstr("---- trainer1 failed; 2 of this node go on"));
  EXPECT_THAT(output_, HasSubstr("starting it again, and the others go on"));
  EXPECT_THAT(output_, Not(HasSubstr("failed first")));
  const std::vector<json> rows = Failures();
  ASSERT_EQ(rows.size(), 1u) << output_;
  EXPECT_EQ(rows[0]["rank"], "trainer1");
  EXPECT_EQ(rows[0]["class"], "killed-by-signal");
  EXPECT_EQ(rows[0]["shrunk"], true);
}

}  // namespace
}  // namespace weft::launch
