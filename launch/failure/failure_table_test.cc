#include "weft/launch/failure/failure_table.h"

#include <signal.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Exit kLost = {10, 0};
constexpr Exit kLate = {11, 0};
constexpr int64_t kMiB = 1 << 20;

std::string Trainer(int rank) { return absl::StrCat("trainer", rank); }

RankReport Rank(const std::string& name, Exit exit,
                std::vector<std::string> tail = {}) {
  RankReport rank;
  rank.name = name;
  rank.exit = exit;
  rank.tail = std::move(tail);
  return rank;
}

// What the error of a victim says of the rank that it lost.
using Words = std::function<std::string(int lost)>;

const std::vector<std::pair<std::string, Words>>& WaysToNameIt() {
  static const auto* const ways =
      new std::vector<std::pair<std::string, Words>>{
          {"by name",
           [](int lost) {
             return absl::StrCat("error: ", Trainer(lost),
                                 " is gone: its process has ended (peer lost)");
           }},
          {"by its rank in the group",
           [](int lost) {
             return absl::StrCat(
                 "error: step 3 of rank 7: AllReduce #12, rank 7 "
                 "of group trainer/world: the process of rank ",
                 lost, " has ended; it last called AllReduce #11");
           }},
          {"in an error of several lines",
           [](int lost) {
             return absl::StrCat("error: the step is not taken\nit has lost ",
                                 Trainer(lost), "\n(peer lost)");
           }},
      };
  return *ways;
}

// How one rank fails, and how it is to be called.
struct Way {
  std::string name;
  Exit exit;
  std::string last_line;
  FailureClass why;
  bool is_stopped = false;
  bool is_killed = false;  // by the launcher, as it hangs
  int64_t oom_kills = 0;
};

const std::vector<Way>& WaysToFail() {
  static const auto* const ways = new std::vector<Way>{
      {"kill -9", {0, SIGKILL}, "step 3", FailureClass::kKilledBySignal},
      {"kill -9 below a shell", {137, 0}, "x", FailureClass::kKilledBySignal},
      {"kill", {0, SIGTERM}, "step 3", FailureClass::kKilledBySignal},
      {"segmentation", {0, SIGSEGV}, "step", FailureClass::kKilledBySignal},
      {"bus", {0, SIGBUS}, "step 3", FailureClass::kKilledBySignal},
      {"abort", {0, SIGABRT}, "CHECK fails", FailureClass::kKilledBySignal},
      {"the kernel",
       {0, SIGKILL},
       "x",
       FailureClass::kOutOfMemory,
       false,
       false,
       1},
      {"bad_alloc",
       {0, SIGABRT},
       "terminate called after throwing an instance of 'std::bad_alloc'",
       FailureClass::kOutOfMemory},
      {"no memory",
       {13, 0},
       "error: mmap: Cannot allocate memory (resource)",
       FailureClass::kOutOfMemory},
      {"no disk",
       {13, 0},
       "error: No space left on device (resource)",
       FailureClass::kFailed},
      {"flag",
       {2, 0},
       "error: \"--rolle\" names no flag (usage)",
       FailureClass::kRefusedInput},
      {"file",
       {3, 0},
       "error: wanted --data=DIR (configuration)",
       FailureClass::kRefusedInput},
      {"checkpoint",
       {20, 0},
       "error: it is cut (bad checkpoint)",
       FailureClass::kRefusedInput},
      {"certificate",
       {12, 0},
       "error: refused (authentication)",
       FailureClass::kFailed},
      {"NaN", {14, 0}, "error: loss is nan (diverged)", FailureClass::kFailed},
      {"bug",
       {1, 0},
       "error: should not happen (internal error)",
       FailureClass::kFailed},
      {"odd code", {77, 0}, "error: 77", FailureClass::kFailed},
      {"stop", {0, SIGTERM}, "step 3", FailureClass::kStopped, true},
      {"hang", {0, SIGKILL}, "step 3", FailureClass::kHung, false, true},
  };
  return *ways;
}

bool IsAskedBy(const Exit& exit) { return exit.signal == SIGTERM; }

// The ranks as the launcher hears of their ends in this order.
FailureFacts Heard(std::vector<RankReport> ranks, const std::vector<int>& order,
                   bool is_cause_asked, const std::string& cause) {
  FailureFacts facts;
  facts.roles = {{"ps", 1}, {"trainer", 8}};
  facts.host = "h";
  facts.log_dir = "/logs";
  for (size_t i = 0; i < order.size(); ++i) {
    RankReport& rank = ranks[order[i]];
    rank.after = absl::Seconds(100) + absl::Milliseconds(static_cast<int>(i));
    rank.look = static_cast<int>(i);
    // A rank that had ended when the others were asked was not asked.
    if (i > 0 && (rank.name != cause || is_cause_asked)) rank.was_asked = true;
  }
  facts.ranks = std::move(ranks);
  facts.first = facts.ranks[order.front()].name;
  return facts;
}

std::string Shown(const FailureTable& table) {
  std::string text;
  for (const FailureRow& row : table.rows) {
    absl::StrAppend(&text, row.rank, ": ", row.end, ", ", WhyText(row), "\n");
  }
  return text;
}

const FailureRow& RowOf(const FailureTable& table, const std::string& rank) {
  const auto row =
      std::find_if(table.rows.begin(), table.rows.end(),
                   [&](const FailureRow& one) { return one.rank == rank; });
  EXPECT_TRUE(row != table.rows.end()) << rank << " is not in\n"
                                       << Shown(table);
  return row != table.rows.end() ? *row : table.rows.front();
}

// One rank of four fails in some way; two lose it, the second of them perhaps
// the first; the last is ended by the launcher. Whatever the order in which
// that is heard, each is called what it is.
class Scenarios : public ::testing::Test {
 protected:
  static constexpr int kCulprit = 2;
  static constexpr int kBystander = 3;

  static std::vector<RankReport> Ranks(const Way& way, const Words& words,
                                       Exit victim, bool is_chain) {
    std::vector<RankReport> ranks = {
        Rank(Trainer(0), victim, {"begins", words(kCulprit)}),
        Rank(Trainer(1), victim, {"begins", words(is_chain ? 0 : kCulprit)}),
        Rank(Trainer(kCulprit), way.exit, {"begins", way.last_line}),
        Rank(Trainer(kBystander), {0, SIGTERM}, {"step 3"})};
    ranks[kCulprit].was_stopped = way.is_stopped;
    ranks[kCulprit].was_killed = way.is_killed;
    ranks[kCulprit].oom_kills = {way.oom_kills, 5};
    return ranks;
  }

  void Check(const Way& way, const std::vector<RankReport>& ranks,
             bool is_chain, const std::string& what) {
    // Ranks that are stopped, hang or are ended by the launcher end last.
    std::vector<int> order = {0, 1, 2};
    do {
      const bool is_first = order.front() == kCulprit;
      if (is_first && (way.is_stopped || way.is_killed)) continue;
      std::vector<int> heard = order;
      heard.push_back(kBystander);
      for (const bool is_asked : {false, true}) {
        // A signal of an end says no more than that, after it was asked.
        if (is_asked && (is_first || IsAskedBy(way.exit))) continue;
        CheckOrder(
            way, Heard(ranks, heard, is_asked, Trainer(kCulprit)), is_chain,
            absl::StrCat(what, ", heard in the order ",
                         absl::StrJoin(heard, " "), is_asked ? ", asked" : ""));
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }

  void CheckOrder(const Way& way, const FailureFacts& facts, bool is_chain,
                  const std::string& what) {
    ++cases_;
    const FailureTable table = MakeFailureTable(facts);
    SCOPED_TRACE(absl::StrCat(way.name, ", ", what, ":\n", Shown(table)));
    ASSERT_EQ(table.rows.size(), 4u);
    EXPECT_EQ(table.cause.rank, Trainer(kCulprit));
    EXPECT_EQ(table.rows.front().rank, Trainer(kCulprit));
    EXPECT_EQ(NameOf(table.rows.front().why), NameOf(way.why));
    EXPECT_EQ(table.rows.front().victim_of, "");
    EXPECT_EQ(RowOf(table, Trainer(0)).victim_of, Trainer(kCulprit));
    EXPECT_EQ(RowOf(table, Trainer(1)).victim_of,
              Trainer(is_chain ? 0 : kCulprit));
    for (const int victim : {0, 1}) {
      const FailureRow& row = RowOf(table, Trainer(victim));
      EXPECT_EQ(NameOf(row.why),
                NameOf(row.exit_code == 11 ? FailureClass::kTimeout
                                           : FailureClass::kLostPeer));
    }
    EXPECT_EQ(table.rows.back().rank, Trainer(kBystander));
    EXPECT_EQ(NameOf(table.rows.back().why),
              NameOf(FailureClass::kEndedByLauncher));
  }

  int cases_ = 0;
};

TEST_F(Scenarios, NameTheCauseAndItsVictimsInAnyOrderOfNews) {
  for (const Way& way : WaysToFail()) {
    for (const auto& [how, words] : WaysToNameIt()) {
      for (const bool is_chain : {false, true}) {
        for (const Exit& victim : {kLost, kLate}) {
          Check(way, Ranks(way, words, victim, is_chain), is_chain,
                absl::StrCat("named ", how, is_chain ? " by the first" : ""));
        }
      }
    }
  }
  EXPECT_GT(cases_, 1000);
}

// A program that knows no exit codes of Weft's ends with 1, or aborts.
TEST_F(Scenarios, VictimsThatEndWithAnyCodeAreKnownByWhomTheyName) {
  for (const Way& way : WaysToFail()) {
    if (way.is_killed) continue;  // whose end nobody has seen
    for (const auto& [how, words] : WaysToNameIt()) {
      for (const Exit& victim : {Exit{1, 0}, Exit{77, 0}, Exit{0, SIGABRT}}) {
        std::vector<RankReport> ranks = Ranks(way, words, victim, false);
        std::vector<int> order = {0, 1, 2, kBystander};
        do {
          if (way.is_stopped && order.front() == kCulprit) continue;
          // Victims that are heard of later have ended by then.
          FailureFacts facts = Heard(ranks, order, false, Trainer(kCulprit));
          for (const int i : {0, 1}) facts.ranks[i].was_asked = false;
          CheckOrder(way, facts, false, absl::StrCat("named ", how));
        } while (std::next_permutation(order.begin(), order.begin() + 3));
      }
    }
  }
  EXPECT_GT(cases_, 500);
}

TEST_F(Scenarios, VictimsThatNameNobodyAreOfTheOneThatFailed) {
  for (const Way& way : WaysToFail()) {
    if (way.is_killed) continue;
    const Words none = [](int) { return "error: connection reset"; };
    Check(way, Ranks(way, none, kLost, false), false, "named by nobody");
  }
  EXPECT_GT(cases_, 100);
}

// Programs that are not Weft's say nothing of whom they lost.
TEST_F(Scenarios, ACrashIsTheReasonOfThoseThatEndBesideIt) {
  for (const Way& way : WaysToFail()) {
    if (SIGABRT == way.exit.signal || way.is_stopped || way.is_killed) continue;
    if (way.why != FailureClass::kKilledBySignal &&
        way.why != FailureClass::kOutOfMemory) {
      continue;
    }
    if (way.exit.code == 13) continue;
    const Words none = [](int) { return "Connection closed by peer"; };
    std::vector<RankReport> ranks = Ranks(way, none, {1, 0}, false);
    std::vector<int> order = {0, 1, 2, kBystander};
    do {
      FailureFacts facts = Heard(ranks, order, false, Trainer(kCulprit));
      for (const int i : {0, 1}) facts.ranks[i].was_asked = false;
      CheckOrder(way, facts, false, "unnamed, exit code 1");
    } while (std::next_permutation(order.begin(), order.begin() + 3));
  }
  EXPECT_GT(cases_, 30);
}

FailureTable TableOf(std::vector<RankReport> ranks) {
  std::vector<int> order(ranks.size());
  std::iota(order.begin(), order.end(), 0);
  return MakeFailureTable(Heard(std::move(ranks), order, true, ""));
}

TEST(FailureTable, CrashLongAfterAFailureIsNotItsReason) {
  FailureFacts facts = Heard({Rank(Trainer(0), {1, 0}, {"error: a bug"}),
                              Rank(Trainer(1), {0, SIGKILL})},
                             {0, 1}, false, Trainer(1));
  facts.ranks[1].after += absl::Seconds(30);
  EXPECT_EQ(MakeFailureTable(facts).cause.rank, Trainer(0));
  facts.ranks[1].after -= absl::Seconds(30);
  EXPECT_EQ(MakeFailureTable(facts).cause.rank, Trainer(1));
}

TEST(FailureTable, RankThatFailsWhileItEndsAsAskedIsNotTheReason) {
  const FailureTable table =
      TableOf({Rank(Trainer(0), {1, 0}, {"error: a bug"}),
               Rank(Trainer(1), {0, SIGSEGV}), Rank(Trainer(2), {5, 0})});
  EXPECT_EQ(table.cause.rank, Trainer(0));
  EXPECT_EQ(RowOf(table, Trainer(1)).why, FailureClass::kKilledBySignal);
  EXPECT_EQ(RowOf(table, Trainer(2)).why, FailureClass::kEndedByLauncher);
}

TEST(FailureTable, OfTwoUnclearOnesThatNameEachOtherTheFirstIsTheCause) {
  FailureFacts facts =
      Heard({Rank(Trainer(0), {1, 0}, {"error: trainer1 is wrong"}),
             Rank(Trainer(1), {1, 0}, {"error: trainer0 is wrong"})},
            {1, 0}, false, Trainer(0));
  const FailureTable table = MakeFailureTable(facts);
  EXPECT_EQ(table.cause.rank, Trainer(1));
  EXPECT_EQ(RowOf(table, Trainer(0)).why, FailureClass::kFailed);
}

TEST(FailureTable, VictimThatNamesSeveralIsThatOfTheRootCause) {
  FailureFacts facts =
      Heard({Rank(Trainer(0), kLost, {"error: trainer1 and trainer2 are gone"}),
             Rank(Trainer(1), {3, 0}, {"error: no file"}),
             Rank(Trainer(2), {0, SIGKILL})},
            {2, 1, 0}, false, Trainer(1));
  const FailureTable table = MakeFailureTable(facts);
  EXPECT_EQ(table.cause.rank, Trainer(2));
  EXPECT_EQ(table.rows[1].why, FailureClass::kRefusedInput);
  EXPECT_EQ(RowOf(table, Trainer(0)).victim_of, Trainer(2));
}

TEST(FailureTable, RankOfAnotherNodeHasARowOfItsOwn) {
  const FailureTable table = TableOf(
      {Rank(Trainer(0), kLost,
            {"error: AllReduce #3, rank 0 of group trainer/world: rank 5 is "
             "gone (silent for 3s); it last called AllReduce #2"}),
       Rank(Trainer(1), {0, SIGTERM})});
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.rows[0].rank, Trainer(5));
  EXPECT_EQ(table.rows[0].why, FailureClass::kElsewhere);
  EXPECT_EQ(table.rows[0].host, "");
  EXPECT_EQ(table.rows[0].last_call, "AllReduce #2");
  EXPECT_EQ(table.rows[1].victim_of, Trainer(5));
  EXPECT_EQ(table.rows[1].last_call, "AllReduce #3 of group trainer/world");
}

TEST(FailureTable, RowsHaveTheLogTheLastLinesAndTheCall) {
  const FailureTable table =
      TableOf({Rank(Trainer(0), kLost,
                    {"error: AllReduce #3, rank 0 of group trainer/world: rank "
                     "1 has ended; it last called AllReduce #2"}),
               Rank(Trainer(1), {0, SIGKILL}, {"a", "b"})});
  EXPECT_EQ(table.rows[0].rank, Trainer(1));
  EXPECT_EQ(table.rows[0].last_call, "AllReduce #2");
  EXPECT_EQ(table.rows[0].log_file, "/logs/trainer1.log");
  EXPECT_EQ(table.rows[0].host, "h");
  EXPECT_EQ(table.rows[0].exit_code, 137);
  EXPECT_THAT(table.rows[0].tail, ElementsAre("a", "b"));
}

// ---- Memory.

RankReport Killed(int rank, int64_t peak_bytes, OomKills kills) {
  RankReport report = Rank(Trainer(rank), {0, SIGKILL});
  report.peak_bytes = peak_bytes;
  report.oom_kills = kills;
  return report;
}

TEST(FailureTable, OfTwoThatWereKilledAtOnceTheLargerIsOutOfMemory) {
  FailureFacts facts =
      Heard({Killed(0, 10 * kMiB, {1, 1}), Killed(1, 900 * kMiB, {1, 1})},
            {0, 1}, false, Trainer(1));
  for (RankReport& rank : facts.ranks) rank.look = 7;
  const FailureTable table = MakeFailureTable(facts);
  EXPECT_EQ(RowOf(table, Trainer(0)).why, FailureClass::kKilledBySignal);
  EXPECT_EQ(RowOf(table, Trainer(1)).why, FailureClass::kOutOfMemory);
  EXPECT_THAT(RowOf(table, Trainer(1)).memory,
              HasSubstr("900 MiB at most; the kernel killed 1 of this control "
                        "group (oom_kill) for want of memory meanwhile: most "
                        "likely this one"));
}

TEST(FailureTable, CounterOfTheControlGroupGoesBeforeThatOfTheHost) {
  FailureTable table = TableOf({Killed(0, kMiB, {0, 3})});
  EXPECT_EQ(table.rows[0].why, FailureClass::kKilledBySignal);
  EXPECT_THAT(table.rows[0].memory, HasSubstr("killed no process of this con"));
  table = TableOf({Killed(0, kMiB, {-1, 3})});
  EXPECT_EQ(table.rows[0].why, FailureClass::kOutOfMemory);
  EXPECT_THAT(table.rows[0].memory,
              HasSubstr("the kernel killed 3 of this ho"));
  table = TableOf({Killed(0, 0, {-1, -1})});
  EXPECT_EQ(table.rows[0].why, FailureClass::kKilledBySignal);
  EXPECT_EQ(table.rows[0].memory, "");
}

TEST(FailureTable, WhatTheLauncherKilledIsNotOutOfMemory) {
  RankReport hung = Killed(1, kMiB, {1, 1});
  hung.was_killed = true;
  const FailureTable table =
      TableOf({Rank(Trainer(0), {3, 0}, {"error: x"}), hung});
  EXPECT_EQ(RowOf(table, Trainer(1)).why, FailureClass::kEndedByLauncher);
}

TEST(FailureTable, MemoryWordsOfAKilledOrRefusingRankDoNotCount) {
  for (const Exit& exit : {Exit{0, SIGKILL}, Exit{3, 0}}) {
    const FailureTable table =
        TableOf({Rank(Trainer(0), exit, {"error: out of memory"})});
    EXPECT_NE(table.rows[0].why, FailureClass::kOutOfMemory);
  }
}

// ---- Of a job that goes on.

TEST(ShrunkTable, HasTheRanksThatJustFailedAndTheirVictims) {
  FailureFacts facts =
      Heard({Rank(Trainer(0), kLost, {"error: trainer1 is gone"}),
             Rank(Trainer(1), {0, SIGKILL}), Rank(Trainer(2), {0, SIGKILL})},
            {2, 0, 1}, false, "");
  for (RankReport& rank : facts.ranks) rank.was_asked = false;
  facts.is_shrunk = true;
  facts.first = Trainer(1);
  // Its victim was heard of before; trainer2 is another matter.
  const FailureTable table = MakeShrunkTable(facts, {Trainer(1)});
  ASSERT_EQ(table.rows.size(), 2u) << Shown(table);
  EXPECT_EQ(table.rows[0].rank, Trainer(1));
  EXPECT_EQ(table.rows[1].victim_of, Trainer(1));
}

TEST(ShrunkTable, VictimOfOneThatNobodyHasHeardOfYetNamesIt) {
  FailureFacts facts = Heard(
      {Rank(Trainer(0), kLost, {"error: trainer1 is gone"})}, {0}, false, "");
  facts.is_shrunk = true;
  facts.roles = {{"trainer", 2}};
  const FailureTable table = MakeShrunkTable(facts, {Trainer(0)});
  EXPECT_EQ(RowOf(table, Trainer(0)).victim_of, Trainer(1));
}

}  // namespace
}  // namespace weft::launch
