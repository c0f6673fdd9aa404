#include "weft/bench/programs.h"

#include <filesystem>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::bench {
namespace {

using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(RunProgram, ReadsOneFigureALineAndSkipsTheRest) {
  EXPECT_THAT(RunProgram("printf 'a\\t1.5\\nno figure\\nb_us\\t2\\n'"),
              UnorderedElementsAre(Pair("a", 1.5), Pair("b_us", 2)));
}

TEST(RunProgram, FailedProgramGivesNoFigures) {
  EXPECT_THAT(RunProgram("printf 'a\\t1\\n'; exit 3"), IsEmpty());
}

TEST(Dialogue, EachQuestionGetsItsAnswerUntilTheProgramEnds) {
  Dialogue dialogue({"/bin/sh", "-c",
                     "echo ready; while read a b && test $a != end; do "
                     "echo $b $a; done"});
  EXPECT_EQ(dialogue.Read(), "ready");
  EXPECT_EQ(dialogue.Ask("1 2"), "2 1");
  EXPECT_EQ(dialogue.Ask("3 4"), "4 3");
  EXPECT_EQ(dialogue.Ask("end"), std::nullopt);
  EXPECT_EQ(dialogue.Ask("5 6"), std::nullopt);
}

TEST(Dialogue, AnAbsentProgramAnswersNothing) {
  Dialogue dialogue({"/nonexistent/program"});
  EXPECT_EQ(dialogue.Read(), std::nullopt);
}

TEST(Dialogue, DestructionEndsAProgramThatWaitsForAQuestion) {
  Dialogue dialogue({"/bin/cat"});
  EXPECT_EQ(dialogue.Ask("a"), "a");
}

TEST(RunServerAndClient, ClientGetsTheAddressAndTheServerIsKilled) {
  ScratchDirectory directory;
  const std::string pid = directory.NewPath();
  const Figures figures = RunServerAndClient(
      "sh -c 'echo $$ >" + pid + "; echo 127.0.0.1:7; exec sleep 100'",
      [](const std::string& address) {
        return "test " + address + " = 127.0.0.1:7 && printf 'a\\t1\\n'";
      });
  EXPECT_THAT(figures, UnorderedElementsAre(Pair("a", 1)));
  EXPECT_THAT(RunProgram("kill -0 $(cat " + pid + ") && printf 'alive\\t1\\n'"),
              IsEmpty());
}

TEST(RunServerAndClient, ServerThatEndsAtOnceGivesNoFigures) {
  EXPECT_THAT(RunServerAndClient("false",
                                 [](const std::string&) {
                                   return std::string("printf 'a\\t1\\n'");
                                 }),
              IsEmpty());
}

TEST(Median, RoundThatLacksTheFigureGivesNone) {
  EXPECT_EQ(Median({{{"a", 3}}, {{"a", 1}}, {{"a", 2}}}, "a"), 2);
  EXPECT_EQ(Median({{{"a", 3}}, {{"b", 1}}}, "a"), std::nullopt);
  EXPECT_EQ(Median({}, "a"), std::nullopt);
}

TEST(ScratchDirectory, IsRemovedWithItsContents) {
  std::string path;
  {
    ScratchDirectory directory;
    path = directory.NewPath();
    EXPECT_NE(directory.NewPath(), path);
    std::filesystem::create_directory(path);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace weft::bench
