#include "weft/launch/stuck/shared_facts.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::launch {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

RankFacts WaitingRank() {
  RankFacts rank;
  rank.name = "trainer0";
  rank.process = RankFacts::Process::kRuns;
  rank.pid = 4711;
  rank.state = 'S';
  rank.cpu = absl::Milliseconds(250);
  rank.over = absl::Seconds(4);
  rank.is_heard = true;
  RankWait wait;
  wait.operation = "Receive of tag 7";
  wait.group = "trainer/world#1";
  wait.of = RankWait::Of::kTransfer;
  wait.meeting = "trainer/world#1 1>0 #7";
  wait.waited = absl::Seconds(5);
  wait.said_ago = absl::Milliseconds(500);
  wait.awaited = {{"trainer1", true, false, false}, {"ps0", false, true, true}};
  rank.waits = {wait};
  return rank;
}

TEST(SharedFacts, AreReadAsTheyWereWritten) {
  RankFacts stopped;
  stopped.name = "trainer1";
  stopped.process = RankFacts::Process::kStopped;
  stopped.stopped = absl::Seconds(9);
  RankFacts gone;
  gone.name = "ps0";
  gone.process = RankFacts::Process::kGone;
  const auto read =
      ParseFacts(FormatFacts({WaitingRank(), stopped, gone}, "node1"));
  ASSERT_THAT(read, IsOk());
  ASSERT_THAT(*read, SizeIs(3));
  const RankFacts& first = (*read)[0];
  EXPECT_EQ(first.name, "trainer0");
  EXPECT_EQ(first.host, "node1");
  EXPECT_EQ(first.process, RankFacts::Process::kRuns);
  EXPECT_EQ(first.pid, 4711);
  EXPECT_EQ(first.state, 'S');
  EXPECT_EQ(first.cpu, absl::Milliseconds(250));
  EXPECT_EQ(first.over, absl::Seconds(4));
  EXPECT_TRUE(first.is_heard);
  ASSERT_THAT(first.waits, SizeIs(1));
  const RankWait& wait = first.waits[0];
  EXPECT_EQ(TextOf(wait), "Receive of tag 7 in group trainer/world#1");
  EXPECT_EQ(wait.meeting, "trainer/world#1 1>0 #7");
  EXPECT_EQ(wait.waited, absl::Seconds(5));
  EXPECT_EQ(wait.said_ago, absl::Milliseconds(500));
  ASSERT_THAT(wait.awaited, SizeIs(2));
  EXPECT_EQ(wait.awaited[0].name, "trainer1");
  EXPECT_TRUE(wait.awaited[0].has_called);
  EXPECT_FALSE(wait.awaited[0].has_answered);
  EXPECT_TRUE(wait.awaited[1].has_answered);
  EXPECT_TRUE(wait.awaited[1].is_known_to_run);
  EXPECT_EQ((*read)[1].process, RankFacts::Process::kStopped);
  EXPECT_EQ((*read)[1].stopped, absl::Seconds(9));
  EXPECT_EQ((*read)[2].process, RankFacts::Process::kGone);
}

TEST(SharedFacts, SayWhatEachWaitIsOf) {
  for (const auto of :
       {RankWait::Of::kGroup, RankWait::Of::kTransfer, RankWait::Of::kTable,
        RankWait::Of::kStore, RankWait::Of::kBarrier}) {
    RankFacts rank = WaitingRank();
    rank.waits[0].of = of;
    const auto read = ParseFacts(FormatFacts({rank}, "node1"));
    ASSERT_THAT(read, IsOk());
    ASSERT_THAT(*read, SizeIs(1));
    EXPECT_EQ((*read)[0].waits[0].of, of);
  }
}

TEST(SharedFacts, OfAWaitForVeryManySomeFitTheStore) {
  RankFacts rank = WaitingRank();
  for (int i = 0; i < 4000; ++i) {
    rank.waits[0].awaited.push_back({absl::StrCat("trainer", i)});
  }
  const std::vector<RankFacts> ranks(16, rank);
  const std::string text = FormatFacts(ranks, "node1");
  EXPECT_LT(text.size(), size_t{1} << 20);
  const auto read = ParseFacts(text);
  ASSERT_THAT(read, IsOk());
  EXPECT_THAT((*read)[15].waits[0].awaited, SizeIs(256));
}

TEST(SharedFacts, WhatIsNoneIsRefusedOrLeftOut) {
  for (const char* text : {"", "asked", "[1]", "{\"ranks\":", "7"}) {
    EXPECT_THAT(ParseFacts(text),
                StatusIs(absl::StatusCode::kInvalidArgument, "JSON object"))
        << text;
  }
  for (const char* text :
       {"{}", R"({"ranks":7})", R"({"ranks":[1,"a",null,{}]})",
        R"({"host":3,"ranks":[{"name":5}]})"}) {
    const auto read = ParseFacts(text);
    ASSERT_THAT(read, IsOk()) << text;
    EXPECT_THAT(*read, IsEmpty()) << text;
  }
  const std::string deep(size_t{1} << 19, '[');
  EXPECT_FALSE(ParseFacts(deep).ok());
  EXPECT_FALSE(ParseFacts(deep + std::string(deep.size(), ']')).ok());
  const auto read = ParseFacts(
      R"({"ranks":[{"name":"a","process":"flies","pid":-1,"state":"long",)"
      R"("cpu_s":"much","stopped_s":-5,"waits":[{"awaited":[{"name":""}]}]}]})");
  ASSERT_THAT(read, IsOk());
  ASSERT_THAT(*read, SizeIs(1));
  EXPECT_EQ((*read)[0].process, RankFacts::Process::kUnknown);
  EXPECT_EQ((*read)[0].pid, 0);
  EXPECT_EQ((*read)[0].stopped, absl::ZeroDuration());
  EXPECT_THAT((*read)[0].waits[0].awaited, IsEmpty());
}

}  // namespace
}  // namespace weft::launch
