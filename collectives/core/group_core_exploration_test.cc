// Groups of cores: every order in which the steps, frames, questions and one
// death of 2 and 3 ranks can come.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "weft/collectives/core/testing/group_core_world.h"

namespace weft::collectives::group_core {
namespace {

struct Exploration {
  bool with_death = false;
  // A rank may ask at any time, not only once nothing else can come.
  bool asks_early = false;
  // A rank goes on as far as it can, and no frame comes meanwhile.
  bool has_long_steps = false;
};

// All that may come next in `world`, each in a world of its own.
std::vector<World> NextOf(const World& world, const Exploration& exploration) {
  std::vector<World> next;
  const auto offer = [&](const std::function<bool(World&)>& event) {
    World copy = world;
    if (event(copy)) next.push_back(std::move(copy));
  };
  bool has_died = false;
  for (int r = 0; r < world.size(); ++r) {
    has_died |= world.rank(r).stage == Rank::kDead;
  }
  for (int r = 0; r < world.size(); ++r) {
    offer([&](World& w) {
      const bool has_moved = w.Step(r);
      while (exploration.has_long_steps && w.Step(r)) {
      }
      return has_moved;
    });
    for (int to = 0; to < world.size(); ++to) {
      if (to != r) offer([&](World& w) { return w.Deliver(r, to); });
    }
  }
  if (next.empty() || exploration.asks_early) {
    for (int r = 0; r < world.size(); ++r) {
      offer([&](World& w) { return w.Ask(r); });
    }
  }
  if (exploration.with_death && !has_died && !next.empty()) {
    for (int r = 0; r < world.size(); ++r) {
      for (const bool drops : {false, true}) {
        offer([&](World& w) { return w.Kill(r, drops); });
      }
    }
  }
  return next;
}

// Explores all orders; how many states there are, or 0 if one is wrong.
int64_t Explore(const std::vector<Program>& programs,
                const Exploration& exploration = {}) {
  // Hashes of 64 bits: among a million states two are taken for one with a
  // chance of one in 30 million.
  absl::flat_hash_set<uint64_t> seen;
  const auto is_new = [&](const World& world) {
    return seen.insert(absl::Hash<std::string>()(world.Key())).second;
  };
  std::vector<World> open = {World(programs)};
  is_new(open.back());
  while (!open.empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    std::string broken = world.Broken();
    std::vector<World> next = NextOf(world, exploration);
    if (broken.empty() && next.empty()) broken = world.BrokenAtTheEnd();
    if (!broken.empty()) {
      ADD_FAILURE() << broken << ":\n" << world.Describe();
      return 0;
    }
    for (World& one : next) {
      if (is_new(one)) open.push_back(std::move(one));
    }
  }
  return static_cast<int64_t>(seen.size());
}

// `program`, and those in which one operation is another of `kinds`.
std::vector<Program> Variants(const Program& program,
                              const std::vector<Call>& kinds) {
  std::vector<Program> variants = {program};
  for (size_t at = 0; at < program.size(); ++at) {
    for (const Call& kind : kinds) {
      if (kind == program[at]) continue;
      variants.push_back(program);
      variants.back()[at] = kind;
    }
  }
  return variants;
}

std::vector<Program> AllPrograms(size_t length,
                                 const std::vector<Call>& kinds) {
  std::vector<Program> programs = {{}};
  for (size_t at = 0; at < length; ++at) {
    std::vector<Program> longer;
    for (const Program& program : programs) {
      for (const Call& kind : kinds) {
        longer.push_back(program);
        longer.back().push_back(kind);
      }
    }
    programs = std::move(longer);
  }
  return programs;
}

TEST(GroupCoreExploration, TwoRanksAndThreeOperationsInEveryOrder) {
  const std::vector<Call> kinds = {kBarrier, Broadcast(0), Reduce(0)};
  int64_t states = 0;
  for (const Program& program : AllPrograms(3, kinds)) {
    for (const Program& other : Variants(program, kinds)) {
      states += Explore({program, other});
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(states, 90'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, TwoRanksThatAskAtAnyTime) {
  int64_t states = 0;
  for (const Program& program : {Program{kBarrier, kBarrier},
                                 {Broadcast(0), kAllReduce},
                                 {Reduce(0), kBarrier}}) {
    for (const Program& other : Variants(program, {kBarrier, Broadcast(0)})) {
      Exploration exploration;
      exploration.asks_early = true;
      states += Explore({program, other}, exploration);
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(states, 50'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, TwoRanksOfWhichOneDiesInEveryOrder) {
  int64_t states = 0;
  for (const Program& program :
       AllPrograms(2, {kBarrier, Broadcast(0), kAllReduce})) {
    for (const Program& other : Variants(program, {kBarrier, Broadcast(0)})) {
      states += Explore({program, other}, {/*with_death=*/true});
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(states, 25'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, RanksThatRefuseInEveryOrder) {
  int64_t states = 0;
  for (const Call& call : {kBarrier, kAllReduce, Broadcast(0), Broadcast(1)}) {
    states += Explore({{call, kBarrier}, {Refused(call), kBarrier}});
    states += Explore({{Refused(call), kBarrier}, {Refused(call), kBarrier}});
  }
  EXPECT_GT(states, 1'000);
  RecordProperty("states", absl::StrCat(states));
}

TEST(GroupCoreExploration, ThreeRanksInEveryOrder) {
  Exploration exploration;
  exploration.has_long_steps = true;
  int64_t states = 0;
  for (const std::vector<Program>& programs : std::vector<std::vector<Program>>{
           {{kBarrier}, {kBarrier}, {kBarrier}},
           {{Broadcast(0)}, {Broadcast(0)}, {Broadcast(1)}},
           {{Reduce(0)}, {Reduce(0)}, {Reduce(1)}},
           {{Broadcast(0), Reduce(0)},
            {Broadcast(0), Reduce(0)},
            {Broadcast(0), Reduce(0)}},
           {{Broadcast(0), Reduce(0)},
            {Broadcast(0), Reduce(0)},
            {Broadcast(1), Reduce(0)}},
       }) {
    states += Explore(programs, exploration);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(states, 150'000);
  RecordProperty("states", absl::StrCat(states));
}

}  // namespace
}  // namespace weft::collectives::group_core
