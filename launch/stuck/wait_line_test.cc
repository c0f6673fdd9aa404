#include "weft/launch/stuck/wait_line.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kText[] =
    "20:12:01.123456 trainer0 AllReduce #12 (sum of f32[10]) at train.cc:31: "
    "rank 0 of group trainer/the world#3 still waits after 4.001s: rank 1 "
    "(trainer1) has not called it and last called AllReduce #11 (sum of "
    "f32[10]) at train.cc:30; rank 2 (trainer2) has not finished it; rank 1 "
    "(trainer1) has not answered meanwhile (join_group.cc:206)";

TEST(WaitLine, SaysWhoIsAwaitedInWhichOperation) {
  const auto line = WaitLineIn(kText);
  ASSERT_TRUE(line.has_value());
  EXPECT_FALSE(line->is_over);
  EXPECT_EQ(line->wait.operation, "AllReduce #12");
  EXPECT_EQ(line->wait.group, "trainer/the world#3");
  EXPECT_EQ(line->wait.waited, absl::Milliseconds(4001));
  ASSERT_THAT(line->wait.awaited, SizeIs(2));
  EXPECT_EQ(line->wait.awaited[0].name, "trainer1");
  EXPECT_FALSE(line->wait.awaited[0].has_called);
  EXPECT_FALSE(line->wait.awaited[0].has_answered);
  EXPECT_EQ(line->wait.awaited[1].name, "trainer2");
  EXPECT_TRUE(line->wait.awaited[1].has_called);
  EXPECT_TRUE(line->wait.awaited[1].has_answered);
}

TEST(WaitLine, IsReadInLogsOfJsonToo) {
  const auto line = WaitLineIn(
      R"({"ts":"x","role":"trainer","rank":0,"message":"Barrier #3 at a.cc:1: )"
      R"(rank 2 of group world still waits after 2s: rank 0 has sent nothing )"
      R"(and has called nothing yet","site":"join_group.cc:206","fields":{}})");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->wait.operation, "Barrier #3");
  EXPECT_EQ(line->wait.group, "world");
  ASSERT_THAT(line->wait.awaited, SizeIs(1));
  EXPECT_EQ(line->wait.awaited[0].name, "rank 0");
  EXPECT_TRUE(line->wait.awaited[0].has_called);
}

TEST(WaitLine, WaitForAKeyIsForNobodyOrForTheCoordinator) {
  const auto line = WaitLineIn(
      "20:12:01.123456 trainer0 Wait for key users/0 of the store still waits "
      "after 4s: nobody has set it (membership.cc:527)");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(TextOf(line->wait), "Wait for key users/0 of the store");
  EXPECT_EQ(line->wait.waited, absl::Seconds(4));
  EXPECT_TRUE(IsForAKey(line->wait));
  const auto unanswered = WaitLineIn(
      R"({"ts":"x","message":"Wait for key a of the store still waits after )"
      R"(8.1s: the coordinator does not answer","site":"x.cc:1"})");
  ASSERT_TRUE(unanswered.has_value());
  ASSERT_THAT(unanswered->wait.awaited, SizeIs(1));
  EXPECT_EQ(unanswered->wait.awaited[0].name, "the coordinator");
  EXPECT_FALSE(unanswered->wait.awaited[0].has_answered);
  const auto over = WaitLineIn(
      "x Wait for key a of the store no longer waits, after 9s (CANCELLED)");
  ASSERT_TRUE(over.has_value());
  EXPECT_TRUE(over->is_over);
  EXPECT_TRUE(over->has_failed);
  for (const char* other :
       {"Wait for key  of the store still waits after 4s: nobody has set it",
        "Wait for key a b of the store still waits after 4s: nobody",
        "key a of the store still waits after 4s: nobody has set it"}) {
    EXPECT_FALSE(WaitLineIn(other).has_value()) << other;
  }
}

TEST(WaitLine, EndOfAWaitSaysWhetherItFailed) {
  const std::string head =
      "20:12:01.123456 trainer0 AllReduce #12 at train.cc:31: rank 0 of group "
      "trainer/world#3 no longer waits, after 12.5s";
  const auto well = WaitLineIn(head + " (join_group.cc:206)");
  ASSERT_TRUE(well.has_value());
  EXPECT_TRUE(well->is_over);
  EXPECT_FALSE(well->has_failed);
  EXPECT_EQ(well->wait.waited, absl::Seconds(12.5));
  EXPECT_THAT(well->wait.awaited, IsEmpty());
  const auto failed = WaitLineIn(head + " (UNAVAILABLE) (join_group.cc:206)");
  ASSERT_TRUE(failed.has_value());
  EXPECT_TRUE(failed->has_failed);
  EXPECT_TRUE(WaitLineIn(head)->is_over);
}

TEST(WaitLine, ReceiveIsOfItsMessage) {
  const auto receive = WaitLineIn(
      "20:12:01.123456 trainer0 Receive at pipe.cc:31 of tag 7 from rank 1: "
      "rank 0 of group trainer/world still waits after 4.001s: rank 1 "
      "(trainer1) has not sent it and last called Barrier #3 at pipe.cc:30; "
      "rank 1 (trainer1) has not answered meanwhile (join_group.cc:206)");
  ASSERT_TRUE(receive.has_value());
  EXPECT_EQ(receive->wait.of, RankWait::Of::kTransfer);
  EXPECT_EQ(TextOf(receive->wait), "Receive of tag 7 in group trainer/world");
  ASSERT_THAT(receive->wait.awaited, SizeIs(1));
  EXPECT_EQ(receive->wait.awaited[0].name, "trainer1");
  EXPECT_FALSE(receive->wait.awaited[0].has_called);
  EXPECT_FALSE(receive->wait.awaited[0].has_answered);
  const auto send = WaitLineIn(
      "Send at pipe.cc:9 of tag 7 to rank 0: rank 1 of group trainer/world "
      "still waits after 2s: rank 0 (trainer0) has not received it");
  ASSERT_TRUE(send.has_value());
  ASSERT_THAT(send->wait.awaited, SizeIs(1));
  EXPECT_EQ(send->wait.meeting, receive->wait.meeting);
  const auto other = WaitLineIn(
      "Receive at pipe.cc:9 of tag 8 from rank 0: rank 1 of group "
      "trainer/world still waits after 2s: rank 0 (trainer0) has not sent it");
  ASSERT_TRUE(other.has_value());
  EXPECT_NE(other->wait.meeting, receive->wait.meeting);
  const auto over = WaitLineIn(
      "Receive at pipe.cc:31 of tag 7 from rank 1: rank 0 of group "
      "trainer/world no longer waits, after 12.5s");
  ASSERT_TRUE(over.has_value());
  EXPECT_TRUE(over->is_over);
  EXPECT_EQ(over->wait.meeting, receive->wait.meeting);
}

constexpr char kServers[] =
    "20:12:01.123456 trainer0 Pull on table users/a.b still waits after 4.5s: "
    "ps0 waits for trainer1, trainer2 (round 12 has no part of them); ps1 does "
    "not answer; ps2 has not done it; ps3 waits (round 12 has none of a shard "
    "that nobody serves) (server_waits.cc:12)";

TEST(WaitLine, WaitForServersIsForThoseWhomTheyWaitFor) {
  for (const std::string& text :
       {std::string(kServers),
        absl::StrCat("{\"message\":\"", absl::string_view(kServers).substr(25),
                     "\",\"site\":\"x\"}")}) {
    const auto line = WaitLineIn(text);
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(TextOf(line->wait), "Pull on table users/a.b");
    EXPECT_EQ(line->wait.waited, absl::Seconds(4.5));
    ASSERT_THAT(line->wait.awaited, SizeIs(4));
    EXPECT_EQ(line->wait.awaited[0].name, "trainer1");
    EXPECT_EQ(line->wait.awaited[1].name, "trainer2");
    EXPECT_FALSE(line->wait.awaited[1].is_known_to_run);
    EXPECT_EQ(line->wait.awaited[2].name, "ps1");
    EXPECT_FALSE(line->wait.awaited[2].has_answered);
    EXPECT_EQ(line->wait.awaited[3].name, "ps2");
    EXPECT_TRUE(line->wait.awaited[3].has_answered);
    EXPECT_TRUE(line->wait.awaited[3].is_known_to_run);
  }
  const auto over = WaitLineIn(
      "Pull on table users/a.b no longer waits, after "
      "6s (server_waits.cc:30)");
  ASSERT_TRUE(over.has_value());
  EXPECT_TRUE(over->is_over);
  EXPECT_EQ(over->wait.group, "users/a.b");
}

TEST(WaitLine, WaitAtABarrierIsForThoseWhoAreMissing) {
  for (const absl::string_view after :
       {" (membership.cc:530)", "\",\"site\":\"membership.cc:530\"}", ""}) {
    const auto line = WaitLineIn(
        absl::StrCat("20:12:01.123456 trainer0 Barrier a/b of the coordinator "
                     "still waits after 4s: missing trainer1, trainer2 and 5 "
                     "more",
                     after));
    ASSERT_TRUE(line.has_value());
    EXPECT_EQ(TextOf(line->wait), "Barrier a/b of the coordinator");
    EXPECT_EQ(line->wait.of, RankWait::Of::kBarrier);
    EXPECT_EQ(line->wait.waited, absl::Seconds(4));
    ASSERT_THAT(line->wait.awaited, SizeIs(2));
    EXPECT_EQ(line->wait.awaited[0].name, "trainer1");
    EXPECT_EQ(line->wait.awaited[1].name, "trainer2");
    const auto one = WaitLineIn(
        absl::StrCat("Barrier b of the coordinator still waits after 4s: "
                     "missing trainer1",
                     after));
    ASSERT_TRUE(one.has_value());
    ASSERT_THAT(one->wait.awaited, SizeIs(1));
    EXPECT_EQ(one->wait.awaited[0].name, "trainer1");
  }
  const auto silent = WaitLineIn(
      "Barrier b of the coordinator still waits after 4s: the coordinator does "
      "not answer");
  ASSERT_TRUE(silent.has_value());
  ASSERT_THAT(silent->wait.awaited, SizeIs(1));
  EXPECT_EQ(silent->wait.awaited[0].name, "the coordinator");
  EXPECT_FALSE(MayLast(silent->wait));
  const auto over = WaitLineIn(
      "Barrier b of the coordinator no longer waits, after 6s "
      "(DEADLINE_EXCEEDED)");
  ASSERT_TRUE(over.has_value());
  EXPECT_TRUE(over->is_over);
  EXPECT_TRUE(over->has_failed);
  EXPECT_EQ(over->wait.group, "b");
}

// Whatever a program writes, and wherever a line is cut.
TEST(WaitLine, IsNothingOfOtherLines) {
  for (const char* const other :
       {"", "still waits after", " still waits after ", "rank 0 of group x",
        "who still waits after 4s: rank 1 has not called it",
        "AllReduce #1 at x: rank 0 of group  still waits after 4s: x",
        "AllReduce #1 at x: rank 0 of group g still waits after -4s: x",
        "AllReduce #1 at x: rank 0 of group g still waits after inf: x",
        "AllReduce #1 at x: rank 0 of group g still waits after long: x"}) {
    EXPECT_FALSE(WaitLineIn(other).has_value()) << other;
  }
  const std::string text = kText;
  for (size_t size = 0; size <= text.size(); ++size) {
    const auto line = WaitLineIn(absl::string_view(text).substr(0, size));
    if (line.has_value()) {
      EXPECT_EQ(line->wait.operation, "AllReduce #12");
    }
    (void)WaitLineIn(absl::string_view(text).substr(size));
  }
  const std::string servers = kServers;
  for (size_t size = 0; size <= servers.size(); ++size) {
    const auto line = WaitLineIn(absl::string_view(servers).substr(0, size));
    if (line.has_value()) {
      EXPECT_EQ(line->wait.operation, "Pull");
    }
    (void)WaitLineIn(absl::string_view(servers).substr(size));
  }
}

}  // namespace
}  // namespace weft::launch
