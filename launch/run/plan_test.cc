#include "weft/launch/run/plan.h"

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PlanChildren, SetsTheEnvironmentOfTorchrun) {
  LaunchOptions options;
  options.job = "j";
  options.coordinator = "unix:/d/c.sock";
  options.master_port = 4711;
  options.roles = {{"ps", 1, {"p"}}, {"trainer", 2, {"t"}}};
  const std::vector<ChildSpec> plan = PlanChildren(options);
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[2].name, "trainer1");
  const auto& env = plan[2].environment;
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"RANK", "1"},
           {"WORLD_SIZE", "2"},
           {"LOCAL_RANK", "1"},
           {"LOCAL_WORLD_SIZE", "2"},
           {"MASTER_ADDR", "127.0.0.1"},
           {"MASTER_PORT", "4711"},
           {"WEFT_JOB", "j"},
           {"WEFT_ROLE", "trainer"},
           {"WEFT_SERVERS", "1"},
           {"WEFT_REPLICAS", "1"},
           {"WEFT_TRAINERS", "2"},
           {"WEFT_RANKS_ON_HOST", "3"},
           {"WEFT_COORDINATOR", "unix:/d/c.sock"}}) {
    EXPECT_EQ(env.at(name), value) << name;
  }
}

TEST(PlanChildren, RanksOfALaterNodeFollowThoseOfTheNodesBefore) {
  LaunchOptions options;
  options.job = "j";
  options.nodes = 3;
  options.node = 2;
  options.roles = {{"ps", 1, {"p"}}, {"trainer", 2, {"t"}}};
  const std::vector<ChildSpec> plan = PlanChildren(options);
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].name, "ps2");
  EXPECT_EQ(plan[1].name, "trainer4");
  EXPECT_EQ(plan[2].name, "trainer5");
  const auto& env = plan[2].environment;
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"RANK", "5"},
           {"WORLD_SIZE", "6"},
           {"LOCAL_RANK", "1"},
           {"LOCAL_WORLD_SIZE", "2"},
           {"GROUP_RANK", "2"},
           {"GROUP_WORLD_SIZE", "3"},
           {"WEFT_RANK", "5"},
           {"WEFT_SERVERS", "3"},
           {"WEFT_TRAINERS", "6"},
           {"WEFT_RANKS_ON_HOST", "3"},
           {"WEFT_WORLD_ORIGIN", "weft run --nnodes=3 on node 2"},
           {"WEFT_START", "1"}}) {
    EXPECT_EQ(env.at(name), value) << name;
  }
}

TEST(Plan, CoordinatorHasALogUnlessItsRecordsAreElsewhere) {
  LaunchOptions options;
  options.directory = "/d";
  options.coordinator_argv = {"weft", "coordinator"};
  EXPECT_THAT(PlanCoordinator(options, 0, "l").argv,
              ::testing::ElementsAre("weft", "coordinator",
                                     "--coordinator-log=/d/coordinator-l-0.log",
                                     "--no-coordinator-log-survives-host"));
  options.coordinator_log = "/own";
  EXPECT_THAT(
      PlanCoordinator(options, 0, "l").argv,
      ::testing::ElementsAre("weft", "coordinator", "--coordinator-log=/own"));
  options.coordinator_log = "";
  options.coordinator_in_etcd = true;
  EXPECT_THAT(PlanCoordinator(options, 0, "l").argv,
              ::testing::ElementsAre("weft", "coordinator"));
  EXPECT_EQ(CoordinatorLog(options, 0, "l"), "");
}

TEST(Plan, NumberOfNodesIsTheOneThatWasGiven) {
  LaunchOptions options;
  options.nodes = 3;
  EXPECT_EQ(NodesText(options), "3");
  options.nodes_text = "1:3";
  EXPECT_EQ(NodesText(options), "1:3");
}

TEST(NodeOf, IsThatWhoseLauncherStartsTheRank) {
  LaunchOptions options;
  options.nodes = 3;
  options.roles = {{"ps", 1, {"p"}}, {"trainer", 2, {"t"}}};
  EXPECT_EQ(NodeOf(options, "trainer0"), 0);
  EXPECT_EQ(NodeOf(options, "trainer3"), 1);
  EXPECT_EQ(NodeOf(options, "trainer5"), 2);
  EXPECT_EQ(NodeOf(options, "ps1"), 1);
  for (const char* other :
       {"trainer6", "ps3", "trainer", "trainer-1", "reader0", "", "rank 1"}) {
    EXPECT_EQ(NodeOf(options, other), std::nullopt) << other;
  }
}

TEST(CoresWarning, SaysHowManyShareWhichCoresAndWhatFollows) {
  LaunchOptions options;
  options.roles = {{"ps", 2, {"p"}}, {"trainer", 3, {"t"}}};
  EXPECT_EQ(CoresWarning(options, 5), "");
  options.environment["WEFT_SILENCE"] = "2s";
  EXPECT_THAT(CoresWarning(options, 4),
              AllOf(HasSubstr("5 ranks share the 4 cores of this host"),
                    HasSubstr("gets no core for 2s counts as dead"),
                    HasSubstr("start fewer, or raise --silence")));
  EXPECT_THAT(CoresWarning(options, 1), HasSubstr("the 1 core of"));
}

}  // namespace
}  // namespace weft::launch
