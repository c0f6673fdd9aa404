// Reference counting, explored state by state within small bounds, and walked
// at random within larger ones.

#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rref/core/ref_world.h"

namespace weft::rref {
namespace {

using ::testing::HasSubstr;

struct Walk {
  int64_t states = 0;
  std::string violation;
};

// Breadth first, so that a violation comes with a shortest way to it.
Walk Explore(const RefWorldOptions& options, int64_t max_states = 4000000) {
  struct Node {
    RefWorld world;
    std::vector<std::string> path;
  };
  Walk walk;
  absl::flat_hash_set<size_t> seen;
  std::deque<Node> open;
  open.push_back({RefWorld(options), {}});
  while (!open.empty() && walk.states < max_states) {
    Node node = std::move(open.front());
    open.pop_front();
    ++walk.states;
    RefWorld settled = node.world;
    if (settled.violation().empty()) settled.Settle();
    if (!settled.violation().empty()) {
      walk.violation = absl::StrCat(settled.violation(),
                                    " after: ", absl::StrJoin(node.path, ", "));
      return walk;
    }
    for (const std::string& move : node.world.Moves()) {
      RefWorld next = node.world;
      next.Apply(move);
      if (!seen.insert(absl::HashOf(next.Fingerprint())).second) continue;
      std::vector<std::string> path = node.path;
      path.push_back(move);
      open.push_back({std::move(next), std::move(path)});
    }
  }
  EXPECT_TRUE(open.empty()) << "not all states fit into " << max_states;
  return walk;
}

RefWorldOptions SharesAndFetches() {
  RefWorldOptions options;
  options.shares = 2;
  options.fetches = 1;
  return options;
}

RefWorldOptions RefusalsAndGiveUps() {
  RefWorldOptions options;
  options.shares = 2;
  options.refusals = 1;
  options.give_ups = 1;
  return options;
}

RefWorldOptions Failures() {
  RefWorldOptions options;
  options.shares = 2;
  options.failures = 1;
  options.give_ups = 1;
  return options;
}

RefWorldOptions Crashes() {
  RefWorldOptions options;
  options.shares = 2;
  options.crashes = 1;
  return options;
}

TEST(RefExploration, NoValueIsFreedEarlyOrKeptUnderAnyOrder) {
  const Walk walk = Explore(SharesAndFetches());
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(RefExploration, RefusedMessagesAndAbandonedCreationsLeaveNothing) {
  const Walk walk = Explore(RefusalsAndGiveUps());
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(RefExploration, FailedCreationsLeaveNothing) {
  const Walk walk = Explore(Failures());
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(RefExploration, CrashOfAnyAgentLeavesNothing) {
  const Walk walk = Explore(Crashes());
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(RefExploration, FindsEachPlantedFault) {
  const struct {
    Fault fault;
    RefWorldOptions options;
    const char* finding;
  } plants[] = {
      {Fault::kCreationNotFenced, RefusalsAndGiveUps(), "still has"},
      {Fault::kRepeatedRequest, SharesAndFetches(), "still has"},
      {Fault::kRefusalNotReported, RefusalsAndGiveUps(), "still h"},
      {Fault::kParentNotKept, SharesAndFetches(), "freed while"},
      {Fault::kSettlementLost, SharesAndFetches(), "still holds"},
      {Fault::kUseNotCounted, SharesAndFetches(), "after its reference"},
      {Fault::kFailedCreationUnknown, Failures(), "still h"},
      {Fault::kEarlyDeleteLost, SharesAndFetches(), "still h"},
      {Fault::kCreatorNotAsked, RefusalsAndGiveUps(), "still h"},
  };
  for (const auto& plant : plants) {
    RefWorldOptions options = plant.options;
    options.fault = plant.fault;
    const Walk walk = Explore(options);
    EXPECT_THAT(walk.violation, HasSubstr(plant.finding))
        << static_cast<int>(plant.fault);
  }
}

std::string Simulate(uint64_t seed, Fault fault,
                     std::map<std::string, int64_t>* counts) {
  std::mt19937_64 random(seed);
  RefWorldOptions options;
  options.agents = 8;
  options.max_objects = 4;
  options.shares = 40;
  options.fetches = 20;
  options.refusals = random() % 6;
  options.failures = random() % 2;
  options.give_ups = random() % 3;
  options.crashes = random() % 3;
  options.restarts = random() % 2;
  options.fault = fault;
  RefWorld world(options);
  std::vector<std::string> path;
  for (int step = 0; step < 400 && world.violation().empty(); ++step) {
    const std::vector<std::string> moves = world.Moves();
    if (moves.empty()) break;
    path.push_back(moves[random() % moves.size()]);
    world.Apply(path.back());
  }
  if (world.violation().empty()) world.Settle();
  for (const auto& [name, count] : world.counts()) (*counts)[name] += count;
  if (world.violation().empty()) return "";
  return absl::StrCat("seed ", seed, ": ", world.violation(),
                      " after: ", absl::StrJoin(path, ", "));
}

TEST(RefSimulation, EightAgentsHoldForTwoThousandSeeds) {
  std::map<std::string, int64_t> counts;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    ASSERT_EQ(Simulate(seed, Fault::kNone, &counts), "");
  }
  for (const auto& [name, count] : counts) {
    std::cout << name << ": " << count << "\n";
  }
  for (const char* name :
       {"crash", "gone", "give_up", "refused token", "refused create",
        "delivered cancel create", "delivered fork request", "delivered delete",
        "delivered fenced", "delivered ask creator", "delivered answer owner",
        "delivered fetched", "action free", "action answer"}) {
    EXPECT_GT(counts[name], 0) << name;
  }
}

TEST(RefSimulation, FindsEachPlantedFaultWithinTheSeeds) {
  for (const Fault fault :
       {Fault::kCreationNotFenced, Fault::kRepeatedRequest,
        Fault::kRefusalNotReported, Fault::kParentNotKept,
        Fault::kSameIncarnation, Fault::kSettlementLost, Fault::kUseNotCounted,
        Fault::kFailedCreationUnknown, Fault::kEarlyDeleteLost,
        Fault::kCreatorNotAsked}) {
    std::map<std::string, int64_t> counts;
    bool found = false;
    for (uint64_t seed = 1; seed <= 2000 && !found; ++seed) {
      found = !Simulate(seed, fault, &counts).empty();
    }
    EXPECT_TRUE(found) << static_cast<int>(fault);
  }
}

}  // namespace
}  // namespace weft::rref
