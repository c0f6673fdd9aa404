// Scenarios of reference counting that need one exact order of messages, each
// a script over the tables; the letters are those of docs/rref_protocol.md.
// Agent 0 owns; 1, 2 and 3 use.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rref/core/ref_world.h"

namespace weft::rref {
namespace {

struct Script {
  const char* name;
  RefWorldOptions options;
  // Moves of RefWorld; "deliver KIND FROM TO" takes the first such message.
  std::vector<std::string> steps;
};

std::ostream& operator<<(std::ostream& out, const Script& script) {
  return out << script.name;
}

RefWorldOptions Of(int shares, int crashes = 0, int give_ups = 0,
                   int fetches = 0) {
  RefWorldOptions options;
  options.agents = 4;
  options.shares = shares;
  options.crashes = crashes;
  options.give_ups = give_ups;
  options.fetches = fetches;
  options.refusals = 1;
  return options;
}

class RefScript : public ::testing::TestWithParam<Script> {};

TEST_P(RefScript, EndsWithEmptyTables) {
  RefWorld world(GetParam().options);
  for (const std::string& step : GetParam().steps) {
    ASSERT_EQ(world.Do(step), "") << step;
    ASSERT_EQ(world.violation(), "") << step;
  }
  world.Settle();
  EXPECT_EQ(world.violation(), "");
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, RefScript,
    ::testing::Values(
        Script{"I_ChainOfDropsWhileForksAreUnknown",
               Of(3),
               {"create 1",
                "deliver create 1 0",
                "deliver create_end 0 0",
                "deliver created 0 1",
                "share 1 0 2",
                "drop 1 0",
                "deliver token 1 2",
                "deliver fork_request 2 0",
                "deliver fork_answer 0 2",
                "share 2 0 3",
                "drop 2 0",
                "deliver token 2 3",
                "deliver settled 2 1",
                "deliver delete 1 0",
                "deliver fork_request 3 0",
                "deliver fork_answer 0 3",
                "deliver settled 3 2",
                "deliver delete 2 0",
                "drop 3 0",
                "deliver delete 3 0"}},
        Script{"J_RegistrationComesBeforeTheCreation",
               Of(1),
               {"create 1", "share 1 0 2", "deliver token 1 2",
                "deliver fork_request 2 0", "deliver create 1 0",
                "deliver create_end 0 0", "deliver fork_answer 0 2",
                "deliver settled 2 1", "drop 1 0", "deliver created 0 1",
                "deliver delete 1 0"}},
        Script{"K_FetchComesBeforeTheCreation",
               Of(0, 0, 0, 1),
               {"create 1", "fetch 1 0", "deliver create 1 0",
                "deliver create_end 0 0", "deliver fetch 1 0",
                "deliver fetched 0 1", "drop 1 0"}},
        Script{"L_CreatorGivesUpBeforeTheCreationRuns",
               Of(0, 0, 1),
               {"create 1", "give_up 1 0", "deliver cancel_create 1 0",
                "deliver fenced 0 1", "deliver create 1 0"}},
        Script{"L_CreatorGivesUpAfterTheCreationRan",
               Of(0, 0, 1),
               {"create 1", "deliver create 1 0", "give_up 1 0",
                "deliver cancel_create 1 0", "deliver fenced 0 1",
                "deliver create_end 0 0", "deliver delete 1 0"}},
        Script{"L_CreatorGivesUpWhileTheCreationRuns",
               Of(0, 0, 1),
               {"create 1", "deliver create 1 0", "give_up 1 0",
                "deliver cancel_create 1 0", "deliver fenced 0 1",
                "deliver delete 1 0", "deliver create_end 0 0"}},
        Script{"L_DeleteComesBeforeTheEndOfTheCreation",
               Of(0),
               {"create 1", "deliver create 1 0", "deliver created 0 1",
                "drop 1 0", "deliver delete 1 0", "deliver create_end 0 0"}},
        Script{"L_ChildOfACreationThatWasGivenUpFails",
               Of(1, 0, 1),
               {"create 1", "share 1 0 2", "deliver token 1 2",
                "deliver fork_request 2 0", "give_up 1 0",
                "deliver cancel_create 1 0", "deliver fenced 0 1",
                "deliver ask_creator 0 1", "deliver answer_owner 1 0",
                "deliver fork_answer 0 2"}},
        Script{"R_DeleteOfTheParentDoesNotOvertakeTheChild",
               Of(1),
               {"create 1", "deliver create 1 0", "deliver create_end 0 0",
                "deliver created 0 1", "share 1 0 2", "drop 1 0",
                "deliver token 1 2", "deliver fork_request 2 0",
                "deliver fork_answer 0 2", "deliver settled 2 1",
                "deliver delete 1 0", "drop 2 0", "deliver delete 2 0"}},
        Script{
            "X_MessageIsRefusedAfterTheParentWasDropped",
            Of(1),
            {"create 1", "deliver create 1 0", "deliver create_end 0 0",
             "deliver created 0 1", "share 1 0 2", "drop 1 0",
             "refuse token 1 2", "deliver settled 2 1", "deliver delete 1 0"}},
        Script{"AA_HolderDiesWhileItRegisters",
               Of(1, 1),
               {"create 1", "deliver create 1 0", "deliver create_end 0 0",
                "deliver created 0 1", "share 1 0 2", "deliver token 1 2",
                "crash 2", "gone 2 0", "gone 2 1", "gone 2 3", "drop 1 0",
                "deliver delete 1 0"}},
        Script{"AB_ParentDiesBeforeItsChildIsRegistered",
               Of(1, 1),
               {"create 1", "deliver create 1 0", "deliver create_end 0 0",
                "deliver created 0 1", "share 1 0 2", "deliver token 1 2",
                "crash 1", "gone 1 0", "deliver fork_request 2 0",
                "deliver fork_answer 0 2", "gone 1 2", "gone 1 3"}},
        Script{"AC_OwnerDiesWhileAChildRegisters",
               Of(1, 1),
               {"create 1", "deliver create 1 0", "deliver create_end 0 0",
                "deliver created 0 1", "share 1 0 2", "deliver token 1 2",
                "crash 0", "gone 0 1", "gone 0 2", "gone 0 3"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weft::rref
