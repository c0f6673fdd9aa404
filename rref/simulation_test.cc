// References over simulated agents: sessions, the tables of rref/core and the
// ends of workers together, under a seeded network and virtual time. And the
// scenarios that need lost connections and restarts; their letters are those of
// docs/rref_protocol.md.

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/class.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rref {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

constexpr absl::Duration kMinute = absl::Minutes(1);

std::atomic<int> live{0};
std::atomic<int> made{0};

class Cell {
 public:
  explicit Cell(int64_t value) : value_(value) {
    ++live;
    ++made;
  }
  ~Cell() { --live; }
  int64_t Add(int64_t n) { return value_ += n; }

 private:
  std::atomic<int64_t> value_;
};
WEFT_RPC_CLASS(Cell, int64_t);
WEFT_RPC_METHOD(Cell, Add);

// What one incarnation keeps.
struct Shelf {
  std::vector<RRef<Cell>> cells;
};

int64_t UseCell(const RRef<Cell>& cell) {
  return Call(cell, &Cell::Add, 1).value();
}
WEFT_RPC(UseCell);
void KeepCell(rpc::CallContext& context, const RRef<Cell>& cell) {
  context.Local<Shelf>()->cells.push_back(cell);
}
WEFT_RPC(KeepCell);
int64_t PassCell(rpc::CallContext& context, const RRef<Cell>& cell,
                 const std::string& to) {
  return rpc::Call(context.To(to), UseCell, cell).value();
}
WEFT_RPC(PassCell);
RRef<Cell> GiveCell(rpc::CallContext& context) {
  Shelf* const shelf = context.Local<Shelf>();
  return shelf->cells.empty() ? RRef<Cell>() : shelf->cells.back();
}
WEFT_RPC(GiveCell);
void ForgetCells(rpc::CallContext& context) {
  std::vector<RRef<Cell>> cells;
  cells.swap(context.Local<Shelf>()->cells);
}
WEFT_RPC(ForgetCells);

// Agents, and the References of all their incarnations.
class World {
 public:
  World(uint64_t seed, const rpc::SimulatedAgents::Options& options)
      : workers_(options.workers), agents_(seed, options), random_(seed) {
    agents_.OnStart([this](int, rpc::Agent& agent) {
      references_.push_back(References::Open(agent).value());
      agent.SetLocal(std::make_shared<Shelf>());
    });
  }

  rpc::SimulatedAgents& agents() { return agents_; }
  std::mt19937_64& random() { return random_; }
  int workers() const { return workers_; }

  // Open references of the live workers.
  std::string Open() const {
    std::string open;
    for (const auto& references : references_) {
      if (references->is_closed()) continue;
      const References::Counts c = references->counts();
      if (c.held + c.open_children + c.owned + c.waiting + c.creating == 0) {
        continue;
      }
      absl::StrAppend(&open, references->name(), " ",
                      references->key().ToString(), ": ",
                      absl::StrJoin(references->ExplainLeaks(), "; "), "\n");
    }
    return open;
  }

  // Makes all workers forget, and waits until no references are left.
  absl::Status AwaitEmpty(int by) {
    for (int i = 0; i < 600; ++i) {
      for (int worker = 0; worker < workers_; ++worker) {
        rpc::Call(agents_[by].To(absl::StrCat("w", worker), absl::Seconds(1)),
                  ForgetCells)
            .IgnoreError();
      }
      agents_.Sleep(absl::Milliseconds(100));
      if (Open().empty() && live == 0) return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat(
        "still open after a minute:\n", Open(), live.load(), " objects live"));
  }

 private:
  const int workers_;
  std::vector<std::shared_ptr<References>> references_;
  rpc::SimulatedAgents agents_;
  std::mt19937_64 random_;
};

// ------------------------------------------------------------ random programs

rpc::SimulatedAgents::Options EightWorkers() {
  rpc::SimulatedAgents::Options options;
  options.workers = 8;
  options.faults = rpc::SimulatedAgents::AllFaults(0.01);
  options.give_up_after = absl::Milliseconds(100);  // of a partition, a half
  options.limits.sessions = 3;
  options.default_timeout = absl::Seconds(20);
  return options;
}

struct Totals {
  std::map<std::string, int64_t> steps;
  std::map<std::string, int64_t> ends;
  sim::FaultPlan faults{0, EightWorkers().faults};
  rpc::SessionCoverage transitions;
};

// One of three workers that never crash makes, uses, passes on and drops.
class Program {
 public:
  Program(World& world, int self, Totals& totals)
      : world_(world), self_(self), totals_(totals) {}

  absl::Status Run() {
    for (int i = 0; i < 15; ++i) WEFT_RETURN_IF_ERROR(Step());
    cells_.clear();
    return absl::OkStatus();
  }

 private:
  rpc::Target Somebody() {
    const int to = static_cast<int>(world_.random()() % world_.workers());
    const auto timeout = absl::Milliseconds(20 + world_.random()() % 2000);
    return world_.agents()[self_].To(absl::StrCat("w", to), timeout);
  }
  void Note(const char* step, const absl::Status& status) {
    ++totals_.steps[step];
    ++totals_.ends[absl::StrCat(step, " ",
                                absl::StatusCodeToString(status.code()))];
  }

  absl::Status Step() {
    const uint64_t kind = cells_.empty() ? 0 : world_.random()() % 8;
    if (kind <= 1) return Make();
    const size_t which = world_.random()() % cells_.size();
    const RRef<Cell> cell = cells_[which];
    switch (kind) {
      case 2: {
        const absl::Status used = Call(cell, &Cell::Add, 1).status();
        Note("use", used);
        // Held here since it came: the owner may be gone, the object not.
        if (used.code() == absl::StatusCode::kNotFound) return used;
        break;
      }
      case 3:
        Note("pass", rpc::Call(Somebody(), UseCell, cell).status());
        break;
      case 4:
        Note("keep", rpc::Call(Somebody(), KeepCell, cell));
        break;
      case 5: {
        const std::string on =
            absl::StrCat("w", world_.random()() % world_.workers());
        Note("pass on", rpc::Call(Somebody(), PassCell, cell, on).status());
        break;
      }
      case 6: {
        const auto given = rpc::Call(Somebody(), GiveCell);
        Note("give", given.status());
        if (given.ok() && given->has_value()) cells_.push_back(*given);
        break;
      }
      default: {
        // Passed on and dropped at once.
        Future<int64_t> used = rpc::CallAsync(Somebody(), UseCell, cell);
        cells_.erase(cells_.begin() + which);
        Note("pass and drop", used.Wait(kMinute).status());
        if (world_.random()() % 2 == 0) used.Cancel();
      }
    }
    return absl::OkStatus();
  }

  absl::Status Make() {
    switch (world_.random()() % 4) {
      case 0: {  // shared afterwards
        const auto handle = rpc::Make<Cell>(Somebody(), 10);
        Note("make and share", handle.status());
        if (!handle.ok()) return absl::OkStatus();
        WEFT_ASSIGN_OR_RETURN(RRef<Cell> cell,
                              Share(world_.agents()[self_], *handle));
        cells_.push_back(std::move(cell));
        return absl::OkStatus();
      }
      case 1: {
        auto made = rref::Make<Cell>(Somebody(), 10);
        Note("make", made.status());
        if (made.ok()) cells_.push_back(*std::move(made));
        return absl::OkStatus();
      }
      default:
        return MakeAndUseAtOnce();
    }
  }

  // Used, or passed on, or both, before the creating call has been answered;
  // now and then dropped then, too.
  absl::Status MakeAndUseAtOnce() {
    auto begun = BeginMake<Cell>(Somebody(), 10);
    if (!begun.ok()) {
      Note("begin", begun.status());
      return absl::OkStatus();
    }
    std::vector<Future<int64_t>> uses;
    const uint64_t kind = world_.random()() % 4;
    if (kind != 1) uses.push_back(CallAsync(*begun, &Cell::Add, 1));
    if (kind != 0) uses.push_back(rpc::CallAsync(Somebody(), UseCell, *begun));
    const Future<void> made = begun->Confirmed();
    if (kind < 3) cells_.push_back(*begun);
    begun = absl::CancelledError("dropped");
    for (const Future<int64_t>& use : uses) {
      Note("use at once", use.Wait(kMinute).status());
    }
    const absl::Status status = made.Wait(kMinute);
    Note("begin", status);
    if (!status.ok() && kind < 3) cells_.pop_back();
    return absl::OkStatus();
  }

  World& world_;
  const int self_;
  Totals& totals_;
  std::vector<RRef<Cell>> cells_;
};

std::string RunSeed(uint64_t seed, Totals& totals) {
  constexpr int kMains = 3;
  std::string wrong;
  {
    World world(seed, EightWorkers());
    int running = kMains;
    const auto statuses =
        world.agents().Run(kMains, [&](int main) -> absl::Status {
          const absl::Status ran = Program(world, main, totals).Run();
          --running;
          if (main != 0 || !ran.ok()) return ran;
          while (running > 0) world.agents().Sleep(absl::Milliseconds(10));
          return world.AwaitEmpty(main);
        });
    for (const absl::Status& status : statuses) {
      if (!status.ok()) absl::StrAppend(&wrong, status.ToString(), "\n");
    }
    if (!wrong.empty()) {
      absl::StrAppend(&wrong, world.agents().faults().Replay());
    }
    totals.faults.Absorb(world.agents().faults());
    totals.transitions.Absorb(world.agents().transitions());
  }
  if (live != 0) absl::StrAppend(&wrong, live.load(), " objects are left");
  return wrong;
}

// 300, or what the long test says.
uint64_t Seeds() {
  uint64_t seeds = 300;
  const char* const wanted = std::getenv("WEFT_RREF_SEEDS");
  if (wanted != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(wanted, &seeds));
  }
  return seeds;
}

TEST(SimulatedReferences, EightWorkersLeaveNothingUnderFaultsAndCrashes) {
  Totals totals;
  const uint64_t seeds = Seeds();
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    ASSERT_EQ(RunSeed(seed, totals), "") << "seed " << seed;
  }
  std::cout << totals.faults.Report()
            << totals.transitions.Report(rpc::SessionCoverage::Where::kAgents);
  for (const auto& [end, count] : totals.ends) {
    std::cout << end << ": " << count << "\n";
  }
  EXPECT_THAT(totals.faults.CheckHits(), IsOk());
  for (const char* step :
       {"make", "make and share", "begin", "use at once", "use", "pass", "keep",
        "pass on", "give", "pass and drop"}) {
    EXPECT_GT(totals.ends[absl::StrCat(step, " OK")], 100) << step;
    EXPECT_GT(totals.steps[step] - totals.ends[absl::StrCat(step, " OK")], 0)
        << step << " never failed";
  }
}

// ------------------------------------------------------------ scenarios

rpc::SimulatedAgents::Options Quiet(
    std::vector<sim::FaultPlan::Rule> rules = {}) {
  rpc::SimulatedAgents::Options options;
  options.workers = 4;
  options.faults.rules = std::move(rules);
  return options;
}

// A makes an object at O, lets B use it and C keep it, takes it back from C,
// and drops all.
absl::Status UseEverything(World& world) {
  rpc::SimulatedAgents& agents = world.agents();
  {
    WEFT_ASSIGN_OR_RETURN(RRef<Cell> cell,
                          rref::Make<Cell>(agents[0].To("w1"), 10));
    WEFT_RETURN_IF_ERROR(rpc::Call(agents[0].To("w2"), UseCell, cell).status());
    WEFT_RETURN_IF_ERROR(rpc::Call(agents[0].To("w3"), KeepCell, cell));
    cell = RRef<Cell>();
    WEFT_ASSIGN_OR_RETURN(const RRef<Cell> back,
                          rpc::Call(agents[0].To("w3"), GiveCell));
    WEFT_ASSIGN_OR_RETURN(const int64_t value, Call(back, &Cell::Add, 1));
    if (value != 12) return absl::InternalError(absl::StrCat(value));
  }
  return world.AwaitEmpty(0);
}

// The same of an object that is used and passed on before it is made.
absl::Status UseEverythingAtOnce(World& world) {
  rpc::SimulatedAgents& agents = world.agents();
  {
    WEFT_ASSIGN_OR_RETURN(RRef<Cell> cell,
                          BeginMake<Cell>(agents[0].To("w1"), 10));
    const Future<int64_t> added = CallAsync(cell, &Cell::Add, 1);
    const Future<int64_t> used =
        rpc::CallAsync(agents[0].To("w2"), UseCell, cell);
    const Future<void> kept =
        rpc::CallAsync(agents[0].To("w3"), KeepCell, cell);
    cell = RRef<Cell>();
    WEFT_RETURN_IF_ERROR(added.Wait(kMinute).status());
    WEFT_RETURN_IF_ERROR(used.Wait(kMinute).status());
    WEFT_RETURN_IF_ERROR(kept.Wait(kMinute));
    WEFT_ASSIGN_OR_RETURN(const RRef<Cell> back,
                          rpc::Call(agents[0].To("w3"), GiveCell));
    WEFT_ASSIGN_OR_RETURN(const int64_t value, Call(back, &Cell::Add, 1));
    if (value != 13) return absl::InternalError(absl::StrCat(value));
  }
  return world.AwaitEmpty(0);
}

// Ages are of the clock of the agent, here a simulated one.
TEST(SimulatedAges, HoldersAndWhatIsHeldGrowOldByTheClockOfTheAgents) {
  World world(1, Quiet());
  rpc::SimulatedAgents& agents = world.agents();
  ASSERT_THAT(
      agents.Run(1,
                 [&](int) -> absl::Status {
                   WEFT_ASSIGN_OR_RETURN(
                       RRef<Cell> cell,
                       rref::Make<Cell>(agents[0].To("w1"), 10));
                   agents.Sleep(absl::Seconds(100));
                   const std::string open = world.Open();
                   EXPECT_THAT(open, HasSubstr("is held here for 1m40"));
                   EXPECT_THAT(open, HasSubstr("is held by w0 for 1m40"));
                   cell = RRef<Cell>();
                   return world.AwaitEmpty(0);
                 }),
      Each(IsOk()));
}

struct LostMessage {
  const char* kind;
  std::string function;
  int64_t times;
};

class SimulatedLoss : public ::testing::TestWithParam<LostMessage> {};

// Q, and N, O, P with it: what is sent again comes twice where only its reply
// was lost.
TEST_P(SimulatedLoss, Q_LostMessageChangesNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed,
                Quiet({sim::FaultPlan::Rule::Drop(
                    GetParam().kind, GetParam().function, GetParam().times)}));
    EXPECT_THAT(
        world.agents().Run(1, [&](int) { return UseEverything(world); }),
        Each(IsOk()))
        << world.agents().faults().Replay();
    EXPECT_THAT(world.agents().faults().CheckHits(), IsOk());
  }
  EXPECT_EQ(live, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Messages, SimulatedLoss,
    ::testing::Values(
        LostMessage{"request", rpc::internal::ConstructorName<Cell>(), 2},
        LostMessage{"request", "weft::rref::internal::RegisterFork", 2},
        LostMessage{"request", "weft::rref::internal::DeleteForks", 2},
        LostMessage{"request", rpc::internal::NameOf<&KeepCell>(), 2},
        LostMessage{"request", rpc::internal::NameOf<&GiveCell>(), 1},
        // Among them the one that carries a reference.
        LostMessage{"reply", "", 1}, LostMessage{"reply", "", 5},
        LostMessage{"reply", "", 10}, LostMessage{"ack", "", 5}),
    [](const auto& info) { return absl::StrCat(info.index); });

struct DoubledMessage {
  const char* kind;
  std::string function;
  int64_t times;
};

class SimulatedDuplication : public ::testing::TestWithParam<DoubledMessage> {};

// The creation (N), the registration and the delete (O, P), and the first of
// each kind.
TEST_P(SimulatedDuplication, N_O_P_MessageThatComesTwiceRunsOnce) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    sim::FaultPlan::Rule twice;
    twice.fault = sim::Fault::kDuplication;
    twice.kind = GetParam().kind;
    twice.function = GetParam().function;
    // A connection that brings a message twice is closed, and what was not
    // answered is sent again: not for ever.
    twice.first = GetParam().times;
    World world(seed, Quiet({twice}));
    const int before = made;
    EXPECT_THAT(
        world.agents().Run(1, [&](int) { return UseEverything(world); }),
        Each(IsOk()))
        << world.agents().faults().Replay();
    EXPECT_EQ(made - before, 1);
    EXPECT_THAT(world.agents().faults().CheckHits(), IsOk());
  }
  EXPECT_EQ(live, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Messages, SimulatedDuplication,
    ::testing::Values(
        DoubledMessage{"request", rpc::internal::ConstructorName<Cell>(), 2},
        DoubledMessage{"request", "weft::rref::internal::RegisterFork", 2},
        DoubledMessage{"request", "weft::rref::internal::DeleteForks", 2},
        DoubledMessage{"request", "", 5}, DoubledMessage{"reply", "", 5},
        DoubledMessage{"ack", "", 5}, DoubledMessage{"", "", 10}),
    [](const auto& info) { return absl::StrCat(info.index); });

// The creation comes after a holder of the object has asked for it, so that
// the owner asks its creator; that message, and its reply, are lost too.
TEST(SimulatedReferences, J_RegistrationOvertakesACreationThatIsLost) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(
        seed, Quiet({sim::FaultPlan::Rule::Drop(
                         "request", rpc::internal::ConstructorName<Cell>(), 3),
                     sim::FaultPlan::Rule::Drop(
                         "request", "weft::rref::internal::AskCreator", 1)}));
    EXPECT_THAT(
        world.agents().Run(1, [&](int) { return UseEverythingAtOnce(world); }),
        Each(IsOk()))
        << world.agents().faults().Replay();
    EXPECT_THAT(world.agents().faults().CheckHits(), IsOk());
  }
  EXPECT_EQ(live, 0);
}

TEST(SimulatedReferences, AD_OwnerRestartsUnderItsName) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed, Quiet());
    rpc::SimulatedAgents& agents = world.agents();
    EXPECT_THAT(
        agents.Run(
            1,
            [&](int) -> absl::Status {
              WEFT_ASSIGN_OR_RETURN(RRef<Cell> old,
                                    rref::Make<Cell>(agents[0].To("w1"), 10));
              WEFT_RETURN_IF_ERROR(
                  rpc::Call(agents[0].To("w2"), KeepCell, old));
              agents.CrashAndRestart(1);
              agents.Sleep(absl::Seconds(1));
              EXPECT_THAT(Call(old, &Cell::Add, 1).status(),
                          StatusIs(absl::StatusCode::kUnavailable));
              EXPECT_THAT(rpc::Call(agents[0].To("w2"), UseCell, old).status(),
                          StatusIs(absl::StatusCode::kUnavailable));
              // The next incarnation makes another object.
              WEFT_ASSIGN_OR_RETURN(const RRef<Cell> fresh,
                                    rref::Make<Cell>(agents[0].To("w1"), 20));
              EXPECT_NE(fresh.id(), old.id());
              EXPECT_THAT(Call(fresh, &Cell::Add, 1), IsOkAndHolds(21));
              old = RRef<Cell>();
              return absl::OkStatus();
            }),
        Each(IsOk()))
        << "seed " << seed;
  }
  EXPECT_EQ(live, 0);
}

TEST(SimulatedReferences, AE_HolderRestartsUnderItsName) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed, Quiet());
    rpc::SimulatedAgents& agents = world.agents();
    EXPECT_THAT(
        agents.Run(
            1,
            [&](int) -> absl::Status {
              {
                WEFT_ASSIGN_OR_RETURN(const RRef<Cell> cell,
                                      rref::Make<Cell>(agents[0].To("w1"), 10));
                WEFT_RETURN_IF_ERROR(
                    rpc::Call(agents[0].To("w2"), KeepCell, cell));
                agents.CrashAndRestart(2);
                agents.Sleep(absl::Seconds(1));
                // Its fork has ended with it; the next incarnation begins its
                // own.
                WEFT_RETURN_IF_ERROR(
                    rpc::Call(agents[0].To("w2"), UseCell, cell).status());
                WEFT_RETURN_IF_ERROR(
                    rpc::Call(agents[0].To("w2"), KeepCell, cell));
              }
              WEFT_ASSIGN_OR_RETURN(const RRef<Cell> back,
                                    rpc::Call(agents[0].To("w2"), GiveCell));
              EXPECT_THAT(Call(back, &Cell::Add, 1), IsOkAndHolds(12));
              return absl::OkStatus();
            }),
        Each(IsOk()))
        << "seed " << seed;
  }
  EXPECT_EQ(live, 0);
}

TEST(SimulatedReferences, AF_PartitionThatHealsChangesNothing) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed, Quiet());
    rpc::SimulatedAgents& agents = world.agents();
    EXPECT_THAT(
        agents.Run(1,
                   [&](int) -> absl::Status {
                     {
                       WEFT_ASSIGN_OR_RETURN(
                           const RRef<Cell> cell,
                           rref::Make<Cell>(agents[0].To("w1"), 10));
                       agents.Cut(1, 2);
                       Future<int64_t> used =
                           rpc::CallAsync(agents[0].To("w2"), UseCell, cell);
                       agents.Sleep(absl::Seconds(2));
                       EXPECT_FALSE(used.IsReady());
                       agents.Heal(1, 2);
                       EXPECT_THAT(used.Wait(kMinute), IsOkAndHolds(11));
                     }
                     return world.AwaitEmpty(0);
                   }),
        Each(IsOk()))
        << "seed " << seed;
  }
  EXPECT_EQ(live, 0);
}

TEST(SimulatedReferences, AG_PartitionBeyondTheLeaseEndsTheHoldersReferences) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    World world(seed, Quiet());
    rpc::SimulatedAgents& agents = world.agents();
    EXPECT_THAT(
        agents.Run(1,
                   [&](int) -> absl::Status {
                     WEFT_ASSIGN_OR_RETURN(
                         RRef<Cell> cell,
                         rref::Make<Cell>(agents[0].To("w1"), 10));
                     WEFT_RETURN_IF_ERROR(
                         rpc::Call(agents[0].To("w2"), KeepCell, cell));
                     cell = RRef<Cell>();
                     agents.Cut(1, 2);
                     agents.Sleep(absl::Seconds(1));
                     EXPECT_EQ(live, 1);
                     // Membership decides against w2, and w2 learns that it is
                     // out.
                     for (const int worker : {0, 1, 3}) {
                       agents[worker].PeerGone(agents[2].key(), "silent");
                     }
                     agents[2].OutOfJob(absl::AbortedError("out of the job"));
                     agents.Sleep(absl::Seconds(1));
                     EXPECT_EQ(live, 0);
                     return absl::OkStatus();
                   }),
        Each(IsOk()))
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::rref
