// Both sessions of a pair under faults: in every order of few, and in thousands
// of random orders of many.

#include <cstdint>
#include <deque>
#include <iostream>
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
#include "weft/rpc/session/limits.h"
#include "weft/rpc/session/session_coverage.h"
#include "weft/rpc/session/session_world.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::HasSubstr;
using ::weft::testing::IsOk;

// --- Every way. --------------------------------------------------------------

struct Walk {
  int64_t states = 0;
  std::string violation;  // with the moves that led to it
};

// Breadth first, so that a violation comes with the shortest way to it.
Walk Explore(const WorldOptions& options, int64_t max_states) {
  struct Node {
    SessionWorld world;
    std::vector<std::string> path;
  };
  Walk walk;
  absl::flat_hash_set<size_t> seen;
  std::deque<Node> open;
  open.push_back({SessionWorld(options), {}});
  while (!open.empty() && walk.states < max_states) {
    Node node = std::move(open.front());
    open.pop_front();
    ++walk.states;
    SessionWorld settled = node.world;
    settled.Settle();
    const std::string& violation = node.world.violation().empty()
                                       ? settled.violation()
                                       : node.world.violation();
    if (!violation.empty()) {
      walk.violation =
          absl::StrCat(violation, " after: ", absl::StrJoin(node.path, ", "));
      return walk;
    }
    for (const std::string& move : node.world.Moves()) {
      SessionWorld next = node.world;
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

Limits FewCalls(int64_t calls) {
  Limits limits;
  limits.calls = calls;
  return limits;
}

WorldOptions AnyOrder() {
  WorldOptions options;
  options.limits = FewCalls(2);
  options.drops = 1;
  options.duplicates = 1;
  options.disconnects = 1;
  options.abandons = 1;
  return options;
}

WorldOptions InOrder() {
  WorldOptions options;
  options.fifo = true;
  options.limits = FewCalls(1);
  options.disconnects = 2;
  options.abandons = 1;
  options.expiries = 1;
  options.forgets = 1;
  options.crashes = 1;
  return options;
}

// The same with attachments of requests and replies, which need fewer other
// faults to go wrong.
WorldOptions AttachedAnyOrder() {
  WorldOptions options;
  options.attached = true;
  options.calls = 1;
  options.limits = FewCalls(2);
  options.drops = 1;
  options.duplicates = 1;
  options.disconnects = 1;
  options.abandons = 1;
  options.reply_refusals = 1;
  return options;
}

WorldOptions AttachedInOrder() {
  WorldOptions options;
  options.attached = true;
  options.fifo = true;
  options.limits = FewCalls(1);
  options.disconnects = 1;
  options.abandons = 1;
  options.expiries = 1;
  options.crashes = 1;
  options.request_refusals = 1;
  options.reply_refusals = 1;
  return options;
}

TEST(SessionExploration, HoldsForAttachmentsUnderLossRepetitionAndAnyOrder) {
  const Walk walk = Explore(AttachedAnyOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, HoldsForAttachmentsUnderReconnectsExpiryAndCrash) {
  const Walk walk = Explore(AttachedInOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, HoldsUnderLossRepetitionAndAnyOrder) {
  const Walk walk = Explore(AnyOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, HoldsUnderReconnectsExpiryForgettingAndCrash) {
  const Walk walk = Explore(InOrder(), 400000);
  std::cout << walk.states << " states\n";
  EXPECT_EQ(walk.violation, "");
  EXPECT_GT(walk.states, 1000);
}

TEST(SessionExploration, FindsEachPlantedFault) {
  const struct {
    Fault fault;
    WorldOptions options;
    const char* finding;
  } plants[] = {
      {Fault::kNoDedupe, AnyOrder(), "started twice"},
      {Fault::kNoFence, InOrder(), "started twice"},
      {Fault::kAckBeforeDelivery, InOrder(), "ended 0 times"},
      {Fault::kSendOrderLost, InOrder(), "honest caller was refused"},
      {Fault::kAckBeforeSettled, AttachedInOrder(), "A2: reply"},
      {Fault::kNoRollback, AttachedInOrder(), "A1: a reply"},
      {Fault::kNeverAfterStart, AttachedInOrder(), "A3: request"},
  };
  for (const auto& plant : plants) {
    WorldOptions options = plant.options;
    options.fault = plant.fault;
    EXPECT_THAT(Explore(options, 400000).violation, HasSubstr(plant.finding));
  }
}

// --- Many ways. --------------------------------------------------------------

std::string Simulate(uint64_t seed, Fault fault, SessionHook* hook = nullptr) {
  std::mt19937_64 random(seed);
  WorldOptions options;
  options.calls = 12;
  options.fifo = seed % 2 == 0;
  options.limits = FewCalls(1 + seed % 4);
  options.drops = random() % 6;
  options.duplicates = random() % 6;
  options.disconnects = random() % 6;
  options.abandons = random() % 4;
  options.expiries = random() % 3;
  options.unreachables = random() % 2;
  options.forgets = random() % 2;
  options.crashes = random() % 2;
  options.attached = seed % 4 >= 2;
  options.request_refusals = random() % 3;
  options.reply_refusals = random() % 3;
  options.fault = fault;
  options.hook = hook;
  SessionWorld world(options);
  std::vector<std::string> path;
  for (int step = 0; step < 300 && world.violation().empty(); ++step) {
    const std::vector<std::string> moves = world.Moves();
    if (moves.empty()) break;
    path.push_back(moves[random() % moves.size()]);
    world.Apply(path.back());
  }
  if (world.violation().empty()) world.Settle();
  if (world.violation().empty()) return "";
  return absl::StrCat("seed ", seed, ": ", world.violation(),
                      " after: ", absl::StrJoin(path, ", "));
}

TEST(SessionSimulation, HoldsForAThousandSeeds) {
  SessionCoverage coverage;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    ASSERT_EQ(Simulate(seed, Fault::kNone, &coverage), "");
  }
  std::cout << coverage.Report(SessionCoverage::Where::kAlone);
  EXPECT_THAT(coverage.CheckHits(SessionCoverage::Where::kAlone), IsOk());
}

TEST(SessionSimulation, FindsEachPlantedFaultWithinTheSeeds) {
  const struct {
    Fault fault;
    const char* name;
  } plants[] = {
      {Fault::kNoDedupe, "no dedupe"},
      {Fault::kNoFence, "no fence"},
      {Fault::kAckBeforeDelivery, "acknowledged before delivery"},
      {Fault::kSendOrderLost, "send order lost"},
      {Fault::kAckBeforeSettled, "acknowledged before settled"},
      {Fault::kNoRollback, "abandoned reply not rolled back"},
      {Fault::kNeverAfterStart, "cancel answered never after start"},
  };
  for (const auto& plant : plants) {
    std::string found;
    for (uint64_t seed = 1; seed <= 1000 && found.empty(); ++seed) {
      found = Simulate(seed, plant.fault);
    }
    EXPECT_NE(found, "") << plant.name;
    std::cout << plant.name << ": " << found.substr(0, 100) << "\n";
  }
}

}  // namespace
}  // namespace weft::rpc
