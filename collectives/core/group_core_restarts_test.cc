// Groups of cores of which one process stands still and goes on, or ends and is
// followed by another one of the same rank: random programs, orders and times
// (2 to 5 ranks, thousands of seeds).

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/collectives/core/testing/group_core_world.h"
#include "weft/sim/random.h"

namespace weft::collectives::group_core {
namespace {

using ::testing::ElementsAre;
using Code = absl::StatusCode;

// One event that can come, of those of `world` in random order. False: none
// can.
bool ComeOne(World& world, sim::Random& random) {
  struct Event {
    enum Kind { kStep, kAsk, kFindSilence, kDeliver };
    Kind kind;
    int from, to;
  };
  std::vector<Event> events;
  for (int p = 0; p < world.processes(); ++p) {
    for (const auto kind : {Event::kStep, Event::kAsk, Event::kFindSilence}) {
      events.push_back({kind, p, p});
    }
    for (int to = 0; to < world.processes(); ++to) {
      if (to != p) events.push_back({Event::kDeliver, p, to});
    }
  }
  while (!events.empty()) {
    std::swap(events[random.Below(static_cast<int64_t>(events.size()))],
              events.back());
    const Event event = events.back();
    events.pop_back();
    const bool has_come = event.kind == Event::kStep  ? world.Step(event.from)
                          : event.kind == Event::kAsk ? world.Ask(event.from)
                          : event.kind == Event::kFindSilence
                              ? world.FindSilence(event.from)
                              : world.Deliver(event.from, event.to);
    if (has_come) return true;
  }
  return false;
}

// Runs `world` until nothing more can come, or for so long.
void RunFor(World& world, absl::Duration time, sim::Random& random) {
  for (; time > absl::ZeroDuration() && !world.IsOver();
       time -= absl::Seconds(1)) {
    while (ComeOne(world, random)) {
    }
    world.Pass(absl::Seconds(1));
  }
}

TEST(GroupCoreRestarts, RankThatStandsStillForAShortTimeIsWaitedFor) {
  sim::Random random(1);
  World world({{kAllReduce, kBarrier}, {kAllReduce, kBarrier}});
  world.Stop(1);
  RunFor(world, absl::Seconds(9), random);
  EXPECT_THAT(world.rank(0).results, ElementsAre());
  world.Continue(1);
  RunFor(world, absl::Seconds(60), random);
  EXPECT_TRUE(world.IsOver());
  for (const int r : {0, 1}) {
    EXPECT_THAT(world.rank(r).results, ElementsAre(Code::kOk, Code::kOk));
  }
}

TEST(GroupCoreRestarts, RankThatWasTakenForDeadHearsOfItOnceItGoesOn) {
  sim::Random random(1);
  const Program program = {kBarrier, kBarrier};
  World world({program, program, program});
  world.Stop(1);
  RunFor(world, absl::Seconds(60), random);
  EXPECT_GT(world.taken_for_dead(), 0);
  EXPECT_THAT(world.rank(0).results, ElementsAre(Code::kUnavailable));
  EXPECT_THAT(world.rank(2).results, ElementsAre(Code::kUnavailable));
  // The others had all called the first barrier; it may find that before it
  // reads that the group is broken.
  world.Continue(1);
  RunFor(world, absl::Seconds(60), random);
  EXPECT_TRUE(world.IsOver());
  ASSERT_FALSE(world.rank(1).results.empty());
  EXPECT_EQ(world.rank(1).results.back(), Code::kUnavailable);
}

// It has heard nobody meanwhile, since it did not listen.
TEST(GroupCoreRestarts, RankThatStoodStillTakesNobodyForDead) {
  sim::Random random(1);
  World world({{kBarrier, kBarrier}, {kBarrier, kBarrier}});
  while (ComeOne(world, random)) {
    if (world.rank(0).is_waiting && world.rank(1).is_waiting) break;
  }
  for (const int r : {0, 1}) world.Stop(r);
  world.Pass(absl::Seconds(60));
  for (const int r : {0, 1}) world.Continue(r);
  RunFor(world, absl::Seconds(60), random);
  EXPECT_EQ(world.taken_for_dead(), 0);
  for (const int r : {0, 1}) {
    EXPECT_THAT(world.rank(r).results, ElementsAre(Code::kOk, Code::kOk));
  }
}

TEST(GroupCoreRestarts, ProcessThatComesAgainIsRefusedByWhoKnowsTheFormer) {
  sim::Random random(1);
  World world({{kBarrier}, {kBarrier}, {kBarrier}});
  world.Kill(1, /*drops_frames=*/true);
  const int again = world.Restart(1, {kBarrier});
  RunFor(world, absl::Seconds(60), random);
  EXPECT_TRUE(world.IsOver());
  EXPECT_GT(world.refused(), 0);
  EXPECT_THAT(world.rank(again).results, ElementsAre(Code::kDeadlineExceeded));
  EXPECT_THAT(world.rank(0).results, ElementsAre(Code::kUnavailable));
  EXPECT_THAT(world.rank(2).results, ElementsAre(Code::kUnavailable));
}

TEST(GroupCoreRestarts, ProcessThatComesAgainIsTakenIfNobodyMetTheFormer) {
  sim::Random random(1);
  World world({{kBarrier}, {kBarrier}, {kBarrier}}, World::Meeting::kComes);
  world.Kill(1, /*drops_frames=*/true);
  const int again = world.Restart(1, {kBarrier});
  RunFor(world, absl::Seconds(60), random);
  EXPECT_TRUE(world.IsOver());
  for (const int process : {0, again, 2}) {
    EXPECT_THAT(world.rank(process).results, ElementsAre(Code::kOk));
  }
}

// What the seeds of the simulation met.
struct Met {
  int64_t short_stops = 0;  // of which nobody heard
  int64_t long_stops = 0;   // after which the rank was taken for dead
  int64_t refused = 0;      // a second process of a rank was refused
  int64_t took_part = 0;    // a second process of a rank has got OK
};

absl::Duration PatienceOf(sim::Random& random) {
  return random.Between(absl::Seconds(5), absl::Seconds(40));
}

// A process that stands still, or ends and is followed by another, for a time
// that is drawn too.
class Strike {
 public:
  Strike(int size, sim::Random& random)
      : victim_(static_cast<int>(random.Below(size))),
        kills_(random.Chance(0.5)),
        drops_frames_(random.Chance(0.5)),
        events_(random.Below(random.Chance(0.5) ? 20 : 200)),
        lasts_(random.Between(absl::ZeroDuration(),
                              absl::Seconds(random.Chance(0.5) ? 1 : 30))),
        patience_(PatienceOf(random)) {}

  void ComeIfDue(World& world, const Program& program) {
    if (events_-- > 0) return;
    if (!has_come_) {
      has_come_ = true;
      is_over_ =
          kills_ ? !world.Kill(victim_, drops_frames_) : !world.Stop(victim_);
    } else if (!is_over_ && lasts_ <= absl::ZeroDuration()) {
      is_over_ = true;
      if (kills_) {
        again_ = world.Restart(victim_, program);
        world.SetPatience(again_, patience_);
      } else {
        world.Continue(victim_);
      }
    }
  }
  void Pass(absl::Duration time) {
    if (has_come_) lasts_ -= time;
  }
  // It has begun and will end.
  bool is_under_way() const { return has_come_ && !is_over_; }
  int victim() const { return victim_; }
  int again() const { return again_; }  // the second process, or -1

 private:
  const int victim_;
  const bool kills_;
  const bool drops_frames_;
  int64_t events_;  // before it comes
  absl::Duration lasts_;
  const absl::Duration patience_;  // of the second process
  bool has_come_ = false;
  bool is_over_ = false;
  int again_ = -1;
};

// Runs random programs with random orders to their end; what is wrong, if
// anything is.
std::string Simulate(uint64_t seed, Met& met) {
  sim::Random random(seed);
  const int size = 2 + static_cast<int>(random.Below(4));
  const auto draw = [&] {
    const int root = static_cast<int>(random.Below(size));
    const Kind kind = static_cast<Kind>(random.Below(5));
    const bool has_root = kind == Kind::kBroadcast || kind == Kind::kReduce;
    return Call{kind, has_root ? root : 0};
  };
  Program program;
  for (int64_t n = 1 + random.Below(8); n > 0; --n) program.push_back(draw());
  Program other = program;
  if (random.Chance(0.5)) other[random.Below(other.size())] = draw();
  std::vector<Program> programs(size, program);
  programs[random.Below(size)] = other;
  World world(programs, random.Chance(0.5) ? World::Meeting::kComes
                                           : World::Meeting::kIsOver);
  std::vector<Strike> strikes;
  for (int64_t n = 1 + random.Below(2); n > 0; --n) {
    strikes.emplace_back(size, random);
  }
  for (int r = 0; r < size; ++r) world.SetPatience(r, PatienceOf(random));
  const Program& second = random.Chance(0.5) ? program : other;
  const auto is_over = [&] {
    return world.IsOver() &&
           std::none_of(strikes.begin(), strikes.end(),
                        [](const Strike& one) { return one.is_under_way(); });
  };
  for (int events = 0; !is_over() && events < 100'000; ++events) {
    const absl::Duration time =
        ComeOne(world, random)
            ? random.Between(absl::ZeroDuration(), absl::Milliseconds(2))
            : absl::Seconds(1);
    world.Pass(time);
    for (Strike& strike : strikes) {
      strike.Pass(time);
      strike.ComeIfDue(world, second);
    }
    if (!world.Broken().empty()) {
      return absl::StrCat(world.Broken(), ":\n", world.Describe());
    }
  }
  const std::string broken = world.BrokenAtTheEnd();
  if (!broken.empty()) return absl::StrCat(broken, ":\n", world.Describe());
  met.refused += world.refused() > 0;
  for (const Strike& strike : strikes) {
    const bool has_stopped = world.rank(strike.victim()).was_stopped;
    met.short_stops += has_stopped && world.taken_for_dead() == 0;
    met.long_stops += has_stopped && world.taken_for_dead() > 0;
    if (strike.again() < 0) continue;
    const auto& results = world.rank(strike.again()).results;
    met.took_part += !results.empty() && results.front() == Code::kOk;
  }
  return "";
}

TEST(GroupCoreRestarts, RandomProgramsOrdersAndTimes) {
  Met met;
  for (uint64_t seed = 1; seed <= 10'000; ++seed) {
    ASSERT_EQ(Simulate(seed, met), "") << "seed " << seed;
  }
  EXPECT_GT(met.short_stops, 500);
  EXPECT_GT(met.long_stops, 500);
  EXPECT_GT(met.refused, 400);
  EXPECT_GT(met.took_part, 50);
  RecordProperty("short_stops", absl::StrCat(met.short_stops));
  RecordProperty("long_stops", absl::StrCat(met.long_stops));
  RecordProperty("refused", absl::StrCat(met.refused));
  RecordProperty("took_part", absl::StrCat(met.took_part));
}

}  // namespace
}  // namespace weft::collectives::group_core
