#include "weft/ps/core/replication/partition_clocks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/ps/core/sequence_window.h"
#include "weft/sim/random.h"

namespace weft::ps {
namespace {

using Answer = PartitionClocks::Answer;

PartitionClocks::Holder Of(uint32_t worker, ClientId client,
                           uint64_t epoch = 1) {
  return {{worker, epoch}, client, ""};
}

TEST(PartitionClocks, TickCountsOnceAllPushesBeforeItAreApplied) {
  PartitionClocks clocks(0);
  clocks.Join(0, Of(0, 10), 0);
  // Of pushes 1 and 3, and ticks 2 and 4, push 1 comes last.
  clocks.Tick(0, 10, 2, /*n=*/4);
  clocks.Applied(10, /*through=*/0);
  clocks.Tick(0, 10, 1, /*n=*/2);
  clocks.Applied(10, 0);
  EXPECT_EQ(clocks.gate().Find(0)->at, 0);
  EXPECT_TRUE(clocks.MayRead(0));
  EXPECT_FALSE(clocks.MayRead(1));
  clocks.Applied(10, 2);
  EXPECT_EQ(clocks.gate().Find(0)->at, 1);
  clocks.Applied(10, 4);
  EXPECT_EQ(clocks.gate().Find(0)->at, 2);
  EXPECT_TRUE(clocks.MayRead(2));
}

TEST(PartitionClocks, LeaveCountsOnceAllPushesBeforeItAreApplied) {
  PartitionClocks clocks(0);
  clocks.Join(0, Of(0, 10), 0);
  clocks.Join(1, Of(1, 11), 5);
  clocks.Leave(0, 10, /*n=*/2);
  clocks.Applied(10, 0);
  EXPECT_FALSE(clocks.MayRead(5));
  clocks.Applied(10, 2);
  EXPECT_EQ(clocks.gate().Find(0), nullptr);
  EXPECT_TRUE(clocks.MayRead(5));
}

TEST(PartitionClocks, JoinBeginsWhereThePrimarySaysAlsoAtABackupThatIsAhead) {
  PartitionClocks primary(0), backup(0);
  for (PartitionClocks* copy : {&primary, &backup}) {
    copy->Join(0, Of(0, 10), 3);
    copy->Join(1, Of(1, 11), 7);
  }
  // The backup has heard of a death, the primary has not.
  backup.CloseIf([](ClientId client) { return client == 10; });
  EXPECT_EQ(backup.gate().least(), 7);
  int64_t begins = 0;
  ASSERT_EQ(primary.CheckJoin(2, Of(2, 12), 0, begins), Answer::kOk);
  EXPECT_EQ(begins, 3);
  for (PartitionClocks* copy : {&primary, &backup}) {
    copy->Join(2, Of(2, 12), begins);
    EXPECT_EQ(copy->gate().Find(2)->at, 3);
    EXPECT_FALSE(copy->MayRead(7));  // of its steps 3 to 6 nothing is there
  }
  // What joins at the backup once that is promoted begins at what was lowest.
  PartitionClocks filled(0);
  filled.Load(backup.Save());
  for (const PartitionClocks* copy : {&backup, &filled}) {
    ASSERT_EQ(copy->CheckJoin(4, Of(4, 14), 0, begins), Answer::kOk);
    EXPECT_EQ(begins, 7);
  }
}

TEST(PartitionClocks, OpeningOfTheSameWorkerTakesTheClockAndNotItsTicks) {
  PartitionClocks clocks(0);
  clocks.Join(0, Of(0, 10), 4);
  clocks.Tick(0, 10, 6, /*n=*/9);
  int64_t begins = 0;
  EXPECT_EQ(clocks.CheckJoin(0, Of(3, 30), 0, begins), Answer::kNotHolder);
  ASSERT_EQ(clocks.CheckJoin(0, Of(0, 20), 0, begins), Answer::kOk);
  EXPECT_EQ(begins, 4);
  clocks.Join(0, Of(0, 20), begins);
  clocks.Applied(10, 9);
  EXPECT_EQ(clocks.gate().Find(0)->at, 4);
  EXPECT_EQ(clocks.CheckTick(0, 10, 7), Answer::kNotHolder);
  EXPECT_EQ(clocks.CheckTick(0, 20, 3), Answer::kBack);
  EXPECT_EQ(clocks.CheckTick(0, 20, ClockGate::kMostClock + 1),
            Answer::kTooFar);
  EXPECT_EQ(clocks.CheckTick(0, 20, 5), Answer::kOk);
}

TEST(PartitionClocks, NothingOfAClosedClientComesBack) {
  PartitionClocks clocks(0);
  clocks.Join(0, Of(0, 10), 0);
  clocks.Join(1, Of(1, 11), 5);
  clocks.Tick(0, 10, 1, /*n=*/3);
  clocks.CloseIf([](ClientId client) { return client == 10; });
  clocks.Tick(0, 10, 2, /*n=*/4);
  clocks.Applied(10, 4);
  EXPECT_EQ(clocks.gate().size(), 1u);
  EXPECT_TRUE(clocks.MayRead(5));
  EXPECT_EQ(clocks.Save().ranks.size(), 1u);
}

TEST(PartitionClocks, CopyGoesOnAsTheOriginal) {
  PartitionClocks clocks(1);
  clocks.Join(0, Of(0, 10), 2);
  clocks.Join(3, Of(3, 13), 6);
  clocks.Tick(0, 10, 4, /*n=*/7);
  clocks.Leave(3, 13, /*n=*/2);
  PartitionClocks copy(1);
  copy.Join(5, Of(5, 15), 0);  // goes with what was there
  EXPECT_EQ(PartitionClocks::FaultOf(clocks.Save()), "");
  copy.Load(clocks.Save());
  EXPECT_EQ(copy.Snapshot(), clocks.Snapshot());
  for (PartitionClocks* one : {&clocks, &copy}) {
    one->Applied(10, 7);
    one->Applied(13, 2);
  }
  EXPECT_EQ(copy.Snapshot(), clocks.Snapshot());
  EXPECT_EQ(copy.gate().least(), 4);
  EXPECT_EQ(copy.gate().size(), 1u);
}

TEST(PartitionClocks, StateThatNoCopyHasIsRefused) {
  PartitionClocks clocks(1);
  clocks.Join(0, Of(0, 10), 2);
  clocks.Join(3, Of(3, 13), 6);
  const auto fault = [&](auto change) {
    PartitionClocks::State state = clocks.Save();
    change(state);
    return PartitionClocks::FaultOf(state);
  };
  using State = PartitionClocks::State;
  EXPECT_EQ(fault([](State&) {}), "");
  EXPECT_NE(fault([](State& s) { s.floor = -1; }), "");
  EXPECT_NE(fault([](State& s) { s.ranks[0].rank = 3; }), "");
  EXPECT_NE(fault([](State& s) { s.ranks[0].rank = -1; }), "");
  EXPECT_NE(fault([](State& s) { s.ranks[1].clock.at = -1; }), "");
  EXPECT_NE(fault([](State& s) { s.ranks[1].waiting.resize(65); }), "");
  EXPECT_NE(fault([](State& s) {
              s.ranks[1].waiting = {{1, 3, ClockGate::kMostClock + 1, false}};
            }),
            "");
  EXPECT_NE(
      fault([](State& s) { s.ranks[0].clock.holder.name.assign(257, 'x'); }),
      "");
}

// An entry of the log of a partition: a push, or of another kind.
struct Entry {
  enum Kind { kJoin, kPush, kTick, kLeave };
  Kind kind = kPush;
  int rank = 0;
  ClientId client = 0;
  uint64_t epoch = 1;  // of its worker, whose number is the rank
  uint64_t n = 0;
  int64_t clock = 0;  // of kPush: its step
};

// What one server has of the partition.
struct Copy {
  explicit Copy(int64_t staleness) : clocks(staleness) {}

  bool Has(const Entry& entry) const {
    const auto window = marks.find(entry.client);
    return window != marks.end() &&
           window->second.Ask(entry.n) == SequenceWindow::Answer::kDuplicate;
  }
  void Apply(const Entry& entry) {
    marks[entry.client].Mark(entry.n);
    if (entry.kind == Entry::kPush) {
      pushes[entry.client].insert(entry.n);
    } else if (entry.kind == Entry::kTick) {
      clocks.Tick(entry.rank, entry.client, entry.clock, entry.n);
    } else if (entry.kind == Entry::kLeave) {
      clocks.Leave(entry.rank, entry.client, entry.n);
    } else if (closed.count(entry.client) == 0) {
      clocks.Join(
          entry.rank,
          Of(static_cast<uint32_t>(entry.rank), entry.client, entry.epoch),
          entry.clock);
    }
    clocks.Applied(entry.client, marks[entry.client].through());
  }
  void Close(ClientId client) {
    closed.insert(client);
    clocks.CloseIf([&](ClientId each) { return each == client; });
  }

  PartitionClocks clocks;
  std::map<ClientId, SequenceWindow> marks;
  std::map<ClientId, std::set<uint64_t>> pushes;
  std::set<ClientId> closed;
};

// Client 10 makes: push of step 0, tick to 1, push of step 1, tick to 2, push
// of step 2, leave; they are applied in every order.
TEST(PartitionClocksExploration, EveryOrderOfPushesTicksAndALeave) {
  std::vector<Entry> entries = {
      {Entry::kPush, 0, 10, 1, 2, 0}, {Entry::kTick, 0, 10, 1, 3, 1},
      {Entry::kPush, 0, 10, 1, 4, 1}, {Entry::kTick, 0, 10, 1, 5, 2},
      {Entry::kPush, 0, 10, 1, 6, 2}, {Entry::kLeave, 0, 10, 1, 7, 0}};
  const std::vector<Entry> made = entries;
  const auto before = [](const Entry& a, const Entry& b) { return a.n < b.n; };
  int orders = 0;
  do {
    Copy copy(0);
    copy.Apply({Entry::kJoin, 0, 10, 1, 1, 0});
    copy.clocks.Join(1, Of(1, 11), 9);
    for (size_t i = 0; i < entries.size(); ++i) {
      copy.Apply(entries[i]);
      for (int64_t clock = 0; clock < 4; ++clock) {
        // Whether each step before it is there, with all before its tick.
        bool is_there = true;
        for (const Entry& entry : made) {
          const bool is_of_it =
              entry.kind == Entry::kPush
                  ? entry.clock < clock
                  : entry.kind == Entry::kTick && entry.clock <= clock;
          is_there = is_there && (!is_of_it || copy.Has(entry));
        }
        is_there = is_there && clock <= 2;
        const bool has_left =
            std::all_of(made.begin(), made.end(),
                        [&](const Entry& e) { return copy.Has(e); });
        ASSERT_EQ(copy.clocks.MayRead(clock), is_there || has_left)
            << "clock " << clock << " after " << i + 1 << " of order "
            << orders;
      }
      // A copy that is taken here comes to the same.
      Copy other = copy;
      other.clocks = PartitionClocks(0);
      other.clocks.Load(copy.clocks.Save());
      Copy first = copy;
      for (size_t j = i + 1; j < entries.size(); ++j) {
        first.Apply(entries[j]);
        other.Apply(entries[j]);
        ASSERT_EQ(first.clocks.Snapshot(), other.clocks.Snapshot());
      }
    }
    ++orders;
  } while (std::next_permutation(entries.begin(), entries.end(), before));
  EXPECT_EQ(orders, 720);
}

// Workers that step, die, leave and come back, a primary and a backup that is
// behind it, is filled anew, and is promoted with what it has. Each of the two
// hears of deaths at a time of its own.
class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed),
        staleness_(random_.Below(4)),
        primary_(staleness_),
        backup_(staleness_),
        workers_(1 + static_cast<size_t>(random_.Below(4))) {}

  void Run() {
    for (int i = 0; i < 400 && !::testing::Test::HasFatalFailure(); ++i) {
      One();
      Check();
    }
    Settle();
  }
  std::map<std::string, int> events;

 private:
  struct Worker {
    bool is_here = false;
    bool is_joined = false;
    uint64_t epoch = 0;
    ClientId client = 0;
    int64_t clock = 0;
    uint64_t last = 0;           // number
    std::vector<Entry> entries;  // that it has made
  };

  void One() {
    const int rank = static_cast<int>(random_.Below(workers_.size()));
    Worker& worker = workers_[rank];
    switch (random_.Below(12)) {
      case 0:
        return TakeEntries(1 + random_.Below(6));
      case 1:
        if (random_.Chance(0.2)) Fill();
        return;
      case 2:
        if (random_.Chance(0.2)) Promote();
        return;
      case 3:
        if (worker.is_here && random_.Chance(0.15)) Die(worker);
        return;
      case 4:
        if (!dead_.empty()) Hear();
        return;
      default:
        break;
    }
    if (!worker.is_here) return Come(rank);
    if (!unsent_.empty() && random_.Chance(0.5)) return Deliver();
    if (!worker.is_joined || worker.last > 40 + Oldest(worker)) return;
    if (random_.Chance(0.5)) {
      Make(rank, Entry::kPush, worker.clock);
    } else if (primary_.clocks.MayRead(worker.clock) && random_.Chance(0.5)) {
      Make(rank, Entry::kTick, ++worker.clock);
    } else if (random_.Chance(0.02)) {
      Make(rank, Entry::kLeave, 0);
      worker.is_joined = false;
      ++events["leave"];
    }
  }

  // The lowest number that may not be at both.
  uint64_t Oldest(const Worker& worker) {
    const auto marks = backup_.marks.find(worker.client);
    return marks == backup_.marks.end() ? 0 : marks->second.through();
  }
  void Make(int rank, Entry::Kind kind, int64_t clock) {
    Worker& worker = workers_[rank];
    worker.entries.push_back(
        {kind, rank, worker.client, worker.epoch, ++worker.last, clock});
    unsent_.push_back(worker.entries.back());
  }
  void Come(int rank) {
    Worker& worker = workers_[rank];
    // One that has left opens the table again; the one before is closed.
    worker = {true, false, worker.epoch + 1, ++clients_, 0, 0, {}};
    Make(rank, Entry::kJoin, 0);
    ++events["join"];
  }
  void Die(Worker& worker) {
    worker.is_here = worker.is_joined = false;
    dead_.push_back({worker.client, 3});
    unsent_.erase(std::remove_if(unsent_.begin(), unsent_.end(),
                                 [&](const Entry& entry) {
                                   return entry.client == worker.client;
                                 }),
                  unsent_.end());
    ++events["death"];
  }
  // One of the two copies hears of a death.
  void Hear() {
    auto& [client, left] = dead_[random_.Below(dead_.size())];
    const int who = random_.Chance(0.5) ? 1 : 2;
    if ((left & who) == 0) return;
    (who == 1 ? primary_ : backup_).Close(client);
    left &= ~who;
  }
  void Deliver() {
    const size_t at = random_.Below(unsent_.size());
    Entry entry = unsent_[at];
    unsent_.erase(unsent_.begin() + static_cast<ptrdiff_t>(at));
    if (primary_.Has(entry)) return Answered(entry);
    if (entry.kind == Entry::kJoin) {
      const Answer answer = primary_.clocks.CheckJoin(
          entry.rank,
          Of(static_cast<uint32_t>(entry.rank), entry.client, entry.epoch), 0,
          entry.clock);
      ASSERT_EQ(answer, Answer::kOk);
    } else if (entry.kind == Entry::kTick) {
      ASSERT_EQ(
          primary_.clocks.CheckTick(entry.rank, entry.client, entry.clock),
          Answer::kOk);
    }
    primary_.Apply(entry);
    log_.push_back(entry);
    Answered(entry);
  }
  // A join is answered once it is stable.
  void Answered(const Entry& entry) {
    if (entry.kind != Entry::kJoin) return;
    TakeEntries(log_.size());
    Worker& worker = workers_[entry.rank];
    if (worker.client != entry.client || !worker.is_here || worker.is_joined ||
        worker.last > 1) {
      return;
    }
    worker.clock = primary_.clocks.gate().Find(entry.rank)->at;
    worker.is_joined = true;
  }
  void TakeEntries(uint64_t most) {
    for (; most > 0 && taken_ < log_.size(); --most) {
      backup_.Apply(log_[taken_++]);
    }
  }
  void Fill() {
    const std::set<ClientId> closed = backup_.closed;
    backup_ = primary_;
    backup_.closed = closed;
    backup_.clocks = PartitionClocks(staleness_);
    ASSERT_EQ(PartitionClocks::FaultOf(primary_.clocks.Save()), "");
    backup_.clocks.Load(primary_.clocks.Save());
    taken_ = log_.size();
    // The copy came with who has the table open: those that only the backup
    // knows to be dead are dropped again.
    for (ClientId client : closed) backup_.Close(client);
    ++events["fill"];
  }
  void Promote() {
    log_.resize(taken_);
    for (auto& [client, left] : dead_) left = (left & 1) << 1 | left >> 1;
    std::swap(primary_, backup_);
    least_ = primary_.clocks.gate().least();
    backup_ = primary_;
    for (const auto& [client, left] : dead_) {
      if ((left & 2) == 0) backup_.Close(client);
    }
    // All that is not there is sent again, in any order.
    unsent_.clear();
    for (const Worker& worker : workers_) {
      for (const Entry& entry : worker.entries) {
        const bool is_sent = worker.is_here && !primary_.Has(entry);
        if (is_sent) unsent_.push_back(entry);
      }
    }
    ++events["promotion"];
  }

  void Check() {
    const ClockGate& gate = primary_.clocks.gate();
    if (gate.size() > 0) {
      ASSERT_GE(gate.least(), least_) << "the lowest clock fell";
      least_ = gate.least();
    }
    for (const Worker& reader : workers_) {
      if (!reader.is_joined) continue;
      if (!primary_.clocks.MayRead(reader.clock)) {
        ++events["waits"];
        continue;
      }
      for (const Worker& other : workers_) {
        if (!other.is_here) continue;
        for (const Entry& entry : other.entries) {
          if (entry.kind != Entry::kPush ||
              entry.clock >= reader.clock - staleness_) {
            continue;
          }
          ASSERT_EQ(primary_.pushes[other.client].count(entry.n), 1u)
              << "a read at " << reader.clock << " lacks a push of step "
              << entry.clock;
        }
      }
    }
    // With the same entries and the same deaths both have the same clocks.
    Copy primary = primary_, backup = backup_;
    for (size_t i = taken_; i < log_.size(); ++i) backup.Apply(log_[i]);
    for (const auto& [client, left] : dead_) {
      primary.Close(client);
      backup.Close(client);
    }
    PartitionClocks::State a = primary.clocks.Save();
    PartitionClocks::State b = backup.clocks.Save();
    a.floor = b.floor = 0;
    PartitionClocks left(0), right(0);
    left.Load(a);
    right.Load(b);
    ASSERT_EQ(left.Snapshot(), right.Snapshot());
  }

  // All that is alive is delivered, and all deaths are heard of: everyone who
  // comes to the highest clock may read there.
  void Settle() {
    if (::testing::Test::HasFatalFailure()) return;
    while (!unsent_.empty()) Deliver();
    for (const auto& [client, left] : dead_) primary_.Close(client);
    int64_t most = 0;
    for (const Worker& w : workers_) most = std::max(most, w.clock);
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (!workers_[rank].is_joined) continue;
      Make(static_cast<int>(rank), Entry::kTick, most);
    }
    while (!unsent_.empty()) Deliver();
    ASSERT_TRUE(primary_.clocks.MayRead(most));
  }

  sim::Random random_;
  int64_t staleness_;
  Copy primary_, backup_;
  std::vector<Worker> workers_;
  std::vector<Entry> unsent_;
  std::vector<Entry> log_;
  size_t taken_ = 0;                            // by the backup
  std::vector<std::pair<ClientId, int>> dead_;  // who has to hear of it
  ClientId clients_ = 0;
  int64_t least_ = 0;
};

TEST(PartitionClocksSimulation, BoundHoldsThroughDeathsFillsAndPromotions) {
  std::map<std::string, int> events;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    Simulation simulation(seed);
    simulation.Run();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    for (const auto& [kind, count] : simulation.events) events[kind] += count;
  }
  for (const char* kind :
       {"join", "leave", "death", "fill", "promotion", "waits"}) {
    EXPECT_GT(events[kind], 1000) << kind;
  }
}

}  // namespace
}  // namespace weft::ps
