// Groups of cores: what one of them does where ranks fail, leave or differ, and
// random programs and orders (2 to 6 ranks, thousands of seeds).

#include "weft/collectives/core/group_core.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/clock.h"
#include "weft/collectives/core/testing/group_core_world.h"
#include "weft/sim/random.h"

namespace weft::collectives::group_core {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rank 2 calls Reduce to rank 1, which calls Reduce to rank 0, as rank 0 does.
// Both have left with OK when rank 0 fails because rank 2 has left; rank 1
// hears of that before the message of rank 2 comes.
TEST(GroupCore, RankThatHasLeftHearsOfADifferenceAfterAnothersFailure) {
  World world({{Reduce(0)}, {Reduce(0)}, {Reduce(1)}});
  const auto run = [&](int r) {
    while (world.Step(r)) {
    }
  };
  const auto deliver_all = [&](int from, int to) {
    while (world.Deliver(from, to)) {
    }
  };
  run(1);
  run(2);
  run(0);
  deliver_all(1, 0);
  deliver_all(2, 0);
  run(0);
  EXPECT_THAT(world.rank(0).results,
              ElementsAre(absl::StatusCode::kUnavailable));
  deliver_all(0, 1);
  EXPECT_EQ(world.rank(1).report, "");
  deliver_all(2, 1);
  EXPECT_THAT(world.rank(1).results, ElementsAre(absl::StatusCode::kOk));
  EXPECT_THAT(world.rank(1).report, AllOf(HasSubstr("rank 1 called Reduce0"),
                                          HasSubstr("rank 2 called Reduce1")));
}

// Ranks of a group that broke before all had come, and the frames that they
// post to each other.
class Strangers {
 public:
  explicit Strangers(int size) {
    for (int r = 0; r < size; ++r) {
      GroupCoreOptions options;
      options.group = "g";
      options.rank = r;
      options.size = size;
      cores_.emplace_back(options);
    }
  }

  GroupCore& operator[](int rank) { return cores_[rank]; }

  void Meet(int a, int b) {
    cores_[a].Join(b, Instant());
    cores_[b].Join(a, Instant());
  }

  // Delivers frames until none is under way. Returns how many have come.
  int DeliverAll() {
    int frames = 0;
    for (int quiet = 0, from = 0; quiet <= static_cast<int>(cores_.size());
         from = (from + 1) % static_cast<int>(cores_.size())) {
      GroupCore::Actions actions;
      cores_[from].TakeActions(actions);
      quiet = actions.todo.empty() ? quiet + 1 : 0;
      for (const GroupCore::Action& action : actions.todo) {
        ++frames;
        cores_[action.peer].Receive(from, Decode(Encode(action.frame)),
                                    Instant());
      }
      if (frames > 100000) break;
    }
    return frames;
  }

 private:
  std::vector<GroupCore> cores_;
};

// Rank 1 has met the others, which have not met each other.
TEST(GroupCore, EndOfAShrinkReachesARankToWhichThereIsNoStream) {
  Strangers ranks(3);
  ranks.Meet(0, 1);
  ranks.Meet(1, 2);
  ranks[2].EndShrink(5, absl::CancelledError("enough"));
  EXPECT_EQ(ranks.DeliverAll(), 2);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks[r].CheckShrink(5), absl::CancelledError("enough"));
  }
}

TEST(GroupCore, EndOfAShrinkIsToldToARankThatComesLater) {
  Strangers ranks(3);
  ranks.Meet(0, 1);
  ranks[0].EndShrink(5, absl::CancelledError("enough"));
  ranks.DeliverAll();
  ASSERT_TRUE(ranks[0].Open(2));
  ASSERT_EQ(ranks[2].Accept(0, "", Instant()), absl::OkStatus());
  ASSERT_TRUE(ranks[1].Open(2));
  ASSERT_EQ(ranks[2].Accept(1, "", Instant()), absl::OkStatus());
  ranks.DeliverAll();
  EXPECT_EQ(ranks[2].CheckShrink(5), absl::CancelledError("enough"));
}

// Else it would wait for that rank for as long as its operation may take.
TEST(GroupCore, RankThatComesLateHearsThatAnotherHasLeftOrBrokenTheGroup) {
  for (const bool breaks : {false, true}) {
    Strangers ranks(3);
    ranks.Meet(1, 2);
    if (breaks) ranks[1].Abort(absl::CancelledError("enough"));
    ranks[1].Leave();
    ranks.DeliverAll();
    ASSERT_TRUE(ranks[0].Open(1));
    ASSERT_EQ(ranks[1].Accept(0, "", Instant()), absl::OkStatus());
    ranks.DeliverAll();
    EXPECT_TRUE(ranks[0].HasLeft(1));
    EXPECT_TRUE(ranks[1].KnowsOfLeave(0));
    EXPECT_EQ(ranks[0].broken(),
              breaks ? absl::CancelledError("enough") : absl::OkStatus());
  }
}

TEST(GroupCore, ManyEndsOfShrinksDoNotGoRoundForEver) {
  Strangers ranks(3);
  ranks.Meet(0, 1);
  ranks.Meet(1, 2);
  ranks.Meet(0, 2);
  for (uint64_t key = 1; key <= 100; ++key) {
    ranks[1].EndShrink(key, absl::CancelledError("enough"));
  }
  EXPECT_LE(ranks.DeliverAll(), 400);
}

// This holds for a broken group too; the last Shrinks are known, and the first
// reason of each.
TEST(GroupCore, EndOfAShrinkIsToldAndBoundedAndBreaksNothing) {
  std::vector<GroupCore> cores;
  for (int r = 0; r < 2; ++r) {
    GroupCoreOptions options;
    options.group = "g";
    options.rank = r;
    options.size = 2;
    cores.emplace_back(options);
    cores[r].Join(1 - r, Instant());
  }
  const auto deliver = [&](int from) {
    GroupCore::Actions actions;
    cores[from].TakeActions(actions);
    for (const GroupCore::Action& action : actions.todo) {
      cores[1 - from].Receive(from, Decode(Encode(action.frame)), Instant());
    }
    return actions.todo.size();
  };
  cores[0].EndShrink(5, absl::CancelledError("enough"));
  EXPECT_EQ(deliver(0), 1u);
  EXPECT_EQ(cores[1].CheckShrink(5), absl::CancelledError("enough"));
  EXPECT_EQ(cores[1].CheckShrink(6), absl::OkStatus());
  EXPECT_EQ(cores[1].broken(), absl::OkStatus());
  cores[1].EndShrink(5, absl::CancelledError("later"));
  EXPECT_EQ(deliver(1), 0u);
  EXPECT_EQ(cores[1].CheckShrink(5), absl::CancelledError("enough"));
  cores[1].Abort(absl::CancelledError("broken"));
  deliver(1);
  for (uint64_t key = 100; key < 1100; ++key) {
    cores[1].EndShrink(key, absl::UnavailableError("gone"));
  }
  deliver(1);
  EXPECT_EQ(cores[0].CheckShrink(1099), absl::UnavailableError("gone"));
  EXPECT_EQ(cores[0].CheckShrink(100), absl::OkStatus());
  EXPECT_EQ(cores[0].broken(), absl::CancelledError("broken"));
}

// Ranks 1 and 2 call different operations, in which rank 0 has no part of rank
// 2's; all could go through the barrier before the two hear of each other.
TEST(GroupCore, BarrierWaitsUntilWhatWasSentBeforeIsCompared) {
  World world({{Broadcast(1), kCentralBarrier},
               {Broadcast(1), kCentralBarrier},
               {Reduce(1), kCentralBarrier}});
  const auto run_all = [&] {
    for (int r = 0; r < 3; ++r) {
      while (world.Step(r)) {
      }
    }
  };
  const auto deliver_all = [&](int from, int to) {
    while (world.Deliver(from, to)) {
    }
  };
  for (int round = 0; round < 10; ++round) {
    run_all();
    for (const int peer : {1, 2}) {
      deliver_all(0, peer);
      deliver_all(peer, 0);
    }
  }
  EXPECT_EQ(world.Broken(), "");
  EXPECT_EQ(world.rank(1).stage, Rank::kCompares);
  EXPECT_EQ(world.rank(2).stage, Rank::kCompares);
  deliver_all(1, 2);
  deliver_all(2, 1);
  run_all();
  EXPECT_TRUE(world.rank(1).has_failed());
  EXPECT_TRUE(world.rank(2).has_failed());
}

// Runs random programs with random orders to their end; what is wrong, if
// anything is.
std::string Simulate(uint64_t seed) {
  sim::Random random(seed);
  const int size = 2 + static_cast<int>(random.Below(5));
  const auto draw = [&] {
    const int root = static_cast<int>(random.Below(size));
    const Kind kind = static_cast<Kind>(random.Below(5));
    const bool has_root = kind == Kind::kBroadcast || kind == Kind::kReduce;
    return Call{kind, has_root ? root : 0};
  };
  Program program;
  for (int64_t n = 1 + random.Below(12); n > 0; --n) program.push_back(draw());
  std::vector<Program> programs(size, program);
  const int64_t what = random.Below(4);
  for (int64_t n = what == 1 ? 1 + random.Below(2) : 0; n > 0; --n) {
    programs[random.Below(size)][random.Below(program.size())] = draw();
  }
  if (what == 2) {
    for (Call& call : programs[random.Below(size)]) {
      call.is_refused = random.Chance(0.3);
    }
  }
  World world(std::move(programs));
  int64_t dies_at = what == 3 ? random.Below(200) : -1;
  // A rank, or a stream, may be slow.
  const int slow = static_cast<int>(random.Below(size));
  for (int idle = 0; idle < 2;) {
    std::vector<std::function<bool()>> events;
    for (int r = 0; r < size; ++r) {
      if (r != slow || random.Chance(0.05) || idle > 0) {
        events.push_back([&, r] { return world.Step(r); });
      }
      for (int to = 0; to < size; ++to) {
        if (to == r) continue;
        events.push_back([&, r, to] { return world.Deliver(r, to); });
      }
      if (idle > 0) events.push_back([&, r] { return world.Ask(r); });
    }
    for (size_t i = events.size() - 1; i > 0; --i) {
      std::swap(events[i], events[random.Below(static_cast<int64_t>(i) + 1)]);
    }
    const bool has_moved =
        std::any_of(events.begin(), events.end(),
                    [](const auto& event) { return event(); });
    idle = has_moved ? 0 : idle + 1;
    if (dies_at-- == 0) {
      world.Kill(static_cast<int>(random.Below(size)), random.Chance(0.5));
    }
    if (!world.Broken().empty()) {
      return absl::StrCat(world.Broken(), ":\n", world.Describe());
    }
  }
  const std::string broken = world.BrokenAtTheEnd();
  return broken.empty() ? "" : absl::StrCat(broken, ":\n", world.Describe());
}

TEST(GroupCoreSimulation, RandomProgramsAndOrders) {
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    ASSERT_EQ(Simulate(seed), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::collectives::group_core
