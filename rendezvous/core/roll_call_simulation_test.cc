// Workers that come to a roll call, die, give up, come back and come late, in
// random and in all orders of reads, writes and news of each other.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/rendezvous/core/roll_call_core.h"
#include "weft/rendezvous/core/roll_call_members.h"
#include "weft/rendezvous/member.h"
#include "weft/sim/random.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rendezvous {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;

// A job, its store's one value, and workers that each see the job as it was at
// some moment.
class Job {
 public:
  struct Options {
    int workers = 3;
    int late = 0;    // of these, so many are not in the job at first
    int deaths = 0;  // that may come; each may come back
    int gives_up = 0;
    RollTerms terms = TermsOf(1, kMostOnARoll);
  };

  explicit Job(const Options& options) : options_(options) {
    views_.push_back(std::make_shared<View>());
    workers_.resize(options.workers);
    for (int w = 0; w < options.workers - options.late; ++w) Join(w);
    for (int w = 0; w < options.workers - options.late; ++w) {
      workers_[w].seen = views_.size() - 1;
    }
  }

  // What may happen next.
  enum Kind { kStep, kNews, kDeath, kJoin, kGiveUp, kTimer };
  struct Event {
    Kind kind;
    int worker;
  };
  std::vector<Event> Events() const {
    std::vector<Event> events;
    for (int w = 0; w < options_.workers; ++w) {
      const Worker& one = workers_[w];
      if (!one.is_alive) {
        if (one.lives < 2) events.push_back({kJoin, w});
        continue;
      }
      if (CanStep(w)) events.push_back({kStep, w});
      if (one.seen + 1 < views_.size()) events.push_back({kNews, w});
      if (deaths_ < options_.deaths) events.push_back({kDeath, w});
      const bool waits = one.core != nullptr && !one.gives_up;
      if (waits && gave_up_ < options_.gives_up) {
        events.push_back({kGiveUp, w});
      }
      if (waits && one.sleeps_until.has_value()) {
        events.push_back({kTimer, w});
      }
    }
    return events;
  }

  void Do(const Event& event) {
    Worker& one = workers_[event.worker];
    switch (event.kind) {
      case kStep:
        return Step(event.worker);
      case kNews:
        ++one.seen;
        one.is_awake = true;
        return;
      case kDeath:
        ++deaths_;
        return Die(event.worker);
      case kJoin:
        Join(event.worker);
        one.seen = views_.size() - 1;
        return;
      case kGiveUp:
        ++gave_up_;
        one.gives_up = true;
        one.is_awake = true;
        return;
      case kTimer:
        one.now = std::max(one.now, *one.sleeps_until);
        one.sleeps_until.reset();
        one.is_awake = true;
        return;
    }
  }

  // Nothing fails any more, and all hear of everything: does what is left.
  void Settle() {
    for (int quiet = 0, i = 0; quiet < 3 * options_.workers; ++i) {
      ASSERT_LT(i, 100000) << "they go on for ever";
      const int w = i % options_.workers;
      Worker& one = workers_[w];
      ++quiet;
      if (!one.is_alive) continue;
      if (one.seen + 1 < views_.size()) {
        one.seen = views_.size() - 1;
        one.is_awake = true;
      }
      if (one.sleeps_until.has_value()) Do({kTimer, w});
      if (one.roll.has_value() && !IsIntact(*one.roll)) ComeAgain(w);
      if (!CanStep(w)) continue;
      Step(w);
      quiet = 0;
    }
  }

  // R5: who has not given up is on one roll of the living, or waits.
  void CheckEnd() const {
    std::vector<std::string> waiting;
    std::optional<Roll> last;
    for (int w = 0; w < options_.workers; ++w) {
      const Worker& one = workers_[w];
      if (!one.is_alive || one.has_given_up) continue;
      if (!one.roll.has_value()) {
        waiting.push_back(MemberOf(w, 0).name);
        const std::string text = one.core->Describe(*views_.back());
        EXPECT_THAT(text, AllOf(HasSubstr("waiting for "),
                                Not(HasSubstr("waiting for nobody"))));
        continue;
      }
      EXPECT_TRUE(IsIntact(*one.roll));
      for (const RollEntry& entry : one.roll->entries) {
        const Worker& other = workers_[entry.rank];
        ASSERT_TRUE(other.roll.has_value()) << entry.name << " is not there";
        EXPECT_EQ(other.roll->round, one.roll->round) << entry.name;
      }
    }
    const int waits = static_cast<int>(waiting.size());
    if (waits == 0) return;
    // Somebody else lives who does not come, being on a roll or having given
    // up; or they are too few.
    bool others_live = false;
    for (const Worker& one : workers_) {
      others_live |= one.is_alive && (one.has_given_up || one.roll.has_value());
    }
    EXPECT_TRUE(waits < options_.terms.min || others_live)
        << absl::StrJoin(waiting, ", ");
    EXPECT_TRUE(waits < options_.terms.max || others_live);
  }

  int rolls() const { return static_cast<int>(rolls_.size()); }

  // Equal texts, equal states.
  std::string Snapshot() const {
    std::string text = absl::StrCat(value_, "|", version_, "|", views_.size(),
                                    "|", deaths_, "|", gave_up_);
    for (const Worker& one : workers_) {
      absl::StrAppend(
          &text, "{", one.is_alive, one.lives, one.seen, one.is_awake,
          one.gives_up, one.has_given_up, one.pending.has_value(),
          one.pending.has_value() ? one.pending->second : "", "#",
          one.pending.has_value() ? one.pending->first : 0, "#",
          one.roll.has_value() ? one.roll->round : 0, "#", one.read, "#",
          one.sleeps_until.has_value(), one.now.nanoseconds(), "}");
    }
    return text;
  }

 private:
  struct Worker {
    bool is_alive = false;
    int lives = 0;
    size_t seen = 0;                     // the view that it has
    std::shared_ptr<RollCallCore> core;  // null: it has a roll, or has given up
    uint64_t comings = 0;
    bool is_awake = false;
    uint64_t read = 0;  // the version that it has looked at
    // What it is about to write, in place of that version.
    std::optional<std::pair<uint64_t, std::string>> pending;
    std::optional<Roll> roll;
    bool gives_up = false;
    bool has_given_up = false;
    uint64_t last_round = 0;  // of its last roll
    Instant now;
    std::optional<Instant> sleeps_until;
  };

  bool CanStep(int w) const {
    const Worker& one = workers_[w];
    return one.is_alive && one.core != nullptr &&
           (one.pending.has_value() || one.is_awake || one.read != version_);
  }

  void Publish() {
    std::vector<Member> members;
    for (int w = 0; w < options_.workers; ++w) {
      if (workers_[w].is_alive) {
        members.push_back(MemberOf(w, workers_[w].lives));
      }
    }
    std::vector<Departed> departed;
    for (const auto& [id, one] : departed_) departed.push_back(one);
    views_.push_back(std::make_shared<View>(
        MakeEpoch(1, static_cast<uint32_t>(views_.size())),
        World::Elastic(1, 100), members, departed));
  }

  void Join(int w) {
    Worker& one = workers_[w];
    const int lives = one.lives + 1;
    one = Worker();
    one.is_alive = true;
    one.lives = lives;
    ComeAgain(w);
    Publish();
  }

  void ComeAgain(int w) {
    Worker& one = workers_[w];
    one.roll.reset();
    one.is_awake = true;
    const uint64_t ticket = one.lives * 1000 + 100 * ++one.comings;
    one.core = std::make_shared<RollCallCore>(
        "g", EntryOf(MemberOf(w, one.lives), ticket), options_.terms);
  }

  void Die(int w) {
    Worker& one = workers_[w];
    one.is_alive = false;
    const Member member = MemberOf(w, one.lives);
    departed_[w] = {member.name, member.key, "it died", false};
    Publish();
  }

  // A read and what follows from it, or the write after it.
  void Step(int w) {
    Worker& one = workers_[w];
    if (one.pending.has_value()) {
      const auto [expected, value] = *std::exchange(one.pending, std::nullopt);
      if (expected == version_) {
        value_ = value;
        ++version_;
        CheckValue();
      }
      one.is_awake = true;
      return;
    }
    one.is_awake = false;
    one.read = version_;
    const View& view = *views_[one.seen];
    RollCallCore::Step step = one.gives_up
                                  ? one.core->OnGiveUp(value_, view)
                                  : one.core->OnRead(value_, view, one.now);
    one.sleeps_until.reset();
    if (auto* write = std::get_if<RollCallCore::Write>(&step)) {
      one.pending.emplace(version_, std::move(write->value));
    } else if (auto* roll = std::get_if<Roll>(&step)) {
      CheckRoll(w, *roll);
      for (const RollEntry& entry : roll->entries) {
        EXPECT_FALSE(view.IsGone(entry.key)) << entry.name;
      }
      one.last_round = roll->round;
      one.roll = std::move(*roll);
      one.core.reset();
      one.gives_up = false;
    } else if (auto* why = std::get_if<absl::Status>(&step)) {
      ADD_FAILURE() << *why;
      one.core.reset();
    } else if (one.gives_up) {
      CheckIsOnNone(w, view);
      one.core.reset();
      one.gives_up = false;
      one.has_given_up = true;
    } else {
      const Instant until = std::get<RollCallCore::Wait>(step).until;
      if (!until.is_infinite()) one.sleeps_until = until;
    }
  }

  // Each coming is in one place.
  void CheckValue() const {
    const auto state = RollCallState::Decode(value_);
    ASSERT_THAT(state, IsOk());
    std::vector<RollEntry> all = state->present;
    for (const Roll& roll : state->closed) {
      all.insert(all.end(), roll.entries.begin(), roll.entries.end());
    }
    std::set<std::pair<std::string, uint64_t>> comings;
    for (const RollEntry& entry : all) {
      EXPECT_TRUE(comings.emplace(entry.name, entry.ticket).second)
          << entry.name << " twice: " << value_;
    }
  }

  // Who gives up does not leave others with a roll on which it is.
  void CheckIsOnNone(int w, const View& view) const {
    const auto state = RollCallState::Decode(value_);
    ASSERT_THAT(state, IsOk());
    for (const Roll& roll : state->closed) {
      if (roll.round <= workers_[w].last_round) continue;
      bool is_on = false, is_living = true;
      for (const RollEntry& entry : roll.entries) {
        is_on |= entry.key == MemberOf(w, workers_[w].lives).key;
        is_living &= !view.IsGone(entry.key);
      }
      EXPECT_FALSE(is_on && is_living) << "worker " << w << ": " << value_;
    }
  }

  // R1, R2, R3, R4.
  void CheckRoll(int w, const Roll& roll) {
    const auto [at, is_new] = rolls_.emplace(roll.round, roll.entries);
    EXPECT_EQ(at->second, roll.entries) << "round " << roll.round;
    const Member self = MemberOf(w, workers_[w].lives);
    const int size = static_cast<int>(roll.entries.size());
    EXPECT_GE(size, options_.terms.min);
    EXPECT_LE(size, options_.terms.max);
    std::set<std::string> names;
    bool is_on = false;
    for (size_t i = 0; i < roll.entries.size(); ++i) {
      names.insert(roll.entries[i].name);
      is_on |= roll.entries[i].key == self.key;
      if (i > 0) {
        EXPECT_LT(roll.entries[i - 1].rank, roll.entries[i].rank);
      }
    }
    EXPECT_TRUE(is_on);
    EXPECT_EQ(names.size(), roll.entries.size());
    for (const auto& view : views_) {
      if (view->version() != roll.epoch) continue;
      for (const RollEntry& entry : roll.entries) {
        EXPECT_FALSE(view->IsGone(entry.key))
            << entry.name << " was gone at the epoch of the roll";
      }
    }
    // R4.
    const auto former = rolls_.find(roll.round - 1);
    for (const auto& view : views_) {
      if (view->version() != roll.epoch || former == rolls_.end() ||
          options_.terms.last_call != absl::InfiniteDuration()) {
        continue;
      }
      for (const RollEntry& entry : former->second) {
        if (view->IsGone(entry.key)) continue;
        EXPECT_EQ(names.count(entry.name), 1u)
            << entry.name << " was on the roll before, and lives";
      }
    }
    const bool checks_all =
        options_.terms.last_call == absl::InfiniteDuration() &&
        size < options_.terms.max;
    for (const auto& view : views_) {
      if (view->version() != roll.epoch || !checks_all) continue;
      for (const Member& member : view->members()) {
        EXPECT_EQ(names.count(member.name), 1u)
            << member.name << " was there at the epoch of the roll";
      }
    }
  }

  bool IsIntact(const Roll& roll) const {
    return std::none_of(roll.entries.begin(), roll.entries.end(),
                        [&](const RollEntry& entry) {
                          return views_.back()->IsGone(entry.key);
                        });
  }

  const Options options_;
  std::string value_;
  uint64_t version_ = 0;
  std::vector<std::shared_ptr<const View>> views_;
  std::map<int, Departed> departed_;
  std::vector<Worker> workers_;
  std::map<uint64_t, std::vector<RollEntry>> rolls_;
  int deaths_ = 0;
  int gave_up_ = 0;
};

void RunSeeds(const Job::Options& options, int seeds, double death = 0.02) {
  int rolls = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    sim::Random random(static_cast<uint64_t>(seed));
    Job job(options);
    for (int i = 0; i < 200; ++i) {
      const std::vector<Job::Event> events = job.Events();
      if (events.empty()) break;
      const Job::Event event = events[random.Below(events.size())];
      const bool is_rare =
          event.kind == Job::kDeath || event.kind == Job::kGiveUp;
      if (!is_rare || random.Chance(death * 5)) job.Do(event);
    }
    job.Settle();
    job.CheckEnd();
    rolls += job.rolls();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GE(rolls, seeds / 2);  // the runs are of something
}

TEST(RollCallSimulation, TheLivingMakeOneRollWhoeverDiesOrComesLate) {
  Job::Options options;
  options.workers = 5;
  options.late = 2;
  options.deaths = 3;
  RunSeeds(options, 4000);
}

TEST(RollCallSimulation, AtLeastMinMakeOneRollOrNameThoseTheyWaitFor) {
  Job::Options options;
  options.workers = 5;
  options.late = 2;
  options.deaths = 3;
  options.gives_up = 2;
  options.terms = TermsOf(3, 4);
  RunSeeds(options, 4000);
}

TEST(RollCallSimulation, LivingMembersOfARollAreOnTheNextHoweverManyCome) {
  Job::Options options;
  options.workers = 5;
  options.late = 2;
  options.deaths = 3;
  options.terms = TermsOf(1, 2);
  RunSeeds(options, 4000);
}

TEST(RollCallSimulation, ALastCallIsWaitedForByNobodyForEver) {
  Job::Options options;
  options.workers = 5;
  options.late = 2;
  options.deaths = 2;
  options.gives_up = 2;
  options.terms = TermsOf(2, kMostOnARoll, kSecond);
  RunSeeds(options, 4000);
}

// Every order of everything that three workers do while one of them dies, and
// of two with one that comes late.
void Explore(const Job::Options& options, size_t at_least) {
  std::set<std::string> known;
  std::deque<std::vector<Job::Event>> open = {{}};
  size_t states = 0;
  while (!open.empty()) {
    const std::vector<Job::Event> path = std::move(open.front());
    open.pop_front();
    Job job(options);
    for (const Job::Event& event : path) job.Do(event);
    if (!known.insert(job.Snapshot()).second) continue;
    ++states;
    for (const Job::Event& event : job.Events()) {
      open.push_back(path);
      open.back().push_back(event);
    }
    job.Settle();
    job.CheckEnd();
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
  std::cout << states << " states\n";
  EXPECT_GE(states, at_least);
}

TEST(RollCallExploration, TwoWorkersOneOfWhichDiesOrComesBack) {
  Job::Options options;
  options.workers = 2;
  options.deaths = 1;
  Explore(options, 500);
}

TEST(RollCallExploration, ThreeWorkersOfWhichTwoMayJoin) {
  Job::Options options;
  options.workers = 3;
  options.deaths = 1;
  options.terms = TermsOf(1, 2);
  Explore(options, 500);
}

TEST(RollCallExploration, ThreeWorkersOneOfWhichComesLate) {
  Job::Options options;
  options.workers = 3;
  options.late = 1;
  Explore(options, 500);
}

}  // namespace
}  // namespace weft::rendezvous
