#include "weft/ps/waits/wait_text.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

std::string Whom(const std::vector<ServerAnswer>& answers) {
  const std::string text =
      WaitText("Pull", "users", absl::Seconds(4.0014), "trainer0", answers);
  const std::string head = "Pull on table users still waits after 4.001s: ";
  EXPECT_EQ(text.substr(0, head.size()), head);
  return text.substr(head.size());
}

TEST(WaitText, NamesForWhomEachServerWaits) {
  EXPECT_EQ(Whom({{"ps0",
                   true,
                   {{"users", "round 3 waits for shard 1", {"trainer1"}, 2}}},
                  {"ps1", false, {}},
                  {"ps2", true, {}}}),
            "ps0 waits for trainer1 (round 3 waits for shard 1); ps1 does not "
            "answer; ps2 has not done it");
  EXPECT_EQ(Whom({}), "no server has what is wanted");
  EXPECT_EQ(EndOfWaitText("Pull", "users", absl::Seconds(6)),
            "Pull on table users no longer waits, after 6s");
}

TEST(WaitText, WhoAsksIsNotNamed) {
  EXPECT_EQ(Whom({{"ps0", true, {{"users", "round 3", {"trainer0"}, 2}}}}),
            "ps0 waits (round 3)");
  EXPECT_EQ(
      Whom(
          {{"ps0", true, {{"users", "round 3", {"trainer0", "trainer2"}, 2}}}}),
      "ps0 waits for trainer2 (round 3)");
  EXPECT_EQ(
      Whom({{"ps0", true, {{"users", "shard 3, which nobody serves", {}, 2}}}}),
      "ps0 waits (shard 3, which nobody serves)");
}

// The others may have sent their parts as well.
TEST(WaitText, ServerThatHasNotTakenThePartOfWhoAsksHasNotDoneIt) {
  EXPECT_THAT(
      WaitText("PushPull", "users", absl::Seconds(4), "trainer0",
               {{{"ps0",
                  true,
                  {{"users", "round 3", {"trainer0", "trainer2"}, 2}}}}}),
      EndsWith(": ps0 has not done it"));
}

TEST(WaitText, WhatServersSayCutsNoLine) {
  EXPECT_EQ(Whom({{"ps0",
                   true,
                   {{"users",
                     "a; ps9 does not answer\n(x)",
                     {"b; c", "trainer1"},
                     2}}}}),
            "ps0 waits for trainer1 (a. ps9 does not answer..x.)");
  const std::string many = Whom(
      {{"ps0", true, {{"users", std::string(10'000, 'x'), {"trainer1"}, 2}}}});
  EXPECT_LT(many.size(), 300u);
  EXPECT_THAT(many, EndsWith("x)"));
}

TEST(WaitTimes, AsksBeforeEachReport) {
  const Instant start = Instant::FromNanoseconds(1'000'000'000);
  WaitTimes times(start);
  std::vector<std::string> done;
  for (Instant now = start; now - start <= absl::Seconds(17);
       now = now + absl::Milliseconds(100)) {
    const int ms = static_cast<int>(absl::ToInt64Milliseconds(now - start));
    switch (times.OnTime(now)) {
      case WaitTimes::Due::kNothing:
        break;
      case WaitTimes::Due::kQuestion:
        done.push_back("ask " + std::to_string(ms));
        break;
      case WaitTimes::Due::kReport:
        done.push_back("say " + std::to_string(ms));
        break;
    }
  }
  EXPECT_THAT(done,
              ElementsAre("ask 500", "say 2000", "ask 2500", "say 4000",
                          "ask 6500", "say 8000", "ask 14500", "say 16000"));
}

// The thread got no core: who is asked late has time to answer.
TEST(WaitTimes, ReportComesLaterWhereTheQuestionDid) {
  const Instant start = Instant::FromNanoseconds(1'000'000'000);
  WaitTimes times(start);
  const Instant late = start + absl::Seconds(3);
  EXPECT_EQ(times.OnTime(late), WaitTimes::Due::kQuestion);
  EXPECT_EQ(times.OnTime(late), WaitTimes::Due::kNothing);
  EXPECT_GE(times.next() - late, absl::Milliseconds(700));
}

}  // namespace
}  // namespace weft::ps
