// Random programs over simulated agents: contexts, passes, references, sessions
// and the ends of workers together, under a seeded network and virtual time.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/random_program.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/rref/references.h"
#include "weft/sim/fault_plan.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using ::testing::Each;
using ::weft::testing::IsOk;

constexpr int kWorkers = 5;

// Agents with references and contexts, and the leaves of all incarnations.
class World {
 public:
  World(uint64_t seed, const rpc::SimulatedAgents::Options& options)
      : seed_(static_cast<uint32_t>(seed)),
        agents_(seed, options),
        random_(seed_),
        nodes_(options.workers) {
    agents_.OnStart([this](int worker, rpc::Agent& agent) {
      Node& node = nodes_[worker];
      node.key = agent.key();
      references_.push_back(rref::References::Open(agent).value());
      ContextsOptions contexts;
      contexts.executor = &agents_.executor();
      node.contexts = Contexts::Open(agent, contexts).value();
      all_.push_back({agent.key(), node.contexts});
      node.model = MakeRandomModels(seed_, kWorkers)[worker];
      agent.SetLocal(node.model);
      names_.push_back(absl::StrCat("w", worker));
    });
    for (int i = 0; i < options.workers; ++i) {
      names_.push_back(absl::StrCat("w", i));
    }
  }

  struct Node {
    rpc::WorkerKey key;
    std::shared_ptr<Contexts> contexts;
    std::shared_ptr<RandomModel> model;
  };

  rpc::SimulatedAgents& agents() { return agents_; }
  std::mt19937& random() { return random_; }
  uint32_t seed() const { return seed_; }
  const std::vector<std::string>& names() const { return names_; }
  // The incarnations of now.
  const std::vector<Node>& nodes() const { return nodes_; }

  // What a context holds for a leaf at an incarnation.
  static weft::Gradient GradientAt(const Node& node, ContextId id, int leaf) {
    const auto context = node.contexts->Find(id);
    if (!context.ok()) return weft::Gradient();
    const Variable& variable = node.model->leaves[leaf];
    return (*context)->GradientOf(*variable.edge().node->leaf());
  }

  // What is open at the incarnations of now, and at dead ones.
  std::string Open() const {
    std::string open;
    for (const auto& [key, contexts] : all_) {
      const Contexts::Counts counts = contexts->counts();
      if (counts.contexts + counts.passes == 0) continue;
      absl::StrAppend(&open, key.ToString(), ": ", counts.contexts,
                      " contexts, ", counts.passes, " passes\n");
    }
    return open;
  }
  absl::Status AwaitEmpty() {
    for (int i = 0; i < 600 && !Open().empty(); ++i) {
      agents_.Sleep(absl::Milliseconds(100));
    }
    if (Open().empty()) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("still open after a minute:\n", Open()));
  }

 private:
  const uint32_t seed_;
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::pair<rpc::WorkerKey, std::shared_ptr<Contexts>>> all_;
  std::vector<std::string> names_;
  rpc::SimulatedAgents agents_;
  std::mt19937 random_;
  std::vector<Node> nodes_;
};

rpc::SimulatedAgents::Options FiveWorkers(double rate) {
  rpc::SimulatedAgents::Options options;
  options.workers = kWorkers;
  options.faults = rpc::SimulatedAgents::AllFaults(rate);
  options.give_up_after = absl::Milliseconds(100);  // of a partition, a half
  options.default_timeout = absl::Seconds(20);
  return options;
}

// x * leaf 0 of the worker, and x * leaf 1.
Values MultiplyByLeaf(rpc::CallContext& call, const Variable& x) {
  const Values& leaves = call.agent().Local<RandomModel>()->leaves;
  return {Mul(x, leaves[0]), Mul(x, leaves[1])};
}
WEFT_RPC(MultiplyByLeaf);

struct Totals {
  int64_t programs = 0;
  int64_t unused = 0;
  int64_t nested = 0;
  std::map<std::string, int64_t> ends;
  sim::FaultPlan faults{0, FiveWorkers(0.01).faults};
};

// One worker's program: a forward and a backward, again until one has ended
// well, or a few have not.
class Main {
 public:
  Main(World& world, Totals& totals, int attempts)
      : world_(world), totals_(totals), attempts_(attempts) {}

  absl::Status Run() {
    program_ = RandomProgram::Make(
        world_.random(), 1 + static_cast<int>(world_.seed() % kWorkers));
    expected_ = MakeRandomModels(world_.seed(), kWorkers);
    const Values local = program_.RunInOneProcess(expected_);
    roots_ = program_.PickRoots(local);
    WEFT_RETURN_IF_ERROR(BackwardInOneProcess(local, roots_));
    ++totals_.programs;
    totals_.unused += program_.HasUnusedResult(roots_);
    totals_.nested += program_.has_nested_call;
    for (int attempt = 0; attempt < attempts_; ++attempt) {
      WEFT_ASSIGN_OR_RETURN(const bool is_done, Attempt());
      if (is_done) break;
    }
    return world_.AwaitEmpty();
  }

 private:
  // Whether the pass was committed.
  absl::StatusOr<bool> Attempt() {
    before_ = world_.nodes();
    const Scope scope(*before_[0].contexts);
    const absl::StatusOr<Values> values =
        program_.RunOverWorkers(world_.names(), world_.agents()[0], scope);
    Note("forward", values.status());
    if (!values.ok()) return false;
    for (int pass = 0; pass < 3; ++pass) {
      PassOptions options;
      options.seeds = RandomProgramSeeds(roots_.size());
      options.timeout = absl::Seconds(20);
      options.deterministic = world_.seed() % 2 == 0;
      const Future<PassReport> ending =
          scope.BackwardAsync(Select(*values, roots_), options);
      if (world_.seed() % 2 == 1 && pass == 0) CrashSomebody();
      const Result<PassReport> report = ending.Wait(absl::Minutes(5));
      Note("backward", report.status());
      WEFT_RETURN_IF_ERROR(AwaitNoPasses());
      WEFT_RETURN_IF_ERROR(Check(scope.id(), report));
      if (report.ok()) return true;
    }
    return false;
  }

  // In the middle of the pass, which takes some milliseconds.
  void CrashSomebody() {
    world_.agents().Sleep(absl::Microseconds(world_.random()() % 4000));
    world_.agents().CrashAndRestart(
        1 + static_cast<int>(world_.random()() % (kWorkers - 1)));
  }

  // All gradients or none, at the workers that were there all the time.
  absl::Status Check(ContextId id, const Result<PassReport>& report) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      const World::Node& node = before_[worker];
      if (node.key != world_.nodes()[worker].key) continue;
      for (int leaf = 0; leaf < RandomModel::kLeaves; ++leaf) {
        const std::string found =
            ShowGradient(World::GradientAt(node, id, leaf));
        const std::string wanted =
            report.ok()
                ? ShowGradient(expected_[worker]->leaves[leaf].gradient())
                : "-";
        if (report.ok() && found != wanted) {
          WEFT_RETURN_IF_ERROR(CheckLost(worker, *report));
          continue;
        }
        if (found != wanted) {
          return absl::InternalError(absl::StrCat(
              "leaf ", leaf, " of w", worker, " has ", found, ", not ", wanted,
              ", after ", report.status().ToString()));
        }
      }
    }
    return absl::OkStatus();
  }

  // Only a worker that dies may miss a commit, or lose it again; it is away for
  // a while.
  absl::Status CheckLost(int worker, const PassReport& report) {
    world_.agents().Sleep(absl::Seconds(1));
    const rpc::WorkerKey key = before_[worker].key;
    if (key != world_.nodes()[worker].key) return absl::OkStatus();
    const bool is_lost =
        std::count(report.lost.begin(), report.lost.end(), key.ToString()) > 0;
    return absl::InternalError(absl::StrCat(
        "w", worker, " lives and has not committed, ",
        is_lost ? "and was reported lost" : "and was not reported lost"));
  }

  // A pass ends at all participants, not only at its root.
  absl::Status AwaitNoPasses() {
    for (int i = 0; i < 600; ++i) {
      int64_t open = 0;
      for (const World::Node& node : world_.nodes()) {
        open += node.contexts->counts().passes;
      }
      if (open == 0) return absl::OkStatus();
      world_.agents().Sleep(absl::Milliseconds(100));
    }
    return absl::InternalError("a pass is open a minute after its end");
  }

  void Note(const char* step, const absl::Status& status) {
    ++totals_.ends[absl::StrCat(step, " ",
                                absl::StatusCodeToString(status.code()))];
  }

  World& world_;
  Totals& totals_;
  const int attempts_;
  RandomProgram program_;
  RandomModels expected_;
  std::vector<size_t> roots_;
  std::vector<World::Node> before_;
};

double& RateOf(sim::Fault fault, rpc::SimulatedAgents::Options* options) {
  return options->faults.rate[static_cast<size_t>(fault)];
}

// Odd seeds crash a worker in the middle of a pass and have more
// partitions; the others crash some at any time.
std::string RunSeed(uint64_t seed, Totals& totals) {
  rpc::SimulatedAgents::Options options = FiveWorkers(0.01);
  if (seed % 2 == 1) {
    RateOf(sim::Fault::kCrash, &options) = 0;
    RateOf(sim::Fault::kTwoWayPartition, &options) = 0.2;
    options.chaos_every = absl::Milliseconds(5);
  }
  World world(seed, options);
  const auto statuses = world.agents().Run(
      1, [&](int) { return Main(world, totals, /*attempts=*/4).Run(); });
  std::string wrong;
  for (const absl::Status& status : statuses) {
    if (!status.ok()) absl::StrAppend(&wrong, status.ToString(), "\n");
  }
  if (!wrong.empty()) absl::StrAppend(&wrong, world.agents().faults().Replay());
  totals.faults.Absorb(world.agents().faults());
  return wrong;
}

// 1,000, or what the long test says.
uint64_t Seeds() {
  uint64_t seeds = 1000;
  const char* const wanted = std::getenv("WEFT_PASS_SEEDS");
  if (wanted != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(wanted, &seeds));
  }
  return seeds;
}

TEST(SimulatedPasses, RandomProgramsUnderFaultsAndCrashesGiveAllOrNothing) {
  Totals totals;
  const uint64_t seeds = Seeds();
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    ASSERT_EQ(RunSeed(seed, totals), "") << "seed " << seed;
  }
  std::cout << totals.faults.Report();
  for (const auto& [end, count] : totals.ends) {
    std::cout << end << ": " << count << "\n";
  }
  std::cout << totals.programs
            << " programs: " << totals.unused * 100 / totals.programs
            << "% with an unused result, "
            << totals.nested * 100 / totals.programs << "% with nested calls\n";
  EXPECT_THAT(totals.faults.CheckHits(), IsOk());
  EXPECT_GE(totals.unused * 100, 30 * totals.programs);
  EXPECT_GE(totals.nested * 100, 30 * totals.programs);
  EXPECT_GT(totals.ends["backward OK"], totals.programs / 2);
  EXPECT_GT(totals.ends["backward UNAVAILABLE"], 0);
  EXPECT_GT(totals.ends["backward FAILED_PRECONDITION"], 0);
}

// ------------------------------------------------------------ the root dies

// A pass that begins at a worker that did not open the context.
absl::Status PassElsewhere(rpc::CallContext& call,
                           const std::vector<std::string>& names,
                           const Variable& x) {
  WEFT_ASSIGN_OR_RETURN(const Scope scope, Scope::Within(call));
  std::vector<Variable> roots;
  for (const std::string& name : names) {
    WEFT_ASSIGN_OR_RETURN(const Values out,
                          scope.Call(call.To(name), MultiplyByLeaf, x));
    roots.push_back(out[0]);
  }
  PassOptions options;
  options.seeds = RandomProgramSeeds(roots.size());
  return scope.BackwardAsync(roots, options).Wait(absl::Minutes(5)).status();
}
WEFT_RPC(PassElsewhere);

// Whether the survivors have gradients. Counts in `in_the_middle` a pass that
// was committed and had not ended when its root crashed.
absl::StatusOr<bool> CrashTheRoot(World& world, absl::Duration after,
                                  int* in_the_middle) {
  const std::vector<World::Node> nodes = world.nodes();
  const Scope scope(*nodes[0].contexts);
  const std::vector<std::string> others = {"w2", "w3", "w4"};
  const Future<void> pass =
      scope.CallAsync(world.agents()[0].To("w1"), PassElsewhere, others,
                      nodes[0].model->leaves[0]);
  world.agents().Sleep(after);
  const bool was_over = pass.IsReady();
  world.agents().CrashAndRestart(1);
  pass.Wait(absl::Minutes(1)).IgnoreError();
  for (int i = 0; i < 600; ++i) {
    int64_t open = 0;
    for (const World::Node& node : nodes) {
      if (node.key.id != 1) open += node.contexts->counts().passes;
    }
    if (open == 0) break;
    if (i == 599) return absl::InternalError("a pass did not end");
    world.agents().Sleep(absl::Milliseconds(100));
  }
  int with_gradients = 0;
  for (const int worker : {2, 3, 4}) {
    with_gradients += World::GradientAt(nodes[worker], scope.id(), 0).defined();
  }
  with_gradients += scope.GradientOf(nodes[0].model->leaves[0]).defined();
  if (with_gradients != 0 && with_gradients != 4) {
    return absl::InternalError(absl::StrCat(
        with_gradients, " of 4 survivors have gradients, the others none"));
  }
  *in_the_middle += with_gradients > 0 && !was_over;
  return with_gradients > 0;
}

TEST(SimulatedPasses, RootThatDiesLeavesAllSurvivorsWithGradientsOrNone) {
  // Longer than the forward and the pass, in virtual microseconds.
  constexpr uint32_t kLongest = 30000;
  int committed = 0;
  int aborted = 0;
  int in_the_middle = 0;
  for (uint64_t seed = 1; seed <= Seeds() / 2; ++seed) {
    rpc::SimulatedAgents::Options options = FiveWorkers(0);
    World world(seed, options);
    const auto statuses = world.agents().Run(1, [&](int) -> absl::Status {
      const absl::Duration after =
          absl::Microseconds(world.random()() % kLongest);
      WEFT_ASSIGN_OR_RETURN(const bool is_committed,
                            CrashTheRoot(world, after, &in_the_middle));
      ++(is_committed ? committed : aborted);
      return world.AwaitEmpty();
    });
    ASSERT_THAT(statuses, Each(IsOk())) << "seed " << seed;
  }
  std::cout << committed << " passes committed, " << aborted << " aborted, "
            << in_the_middle << " committed that the root had not ended\n";
  EXPECT_GT(committed, 10);
  EXPECT_GT(in_the_middle, 0);
  EXPECT_GT(aborted, 10);
}

// ------------------------------------------------------------ a cut

// x plus a leaf of the worker `name` times x; no gradient comes back from
// there.
absl::StatusOr<Variable> AddLeafOf(rpc::CallContext& call,
                                   const std::string& name, const Variable& x) {
  WEFT_ASSIGN_OR_RETURN(const Scope scope, Scope::Within(call));
  WEFT_ASSIGN_OR_RETURN(const Values out,
                        scope.Call(call.To(name), MultiplyByLeaf, x.Detach()));
  return Add(x, out[0]);
}
WEFT_RPC(AddLeafOf);

// w1 is done once it has sent its gradient to w2, which never gets it: the root
// hears of it although w1 has said that it is done.
TEST(SimulatedPasses,
     GradientThatCannotBeDeliveredEndsThePassLongBeforeItsDeadline) {
  rpc::SimulatedAgents::Options options = FiveWorkers(0);
  World world(1, options);
  const auto statuses = world.agents().Run(1, [&](int) -> absl::Status {
    const Scope scope(*world.nodes()[0].contexts);
    const Variable& x = world.nodes()[0].model->leaves[0];
    WEFT_ASSIGN_OR_RETURN(const Variable y,
                          scope.Call(world.agents()[0].To("w1"), AddLeafOf,
                                     std::string("w2"), x));
    PassOptions pass;
    pass.seeds = RandomProgramSeeds(1);
    pass.timeout = absl::Seconds(60);
    world.agents().Cut(1, 2);
    const Instant begin = world.agents().simulator().Now();
    const absl::Status cut =
        scope.BackwardAsync({y}, pass).Wait(absl::Minutes(5)).status();
    EXPECT_EQ(cut.code(), absl::StatusCode::kUnavailable) << cut;
    EXPECT_LT(world.agents().simulator().Now() - begin, absl::Seconds(5));
    EXPECT_FALSE(scope.GradientOf(x).defined());
    world.agents().Heal(1, 2);
    world.agents().Sleep(absl::Seconds(5));
    WEFT_RETURN_IF_ERROR(
        scope.BackwardAsync({y}, pass).Wait(absl::Minutes(5)).status());
    EXPECT_TRUE(scope.GradientOf(x).defined());
    EXPECT_TRUE(World::GradientAt(world.nodes()[2], scope.id(), 0).defined());
    return absl::OkStatus();
  });
  ASSERT_THAT(statuses, Each(IsOk()));
}

// ------------------------------------------------------------ equal bits

uint64_t Bits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The bits of all gradients after one pass.
std::vector<uint64_t> BitsAfterPass(World& world, const Scope& scope,
                                    const Values& roots, bool deterministic) {
  PassOptions options;
  options.seeds = RandomProgramSeeds(roots.size());
  options.retain_graph = true;
  options.deterministic = deterministic;
  EXPECT_THAT(
      scope.BackwardAsync(roots, options).Wait(absl::Minutes(5)).status(),
      IsOk());
  std::vector<uint64_t> bits;
  for (const World::Node& node : world.nodes()) {
    for (int leaf = 0; leaf < RandomModel::kLeaves; ++leaf) {
      const weft::Gradient g = World::GradientAt(node, scope.id(), leaf);
      bits.push_back(g.defined() ? Bits(g.ToDense().Select(0, 0).item<double>())
                                 : 0);
    }
    const auto context = node.contexts->Find(scope.id());
    if (context.ok()) (*context)->ClearGradients();
  }
  return bits;
}

TEST(SimulatedPasses, DeterministicPassesGiveEqualBitsUnderRandomDelays) {
  constexpr uint64_t kSeeds = 40;
  constexpr int kPasses = 20;
  int differing = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    rpc::SimulatedAgents::Options options = FiveWorkers(0);
    options.faults = sim::FaultPlan::Options::Of({sim::Fault::kDelay}, 0.3);
    options.give_up_after = absl::Seconds(10);
    World world(seed, options);
    const auto statuses = world.agents().Run(1, [&](int) -> absl::Status {
      const Scope scope(*world.nodes()[0].contexts);
      // Many messages for each value.
      Values roots;
      for (int i = 0; i < 12; ++i) {
        const Variable& x = world.nodes()[0].model->leaves[i % 2];
        WEFT_ASSIGN_OR_RETURN(
            Values out,
            scope.Call(world.agents()[0].To(absl::StrCat("w", 1 + i % 4)),
                       MultiplyByLeaf, x));
        roots.push_back(std::move(out[0]));
      }
      for (const bool deterministic : {true, false}) {
        const std::vector<uint64_t> first =
            BitsAfterPass(world, scope, roots, deterministic);
        bool is_equal = true;
        for (int pass = 1; pass < kPasses; ++pass) {
          is_equal &=
              BitsAfterPass(world, scope, roots, deterministic) == first;
        }
        if (!deterministic) differing += !is_equal;
        if (deterministic && !is_equal) {
          return absl::InternalError("two passes gave different bits");
        }
      }
      return absl::OkStatus();
    });
    ASSERT_THAT(statuses, Each(IsOk())) << "seed " << seed;
  }
  std::cout << differing << " of " << kSeeds
            << " seeds gave different bits without the option\n";
  EXPECT_GT(differing, 0);
}

}  // namespace
}  // namespace weft::dist_autograd
