#include "weft/launch/run/job_event.h"

#include <string>

#include "gtest/gtest.h"

namespace weft::launch {
namespace {

TEST(JobEventIn, IsOfLinesOfTextAndOfJson) {
  for (const char* line :
       {"I 16:59:23.832510 trainer1 taking part step=12 rank=1 ranks=3 "
        "from_rank=0 (elastic_training.cc:371)",
        R"({"level":"info","message":"taking part","step":12,"ranks":3})",
        R"({"message": "taking part", "step": 12, "ranks": 3})"}) {
    const auto event = JobEventIn(line);
    ASSERT_TRUE(event.has_value()) << line;
    EXPECT_EQ(event->event, "rank_joined");
    EXPECT_EQ(event->step, 12);
    EXPECT_EQ(event->ranks, 3);
  }
}

TEST(JobEventIn, TellsOneThatLeavesAndAStepThatIsRepeated) {
  const auto left = JobEventIn(
      "I 16:59:23.8 trainer1 asked to stop; leaving, and the others go on "
      "step=7 (elastic_training.cc:96)");
  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->event, "rank_left");
  EXPECT_EQ(left->step, 7);
  EXPECT_EQ(left->ranks, -1);
  const auto repeated = JobEventIn(
      "W 16:59:23.8 trainer0 a rank was lost; the others meet again step=7 "
      "why=\"AllReduce #3\" (elastic_training.cc:109)");
  ASSERT_TRUE(repeated.has_value());
  EXPECT_EQ(repeated->event, "step_repeated");
}

TEST(JobEventIn, TellsOfAServerThatIsPromoted) {
  const auto promoted = JobEventIn(
      "16:59:23.8 ps1 promoted; serving as the primary what it was the backup "
      "of partitions=12 (map_keeper.cc:431)");
  ASSERT_TRUE(promoted.has_value());
  EXPECT_EQ(promoted->event, "promoted");
  EXPECT_EQ(promoted->partitions, 12);
  EXPECT_EQ(promoted->step, -1);
}

TEST(JobEventIn, TellsOfAServerThatHasItsFirstPartitions) {
  const auto joined = JobEventIn(
      "16:59:23.8 ps1 holds partitions of tables from now on partitions=64 "
      "(map_keeper.cc:431)");
  ASSERT_TRUE(joined.has_value());
  EXPECT_EQ(joined->event, "server_joined");
  EXPECT_EQ(joined->partitions, 64);
  EXPECT_EQ(joined->step, -1);
}

TEST(JobEventIn, IsNothingElse) {
  for (const char* line :
       {"", "taking part", "I trainer1 taking part rank=1",
        "I trainer1 taking part step=", "I trainer1 taking part step=x",
        "I trainer1 taking part step=99999999999999999999",
        "overtaking part step=3", "I trainer1 going on step=3 ranks=2"}) {
    EXPECT_FALSE(JobEventIn(line).has_value()) << line;
  }
}

}  // namespace
}  // namespace weft::launch
