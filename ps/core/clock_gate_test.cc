#include "weft/ps/core/clock_gate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using Answer = ClockGate::Answer;

ClockGate::Holder Of(uint32_t worker, uint64_t client, uint64_t epoch = 1) {
  return {{worker, epoch}, client, ""};
}

TEST(ClockGate, PullWaitsForTheSlowestByTheBoundAndNoLonger) {
  ClockGate gate(2);
  gate.Join(0, Of(0, 10), 0);
  gate.Join(1, Of(1, 11), 0);
  EXPECT_EQ(gate.Tick(0, 10, 1), Answer::kOk);
  EXPECT_EQ(gate.Tick(0, 10, 2), Answer::kOk);
  EXPECT_TRUE(gate.MayRead(gate.NeededFor(2)));
  EXPECT_EQ(gate.Tick(0, 10, 3), Answer::kOk);
  EXPECT_FALSE(gate.MayRead(gate.NeededFor(3)));
  EXPECT_EQ(gate.slowest(), 1);
  EXPECT_EQ(gate.most(), 3);
  EXPECT_EQ(gate.Tick(1, 11, 1), Answer::kOk);
  EXPECT_TRUE(gate.MayRead(gate.NeededFor(3)));
}

TEST(ClockGate, NobodyWaitsForTheDeadTheClosedOrThoseThatLeft) {
  for (int how = 0; how < 3; ++how) {
    ClockGate gate(0);
    gate.Join(0, Of(0, 10), 0);
    gate.Join(1, Of(1, 11), 0);
    gate.Tick(0, 10, 1);
    EXPECT_FALSE(gate.MayRead(gate.NeededFor(1)));
    if (how == 0) gate.Forget({1, 5});
    if (how == 1) gate.Close({11});
    if (how == 2) {
      EXPECT_TRUE(gate.Leave(1, 11));
    }
    EXPECT_TRUE(gate.MayRead(gate.NeededFor(1)));
    EXPECT_EQ(gate.Tick(1, 11, 1), Answer::kNotHolder);
    EXPECT_EQ(gate.size(), 1u);
  }
}

TEST(ClockGate, OneThatComesBackBeginsAtTheLowestClock) {
  ClockGate gate(1);
  gate.Join(0, Of(0, 10), 0);
  gate.Tick(0, 10, 7);
  gate.Join(1, Of(1, 11), 0);
  EXPECT_EQ(gate.Find(1)->at, 7);
  gate.Forget({0, 1});
  gate.Forget({1, 1});
  EXPECT_EQ(gate.least(), 7);
  EXPECT_EQ(gate.slowest(), -1);
  EXPECT_TRUE(gate.MayRead(gate.NeededFor(100)));
  gate.Join(0, Of(0, 20, 2), 3);
  EXPECT_EQ(gate.Find(0)->at, 7);
  gate.Join(0, Of(0, 20, 2), 9);  // as it is at another server
  EXPECT_EQ(gate.least(), 9);
}

TEST(ClockGate, RefusesTicksBackAndThoseOfOthers) {
  ClockGate gate(0);
  gate.Join(0, Of(0, 10), 0);
  gate.Tick(0, 10, 4);
  EXPECT_EQ(gate.Tick(0, 10, 4), Answer::kOk);  // sent again
  EXPECT_EQ(gate.Tick(0, 10, 3), Answer::kBack);
  EXPECT_EQ(gate.Tick(0, 99, 5), Answer::kNotHolder);
  EXPECT_EQ(gate.Tick(1, 10, 5), Answer::kNotHolder);
  EXPECT_EQ(gate.Tick(0, 10, ClockGate::kMostClock + 1), Answer::kTooFar);
  EXPECT_EQ(gate.Join(0, Of(5, 50), 0), Answer::kNotHolder);
  EXPECT_EQ(gate.CheckPull(0, 10, 4 + ClockGate::kMostAhead), Answer::kOk);
  EXPECT_EQ(gate.CheckPull(0, 10, 5 + ClockGate::kMostAhead), Answer::kTooFar);
  EXPECT_EQ(gate.CheckPull(0, 99, 4), Answer::kNotHolder);
  EXPECT_FALSE(gate.Leave(0, 99));
  EXPECT_EQ(gate.least(), 4);
}

TEST(ClockGate, OpeningOfTheSameWorkerGoesOnAtItsPlace) {
  ClockGate gate(0);
  gate.Join(0, Of(0, 10), 0);
  gate.Tick(0, 10, 4);
  EXPECT_EQ(gate.Join(0, Of(0, 12), 0), Answer::kOk);
  EXPECT_EQ(gate.Find(0)->at, 4);
  EXPECT_EQ(gate.Tick(0, 10, 5), Answer::kNotHolder);
  gate.Close({10});  // of the earlier opening
  EXPECT_EQ(gate.Tick(0, 12, 5), Answer::kOk);
  // An incarnation that is gone takes nothing back from the one that came.
  EXPECT_EQ(gate.Join(0, Of(0, 13, 2), 0), Answer::kOk);
  gate.Forget({0, 1});
  EXPECT_EQ(gate.Find(0)->at, 5);
  EXPECT_EQ(gate.Join(0, Of(0, 14, 1), 0), Answer::kNotHolder);
}

// Workers that step, are slow, die, leave and come back, beside a gate of which
// every answer is known. A step: push, tick, pull, wait.
class Model {
 public:
  struct Worker {
    bool is_in = false;
    bool waits = false;
    int64_t clock = 0;
    uint64_t client = 0;
    uint64_t epoch = 0;
  };
  // A tick that was sent: it may come again, or late.
  struct Sent {
    int rank;
    uint64_t client;
    int64_t clock;
  };

  Model(int workers, int64_t staleness)
      : staleness_(staleness), gate_(staleness), workers_(workers) {}

  const Worker& worker(int rank) const { return workers_[rank]; }
  const std::vector<Sent>& sent() const { return sent_; }
  int64_t least() const { return gate_.least(); }

  void Join(int rank) {
    Worker& w = workers_[rank];
    w = {true, false, 0, ++clients_, w.epoch + 1};
    ASSERT_EQ(gate_.Join(rank, Of(rank, w.client, w.epoch), 0), Answer::kOk);
    w.clock = gate_.Find(rank)->at;
    Check();
  }
  void Step(int rank) {
    Worker& w = workers_[rank];
    ASSERT_EQ(gate_.Tick(rank, w.client, ++w.clock), Answer::kOk);
    sent_.push_back({rank, w.client, w.clock});
    ASSERT_EQ(gate_.CheckPull(rank, w.client, w.clock), Answer::kOk);
    w.waits = true;
    Check();
  }
  void SendAgain(const Sent& sent) {
    const Worker& w = workers_[sent.rank];
    const Answer answer = gate_.Tick(sent.rank, sent.client, sent.clock);
    if (!w.is_in || w.client != sent.client) {
      ASSERT_EQ(answer, Answer::kNotHolder);
    } else {
      ASSERT_EQ(answer, sent.clock < w.clock ? Answer::kBack : Answer::kOk);
    }
    Check();
  }
  // 0: dies; 1: leaves; 2: its client is closed.
  void Go(int rank, int how) {
    Worker& w = workers_[rank];
    w.is_in = false;
    w.waits = false;
    if (how == 0) gate_.Forget({static_cast<uint32_t>(rank), w.epoch});
    if (how == 1) {
      ASSERT_TRUE(gate_.Leave(rank, w.client));
    }
    if (how == 2) gate_.Close({w.client});
    Check();
  }
  std::string Key() const {
    std::string key;
    for (const Worker& w : workers_) {
      absl::StrAppend(&key, w.is_in ? w.clock : -1, w.waits ? "w" : "r",
                      w.epoch, " ");
    }
    return absl::StrCat(key, gate_.least(), " ", sent_.size());
  }

 private:
  // Answers the pulls that may be.
  void Check() {
    std::optional<int64_t> least;
    int64_t most = 0;
    for (const Worker& w : workers_) {
      if (!w.is_in) continue;
      least = std::min(least.value_or(w.clock), w.clock);
      most = std::max(most, w.clock);
    }
    ASSERT_GE(gate_.least(), least_) << "the lowest clock fell";
    least_ = gate_.least();
    if (!least.has_value()) return;
    ASSERT_EQ(gate_.least(), *least);
    ASSERT_EQ(gate_.most(), most);
    ASSERT_LE(most - *least, staleness_ + 1) << "one ran ahead of the bound";
    bool any_runs = false;
    for (Worker& w : workers_) {
      if (!w.is_in) continue;
      if (w.waits) {
        const bool may = gate_.MayRead(gate_.NeededFor(w.clock));
        ASSERT_EQ(may, *least >= w.clock - staleness_);
        w.waits = !may;
      }
      any_runs = any_runs || !w.waits;
    }
    ASSERT_TRUE(any_runs) << "all wait for one another";
  }

  int64_t staleness_;
  ClockGate gate_;
  std::vector<Worker> workers_;
  std::vector<Sent> sent_;
  uint64_t clients_ = 0;
  int64_t least_ = 0;
};

class Exploration {
 public:
  void Run(const Model& model, int workers, int goings) {
    if (::testing::Test::HasFatalFailure()) return;
    if (!seen.insert(absl::StrCat(model.Key(), "/", goings)).second) return;
    for (int rank = 0; rank < workers; ++rank) {
      const Model::Worker& w = model.worker(rank);
      if (!w.is_in) {
        if (w.epoch < 3) {
          Model next = model;
          next.Join(rank);
          Run(next, workers, goings);
        }
        continue;
      }
      if (!w.waits && w.clock < 4) {
        Model next = model;
        next.Step(rank);
        Run(next, workers, goings);
      }
      for (int how = 0; goings > 0 && how < 3; ++how) {
        Model next = model;
        next.Go(rank, how);
        Run(next, workers, goings - 1);
      }
    }
    for (const Model::Sent& sent : model.sent()) {
      Model next = model;
      next.SendAgain(sent);
      ASSERT_EQ(next.Key(), model.Key());
    }
  }
  std::set<std::string> seen;
};

TEST(ClockGateExploration, EveryOrderOfStepsDeathsAndReturnsKeepsTheBound) {
  for (const int64_t staleness : {0, 1, 2}) {
    Exploration all;
    all.Run(Model(3, staleness), 3, /*goings=*/2);
    ASSERT_FALSE(HasFatalFailure()) << "staleness " << staleness;
    EXPECT_GT(all.seen.size(), 3000u);
  }
}

TEST(ClockGateSimulation, TicksThatAreLateAndDoubledAndDeathsKeepTheBound) {
  std::map<std::string, int> events;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    const int workers = 1 + static_cast<int>(random() % 6);
    Model model(workers, random() % 5);
    for (int event = 0; event < 300; ++event) {
      const int rank = static_cast<int>(random() % workers);
      const Model::Worker& w = model.worker(rank);
      if (random() % 8 == 0 && !model.sent().empty()) {
        model.SendAgain(model.sent()[random() % model.sent().size()]);
        ++events["again"];
      } else if (!w.is_in) {
        model.Join(rank);
        ++events["join"];
      } else if (random() % 40 == 0) {
        model.Go(rank, static_cast<int>(random() % 3));
        ++events["go"];
      } else if (!w.waits) {
        model.Step(rank);
        ++events["step"];
      } else {
        ++events["waits"];
      }
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << " event " << event;
    }
  }
  for (const char* kind : {"again", "join", "go", "step", "waits"}) {
    EXPECT_GT(events[kind], 1000) << kind;
  }
}

TEST(ClockGate, RefusalSaysWhoHasTheClockInPrintableWords) {
  ClockGate gate(1);
  gate.Set(0, {{1, 2}, 3, "a\nb"}, 5);
  EXPECT_TRUE(gate.StatusOf(Answer::kOk, "table 't'", 0, 4).ok());
  EXPECT_EQ(gate.StatusOf(Answer::kBack, "table 't'", 0, 4).message(),
            "table 't': clock 4 of rank 0 came after 5: clocks do not go back; "
            "tick once a step, and give each client a rank of its own");
  const std::string held(
      gate.StatusOf(Answer::kNotHolder, "table 't'", 0, 4).message());
  EXPECT_NE(held.find("another opening of the table has it, of a\\nb ("),
            held.npos)
      << held;
  EXPECT_EQ(gate.StatusOf(Answer::kTooFar, "table 't'", 7, 4).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(gate.StatusOf(Answer::kTooFar, "table 't'", 0, 90).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace weft::ps
