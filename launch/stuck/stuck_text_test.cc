#include "weft/launch/stuck/stuck_text.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/telemetry/field.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Process = RankFacts::Process;

RankWait WaitFor(const std::string& group, std::vector<AwaitedRank> awaited) {
  RankWait wait;
  wait.operation = "AllReduce #12";
  wait.group = group;
  wait.waited = absl::Seconds(4.2);
  wait.awaited = std::move(awaited);
  return wait;
}

RankFacts Rank(const std::string& name, Process process = Process::kRuns) {
  RankFacts rank;
  rank.name = name;
  rank.process = process;
  rank.is_heard = true;
  rank.pid = 4711;
  return rank;
}

// The text of the only cause.
std::string TextOf(const std::vector<RankFacts>& ranks) {
  const std::vector<StuckCause> causes = FindStuck(ranks, absl::Seconds(4));
  EXPECT_EQ(causes.size(), 1u);
  return causes.empty() ? "" : StuckText(causes[0], ranks, "node0", "mnist");
}

TEST(StuckText, OfAStoppedRankSaysWhoWaitsAndHowItGoesOn) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1"),
                                  Rank("trainer2", Process::kStopped)};
  ranks[0].waits = {WaitFor("g", {{"trainer2"}})};
  ranks[1].waits = {WaitFor("g", {{"trainer0", true}})};
  EXPECT_EQ(TextOf(ranks),
            "trainer0 and trainer1 wait in AllReduce #12 of group g (4.2 s) "
            "for trainer2 (pid 4711 on node0), which is stopped by a signal or "
            "a debugger; `kill -CONT 4711` lets it go on");
}

TEST(StuckText, OfRanksInDifferentOperationsNamesTheOperationOfEach) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1"),
                                  Rank("trainer2"), Rank("trainer3")};
  RankWait receive = WaitFor("g", {{"trainer1"}});
  receive.operation = "Receive of tag 7";
  receive.of = RankWait::Of::kTransfer;
  ranks[0].waits = {receive};
  ranks[2].waits = {WaitFor("g", {{"trainer1"}})};
  ranks[3].waits = {WaitFor("g", {{"trainer1"}})};
  // Whichever has waited longer.
  ranks[3].waits[0].waited = absl::Seconds(4.3);
  EXPECT_THAT(TextOf(ranks),
              HasSubstr("trainer2 and trainer3 wait in AllReduce #12 of group "
                        "g (4.3 s), trainer0 in Receive of tag 7 in group g "
                        "(4.2 s) for trainer1 (pid 4711 on node0)"));
  ranks[0].waits[0].waited = absl::Seconds(4.4);
  EXPECT_THAT(TextOf(ranks),
              HasSubstr("trainer0 waits in Receive of tag 7 in group g (4.4 "
                        "s), trainer2 and trainer3 in AllReduce #12 of group "
                        "g (4.3 s) for trainer1 (pid 4711 on node0)"));
}

TEST(StuckText, OfRanksInManyOperationsNamesThreeAndCountsTheOthers) {
  std::vector<RankFacts> ranks = {Rank("trainer0", Process::kStopped)};
  for (int i = 1; i <= 6; ++i) {
    ranks.push_back(Rank("trainer" + std::to_string(i)));
    ranks.back().waits = {
        WaitFor(i < 6 ? std::to_string(i) : "5", {{"trainer0"}})};
  }
  EXPECT_THAT(TextOf(ranks),
              HasSubstr("trainer3 in AllReduce #12 of group 3 (4.2 s), 3 in "
                        "other operations for trainer0 (pid 4711"));
}

TEST(StuckText, OfABusyRankSaysWhetherItComputes) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1")};
  ranks[0].waits = {WaitFor("g", {{"trainer1"}})};
  ranks[1].over = absl::Seconds(4);
  ranks[1].cpu = absl::Seconds(3.9);
  EXPECT_THAT(
      TextOf(ranks),
      AllOf(HasSubstr("runs and is not in that call: it computes, 3.9 s "
                      "of CPU in the last 4.0 s"),
            HasSubstr("--job=mnist --page=trainer1")));
  ranks[1].cpu = absl::ZeroDuration();
  ranks[1].state = 'S';
  EXPECT_THAT(TextOf(ranks), HasSubstr("it sleeps, 0.0 s of CPU"));
  ranks[1].state = 'D';
  EXPECT_THAT(TextOf(ranks), HasSubstr("waits for a disk or a device"));
}

TEST(StuckText, OfDifferentCallsNamesBoth) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1")};
  ranks[0].waits = {WaitFor("a", {{"trainer1"}})};
  ranks[1].waits = {WaitFor("b", {{"trainer0"}})};
  EXPECT_THAT(TextOf(ranks),
              HasSubstr("trainer0 is in AllReduce #12 of group a; trainer1 is "
                        "in AllReduce #12 of group b"));
}

RankWait PullOf(const std::string& table, AwaitedRank awaited) {
  RankWait wait = WaitFor(table, {std::move(awaited)});
  wait.operation = "Pull";
  wait.of = RankWait::Of::kTable;
  return wait;
}

TEST(StuckText, OfAServerSaysTheTableAndThatItHasNotDoneIt) {
  std::vector<RankFacts> ranks = {Rank("ps0"), Rank("trainer0")};
  ranks[0].over = ranks[0].cpu = absl::Seconds(4);
  AwaitedRank server;
  server.name = "ps0";
  server.is_known_to_run = true;
  ranks[1].waits = {PullOf("users", server)};
  EXPECT_THAT(
      TextOf(ranks),
      HasSubstr("trainer0 waits in Pull on table users (4.2 s) for ps0 (pid "
                "4711 on node0), which runs and has not done it: it computes"));
  // It runs on another node.
  ranks.erase(ranks.begin());
  EXPECT_THAT(TextOf(ranks), HasSubstr("for ps0, which runs and has not done "
                                       "it: it answers, and what it does is "
                                       "not seen here"));
}

TEST(StuckText, OfTrainersThatWaitForEachOtherAtServersNamesTheTables) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1")};
  ranks[0].waits = {PullOf("a", {"trainer1"})};
  ranks[1].waits = {PullOf("a", {"trainer0"})};
  EXPECT_THAT(TextOf(ranks), AllOf(HasSubstr("called different things"),
                                   HasSubstr("trainer0 and trainer1 are in "
                                             "Pull on table a")));
}

TEST(StuckText, OfAMessageThatNobodySendsNamesTheTag) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1")};
  RankWait receive = WaitFor("g", {{"trainer1"}});
  receive.operation = "Receive of tag 7";
  receive.of = RankWait::Of::kTransfer;
  receive.meeting = "g 1>0 #7";
  ranks[0].waits = {receive};
  EXPECT_THAT(TextOf(ranks),
              HasSubstr("trainer0 waits in Receive of tag 7 in group g (4.2 s) "
                        "for trainer1 (pid 4711 on node0), which runs and is "
                        "not in that call"));
  // It receives, too.
  RankWait other = receive;
  other.awaited = {{"trainer0"}};
  other.meeting = "g 0>1 #7";
  ranks[1].waits = {other};
  EXPECT_THAT(TextOf(ranks), HasSubstr("called different things"));
  // It sends that message, which does not come.
  ranks[1].waits[0].operation = "Send of tag 7";
  ranks[1].waits[0].meeting = receive.meeting;
  EXPECT_THAT(TextOf(ranks), HasSubstr("do not hear each other"));
}

TEST(StuckText, OfACutLinkNamesBothEnds) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1")};
  ranks[0].waits = {WaitFor("g", {{"trainer1", false, false}})};
  ranks[1].waits = {WaitFor("g", {{"trainer0", true, false}})};
  EXPECT_THAT(
      TextOf(ranks),
      HasSubstr("trainer0 (pid 4711 on node0) and trainer1 (pid 4711 on "
                "node0) run, and do not hear each other"));
}

TEST(StuckText, OfARankOfAnotherNodeSaysWhatMayBe) {
  std::vector<RankFacts> ranks = {Rank("trainer0")};
  ranks[0].waits = {WaitFor("g", {{"trainer9", false, false}})};
  EXPECT_THAT(TextOf(ranks),
              AllOf(HasSubstr("for trainer9, of which nothing is "
                              "seen here"),
                    HasSubstr("the link to it is cut"),
                    HasSubstr("weft dump --job=mnist")));
}

TEST(StuckFields, HaveTheClassTheRanksAndWhoWaits) {
  std::vector<RankFacts> ranks = {Rank("trainer0"), Rank("trainer1")};
  ranks[0].waits = {WaitFor("g", {{"trainer1"}})};
  const auto causes = FindStuck(ranks, absl::Seconds(4));
  ASSERT_EQ(causes.size(), 1u);
  std::string text;
  for (const telemetry::Field& field : StuckFields(causes[0], ranks, "node0")) {
    text += telemetry::ToText(field) + " ";
  }
  EXPECT_THAT(text,
              AllOf(HasSubstr("class=busy ranks=trainer1 "
                              "waiting=trainer0 "),
                    HasSubstr("group=g waited_s=4.2 host=node0 pid=4711")));
  ranks[0].waits = {PullOf("users", {"trainer1"})};
  text.clear();
  for (const telemetry::Field& field : StuckFields(causes[0], ranks, "node0")) {
    text += telemetry::ToText(field) + " ";
  }
  EXPECT_THAT(text, AllOf(HasSubstr("operation=Pull"),
                          HasSubstr("waited_s=4.2 table=users")));
}

}  // namespace
}  // namespace weft::launch
