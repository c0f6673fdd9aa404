// `weft run` whose ranks end in odd ways: at once, all within milliseconds,
// with bytes that are no text, naming ranks that there are not. What is
// promised is quoted from docs/cli.md ("weft run").

#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"
#include "weft/tests/support/temp_dir.h"

namespace weft::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(60);

class Run : public ::testing::Test {
 protected:
  std::unique_ptr<Process> Start(std::vector<std::string> words) {
    words.insert(words.begin(), {RunfilePath("launch/weft"), "run"});
    auto process = Process::Start({std::move(words), {}});
    EXPECT_THAT(process, IsOk());
    return *std::move(process);
  }
  // Runs it; `code_` and `output_` are what became of it.
  void Weft(std::vector<std::string> words) {
    const auto process = Start(std::move(words));
    const auto code = process->Wait(kLong);
    EXPECT_THAT(code, IsOk()) << process->output();
    code_ = code.ok() ? *code : -1;
    output_ = process->output();
    const size_t begin = output_.find("weft: ---- ");
    block_ = begin == output_.npos ? "" : output_.substr(begin);
  }
  // A program that is this shell script.
  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = dir_.Path(name);
    std::ofstream(path) << "#!/bin/bash\n" << text << "\n";
    chmod(path.c_str(), 0700);
    return path;
  }
  // Each line must be an object.
  std::vector<json> Events() {
    std::ifstream file(events_);
    std::vector<json> all;
    for (std::string line; std::getline(file, line);) {
      all.push_back(json::parse(line, nullptr, /*allow_exceptions=*/false));
      EXPECT_TRUE(all.back().is_object()) << line;
      EXPECT_TRUE(all.back().contains("event")) << line;
    }
    return all;
  }
  std::map<std::string, int> Counts() {
    std::map<std::string, int> counts;
    for (const json& event : Events()) ++counts[event["event"]];
    return counts;
  }

  TempDir dir_;
  const std::string events_ = dir_.Path("events");
  int code_ = -1;
  std::string output_, block_;
};

// "one block names the rank that the job failed by, how, and its last 20
// lines"; "Events [...] are objects", whatever a rank has written.
TEST_F(Run, BytesThatAreNoTextAreShownAndNeverPassedToTheTerminalInTheBlock) {
  Weft({"--events=" + events_, "--nproc-per-node=1",
        Script("bytes",
               "for i in $(seq 30); do printf 'n%d\\e[2J\\x00\\xff\\r\\n' $i; "
               "done; printf 'last \\xc3\\x28 \\e]0;title\\a'; exit 7")});
  EXPECT_EQ(code_, 7);
  EXPECT_THAT(block_, HasSubstr("trainer0"));
  EXPECT_THAT(block_, HasSubstr("n12"));
  EXPECT_THAT(block_, HasSubstr("last "));
  EXPECT_THAT(block_, Not(HasSubstr("n11")));
  for (const char c : block_) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c != 0x7f)) << static_cast<int>(c);
  }
  EXPECT_EQ(Counts()["ranks_ended"], 1);
}

// "`rank_ended`", "`job_failed`": each rank begins and ends once, however many
// end at once; "The exit code of `weft run` is that of the rank whose end was
// heard of first".
TEST_F(Run, FiftyRanksThatFailAtOnceAreEachToldOnce) {
  Weft({"--events=" + events_, "--nproc-per-node=50",
        Script("fail", "echo $RANK; exit $((60 + RANK))")});
  std::map<std::string, int> started, ended, codes;
  std::string first, cause;
  int exit_code = -1;
  for (const json& event : Events()) {
    const std::string what = event["event"];
    if (what == "rank_started") ++started[event["rank"]];
    if (what == "rank_ended") ++ended[event["rank"]];
    if (what == "rank_ended") codes[event["rank"]] = event["exit_code"];
    if (what == "job_failed") first = event["first"];
    if (what == "ranks_ended") cause = event["root_cause"];
    if (what == "ranks_ended") exit_code = event["exit_code"];
  }
  ended.erase("coordinator0");
  EXPECT_LE(started.size(), 50u);
  EXPECT_EQ(started, ended);
  for (const auto& [rank, times] : ended) EXPECT_EQ(times, 1) << rank;
  EXPECT_EQ(cause, first);
  EXPECT_EQ(code_, codes[first]);
  EXPECT_EQ(exit_code, code_);
  EXPECT_THAT(block_, HasSubstr(absl::StrCat("---- ", first, " failed")));
  EXPECT_EQ(Counts()["job_failed"], 1);
}

// "a rank that failed by itself or was killed" comes before those that lost it,
// also where all end within milliseconds and the victims are heard of first.
TEST_F(Run, TheOneThatWasKilledIsNamedAmongFortyNineVictims) {
  const std::string go = dir_.Path("go");
  Weft({"--nproc-per-node=50",
        Script("lose", absl::StrCat("if [ $RANK = 33 ]; then sleep 1; touch ",
                                    go, "; kill -9 $$; fi; while ! [ -e ", go,
                                    " ]; do sleep 0.1; done; echo \"error: "
                                    "trainer33: is gone\"; exit 10"))});
  EXPECT_THAT(block_, HasSubstr("---- trainer33 failed first")) << output_;
  EXPECT_THAT(block_, HasSubstr("SIGKILL"));
}

// "of any role but `coordinator`", "role names are checked" (CHANGELOG.md).
TEST_F(Run, RolesThatCouldBeTakenForRanksAreRefused) {
  for (const std::string role :
       {"trainer1", "coordinator", "", "a b", "Ps", "-", "a/b", "\x1b[2J"}) {
    Weft({absl::StrCat("--role=", role, "=1:true")});
    EXPECT_EQ(code_, 2) << role << output_;
    EXPECT_THAT(output_, Not(HasSubstr("\x1b"))) << role;
  }
  // One role's name within another's.
  Weft({"--role=ps=1:sleep 100",
        "--role=a-ps=1:sh -c 'echo \"error: a-ps0 and my_ps0\"; exit 10'"});
  EXPECT_THAT(block_, HasSubstr("---- a-ps0 failed first")) << output_;
}

// "at last one of another node that is only named": a job of
// one node, whose ranks are all here, has no other.
TEST_F(Run, RankThatTheJobHasNotIsNotItsRootCause) {
  Weft({"--nproc-per-node=2",
        Script("named", "echo \"error: trainer7 is gone\"; exit 10")});
  EXPECT_THAT(block_, Not(HasSubstr("trainer7 failed first"))) << output_;
  EXPECT_THAT(block_, Not(HasSubstr("another node"))) << output_;
}

// "its last 20 lines": a line without end is no reason to fill the terminal.
TEST_F(Run, LinesWithoutEndAndWithoutTextAreNoFailureOfTheBlock) {
  Weft({"--nproc-per-node=1",
        Script("long", "head -c 1000000 /dev/zero | tr '\\0' x; exit 9")});
  EXPECT_EQ(code_, 9);
  EXPECT_THAT(block_, HasSubstr("exit code 9"));
  Weft({"--nproc-per-node=1", Script("none", "exit 9")});
  EXPECT_THAT(block_, HasSubstr("it wrote nothing"));
  Weft({"--nproc-per-node=1", Script("blank", "echo; echo; exit 9")});
  EXPECT_EQ(code_, 9);
}

// "root_cause: [...] empty after a job that did not fail"; "appended".
TEST_F(Run, EventsOfASecondRunFollowAndAJobThatDidNotFailHasNoCause) {
  for (int run = 0; run < 2; ++run) {
    Weft({"--events=" + events_, "--nproc-per-node=3", "true"});
    EXPECT_EQ(code_, 0) << output_;
  }
  auto counts = Counts();
  EXPECT_EQ(counts["rank_started"], 6);
  EXPECT_EQ(counts["ranks_ended"], 2);
  EXPECT_EQ(counts["job_failed"], 0);
  for (const json& event : Events()) {
    if (event["event"] != "ranks_ended") continue;
    EXPECT_EQ(event["root_cause"], "");
  }
}

// "`start` (how often all ranks were started again before)", "`rank_left_out`",
// "`signal`".
TEST_F(Run, EventsTellRestartsThoseLeftOutAndSignals) {
  Weft({"--events=" + events_, "--max-restarts=2", "--nproc-per-node=1",
        Script("thrice", "[ $TORCHELASTIC_RESTART_COUNT = 2 ]")});
  EXPECT_EQ(code_, 0) << output_;
  std::vector<int> starts;
  for (const json& event : Events()) {
    if (event["event"] == "ranks_ended") starts.push_back(event["start"]);
  }
  EXPECT_EQ(starts, (std::vector<int>{0, 1, 2}));
  std::filesystem::remove(events_);
  Weft({"--events=" + events_, "--allow-trainer-exits=1", "--nproc-per-node=2",
        Script("one", "exit $((RANK * 5))")});
  EXPECT_EQ(code_, 0) << output_;
  EXPECT_EQ(Counts()["rank_left_out"], 1);
  std::filesystem::remove(events_);
  const auto process = Start({"--events=" + events_, "--nproc-per-node=1", "sh",
                              "-c", "echo here; sleep 100"});
  ASSERT_THAT(process->WaitForOutput("here", kLong), IsOk());
  process->Signal(SIGTERM);
  EXPECT_THAT(process->Wait(kLong), IsOkAndHolds(128 + SIGTERM));
  EXPECT_EQ(Counts()["signal"], 1);
}

// A place that cannot be written to is said before a rank begins.
TEST_F(Run, EventsThatCannotBeWrittenAreSaid) {
  Weft({"--events=" + dir_.Path(""), "--nproc-per-node=1", "echo", "begun"});
  EXPECT_EQ(code_, 3) << output_;
  EXPECT_THAT(output_, Not(HasSubstr("[trainer0]")));
  Weft({"--events=/dev/full", "--nproc-per-node=1", "true"});
  EXPECT_EQ(code_, 0) << output_;
  EXPECT_THAT(output_, HasSubstr("/dev/full"));
}

// A pipe that nobody reads is refused at the start.
TEST_F(Run, EventsIntoAPipeThatNobodyReadsAreRefused) {
  ASSERT_EQ(mkfifo(events_.c_str(), 0600), 0);
  Weft({"--events=" + events_, "--nproc-per-node=1", "echo", "begun"});
  EXPECT_NE(code_, 0) << output_;
  EXPECT_THAT(output_, HasSubstr(events_));
  EXPECT_THAT(output_, Not(HasSubstr("[trainer0]")));
}

}  // namespace
}  // namespace weft::testing
