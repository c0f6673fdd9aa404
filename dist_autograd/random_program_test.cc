// Random programs over one to five workers, compared with the same program in
// one process: gradients are equal, a failed pass changes none and can be
// repeated, and nothing is left behind (docs/dist_autograd.md).

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "weft/autograd/ops.h"
#include "weft/dist_autograd/scope.h"
#include "weft/rpc/call.h"
#include "weft/rpc/testing/agent_fixture.h"
#include "weft/rref/references.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"
#include "weft/tests/support/patience.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::dist_autograd {
namespace {

using ::weft::testing::IsOk;
using Values = std::vector<Variable>;

constexpr int kWorkers = 5;
constexpr int kLeaves = 2;  // at each worker
constexpr int kOperations = 7;

// The leaves of one worker.
struct Model {
  Values leaves;
  std::atomic<bool> hooks_fail{false};
  std::function<void()> on_hook;  // set before the pass
};

Variable Vector(double x, bool requires_grad) {
  return Variable(Tensor::Full({3}, x, DType::kF64), requires_grad);
}

// Two results, so that one may be used without the other.
Values Compute(int64_t operation, const Values& in, int64_t leaf,
               const std::shared_ptr<Model>& model) {
  const Variable& w = model->leaves[leaf];
  Variable r;
  switch (operation) {
    case 0:
      r = Mul(Add(in[0], in[1]), Vector(0.5, false));
      break;
    case 1:
      r = Mul(in[0], in[1]);
      break;
    case 2:
      r = Mul(in[0], w);
      break;
    case 3:
      r = Add(Mul(in[0], w), in[1]);
      break;
    case 4:
      r = Mul(in[0].Detach(), in[1]);
      break;
    case 5:
      return {in[1], in[0]};
    default:
      r = Mul(in[0], w);
      r.AddHook([model](weft::Gradient g) -> weft::Gradient {
        if (model->on_hook) model->on_hook();
        if (model->hooks_fail) {
          throw Error(absl::InternalError("a hook that fails"));
        }
        return g;
      });
  }
  return {r, Mul(r, in[0])};
}

Values Apply(rpc::CallContext& call, int64_t operation, const Values& in,
             int64_t leaf) {
  return Compute(operation, in, leaf, call.agent().Local<Model>());
}
WEFT_RPC(Apply);

// Applies the operation at another worker, and uses one of its results here.
Values ApplyElsewhere(rpc::CallContext& call, const std::string& where,
                      int64_t operation, const Values& in, int64_t leaf) {
  const Scope scope = Scope::Within(call).value();
  const Values out =
      scope.Call(call.agent().To(where), Apply, operation, in, leaf).value();
  return {Add(out[0], in[1]), out[1]};
}
WEFT_RPC(ApplyElsewhere);

enum class Style { kLocal, kCall, kRemote, kNested };

struct Step {
  int64_t operation = 0;
  int64_t leaf = 0;
  size_t inputs[2] = {0, 0};
  int worker = 0;  // whose leaf it uses
  int via = 0;     // kNested: which worker calls that one
  Style style = Style::kLocal;
};

// A program of worker 0 on its two leaves and a constant.
struct Program {
  std::vector<Step> steps;
  std::vector<size_t> candidates;  // for roots, in order of preference
  bool has_unused_result = false;
  bool has_nested_call = false;
};

Program RandomProgram(std::mt19937& random, int workers, bool remote) {
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  Program program;
  const size_t steps = 2 + below(9);
  for (size_t i = 0; i < steps; ++i) {
    Step step;
    step.operation = static_cast<int64_t>(below(kOperations));
    step.leaf = static_cast<int64_t>(below(kLeaves));
    for (size_t& input : step.inputs) input = below(3 + 2 * i);
    step.worker = static_cast<int>(below(workers));
    if (step.worker != 0) {
      const size_t style = below(remote ? 3 : 2);
      step.style = style == 2 ? Style::kRemote : Style::kCall;
    }
    step.via = static_cast<int>(below(workers));
    if (remote && step.via != 0 && step.via != step.worker && below(2) == 0) {
      step.style = Style::kNested;  // perhaps back to worker 0
      program.has_nested_call = true;
    }
    program.steps.push_back(step);
  }
  for (int i = 0; i < 8; ++i)
    program.candidates.push_back(below(3 + 2 * steps));
  program.candidates.push_back(0);  // a leaf, which surely has a gradient
  return program;
}

// Whether the results of a remote step are not behind `roots`.
bool HasUnusedResult(const Program& program, const std::vector<size_t>& roots) {
  std::vector<bool> used(3 + 2 * program.steps.size());
  for (const size_t root : roots) used[root] = true;
  bool unused = false;
  for (size_t i = program.steps.size(); i-- > 0;) {
    const Step& step = program.steps[i];
    if (used[3 + 2 * i] || used[4 + 2 * i]) {
      for (const size_t input : step.inputs) used[input] = true;
    } else {
      unused = unused || step.style != Style::kLocal;
    }
  }
  return unused;
}

using Models = std::vector<std::shared_ptr<Model>>;

Models RandomModels(uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> value(-1.2, 1.2);
  Models models;
  for (int worker = 0; worker < kWorkers; ++worker) {
    models.push_back(std::make_shared<Model>());
    for (int leaf = 0; leaf < kLeaves; ++leaf) {
      models.back()->leaves.push_back(Vector(value(random), true));
    }
  }
  return models;
}

Values Start(const Models& models) {
  return {models[0]->leaves[0], models[0]->leaves[1], Vector(0.7, false)};
}

void Append(const Values& results, Values* values) {
  values->insert(values->end(), results.begin(), results.end());
}

Values RunInOneProcess(const Program& program, const Models& models) {
  Values values = Start(models);
  for (const Step& step : program.steps) {
    const Values in = {values[step.inputs[0]], values[step.inputs[1]]};
    Values out = Compute(step.operation, in, step.leaf, models[step.worker]);
    if (step.style == Style::kNested) out[0] = Add(out[0], in[1]);
    Append(out, &values);
  }
  return values;
}

Values RunOverWorkers(const Program& program, const Models& models,
                      rpc::Agent& agent, const Scope& scope) {
  Values values = Start(models);
  const auto name = [](int worker) { return absl::StrCat("w", worker); };
  for (const Step& step : program.steps) {
    const Values in = {values[step.inputs[0]], values[step.inputs[1]]};
    const rpc::Target to = agent.To(name(step.worker));
    switch (step.style) {
      case Style::kLocal:
        Append(Compute(step.operation, in, step.leaf, models[0]), &values);
        break;
      case Style::kCall:
        Append(scope.Call(to, Apply, step.operation, in, step.leaf).value(),
               &values);
        break;
      case Style::kRemote: {
        const auto kept = rref::Remote(scope.Recorded(to), Apply,
                                       step.operation, in, step.leaf)
                              .value();
        Append(scope.Fetch(kept).value(), &values);
        (void)scope.Fetch(kept).value();  // is not used
        break;
      }
      case Style::kNested:
        Append(scope
                   .Call(agent.To(name(step.via)), ApplyElsewhere,
                         name(step.worker), step.operation, in, step.leaf)
                   .value(),
               &values);
        break;
    }
  }
  return values;
}

// One or two of the candidates, with gradients.
std::vector<size_t> PickRoots(const Program& program, const Values& values) {
  std::vector<size_t> roots;
  const size_t wanted = 1 + program.steps.size() % 2;
  for (const size_t candidate : program.candidates) {
    if (!values[candidate].requires_grad()) continue;
    roots.push_back(candidate);
    if (roots.size() == wanted) break;
  }
  return roots;
}

Values Select(const Values& values, const std::vector<size_t>& which) {
  Values selected;
  for (const size_t i : which) selected.push_back(values[i]);
  return selected;
}

std::vector<weft::Gradient> Seeds(size_t n) {
  return std::vector<weft::Gradient>(
      n, weft::Gradient(Tensor::Full({3}, 1.5, DType::kF64)));
}

// As text, "-" without a gradient. What `scale` passes leave.
std::string Show(const weft::Gradient& gradient, double scale = 1) {
  if (!gradient.defined()) return "-";
  const double first = gradient.ToDense().Select(0, 0).item<double>() * scale;
  return absl::StrFormat("%.9g", first);
}

class RandomProgramTest : public ::testing::Test {
 protected:
  void Open(bool with_references) {
    ranks_ = std::make_unique<rpc::Ranks>(kWorkers);
    for (int i = 0; i < kWorkers; ++i) {
      if (with_references) {
        references_.push_back(rref::References::Open((*ranks_)[i]).value());
      }
      contexts_.push_back(Contexts::Open((*ranks_)[i]).value());
    }
  }
  void Close() {
    for (const auto& contexts : contexts_) contexts->Close();
    for (const auto& references : references_) {
      EXPECT_THAT(references->Close(absl::Seconds(20)), IsOk());
    }
    contexts_.clear();
    references_.clear();
    ranks_.reset();
  }
  void TearDown() override { Close(); }

  void Place(const Models& models) {
    for (int i = 0; i < kWorkers; ++i) (*ranks_)[i].SetLocal(models[i]);
  }
  weft::Gradient At(int worker, const Scope& scope, const Variable& leaf) {
    const auto context = contexts_[worker]->Find(scope.id());
    if (!context.ok()) return weft::Gradient();
    return (*context)->GradientOf(*leaf.edge().node->leaf());
  }
  bool HasAnyGradient(const Scope& scope, const Models& models) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      for (const Variable& leaf : models[worker]->leaves) {
        if (At(worker, scope, leaf).defined()) return true;
      }
    }
    return false;
  }
  // `expected` holds the gradients in its leaves. `but`: a worker that died.
  void ExpectGradients(const Scope& scope, const Models& models,
                       const Models& expected, double passes, int but = -1) {
    for (int worker = 0; worker < kWorkers; ++worker) {
      if (worker == but) continue;
      for (int leaf = 0; leaf < kLeaves; ++leaf) {
        EXPECT_EQ(Show(At(worker, scope, models[worker]->leaves[leaf])),
                  Show(expected[worker]->leaves[leaf].gradient(), passes))
            << "leaf " << leaf << " of w" << worker;
      }
    }
  }
  void ExpectEmptyTables() {
    for (int i = 0; i < kWorkers; ++i) {
      EXPECT_TRUE(testing::Becomes([&] {
        const Contexts::Counts counts = contexts_[i]->counts();
        return counts.contexts == 0 && counts.passes == 0;
      })) << "w"
          << i << " has contexts left";
    }
  }
  // What everybody is told when `dead` is killed.
  void Kill(int dead) {
    for (int i = 0; i < kWorkers; ++i) {
      if (i == dead) continue;
      const auto key = [](int rank) {
        return rpc::WorkerKey{static_cast<uint32_t>(rank), 1};
      };
      (*ranks_)[i].PeerGone(key(dead), "killed");
      (*ranks_)[dead].PeerGone(key(i), "killed");
    }
  }

  std::unique_ptr<rpc::Ranks> ranks_;
  std::vector<std::shared_ptr<rref::References>> references_;
  std::vector<std::shared_ptr<Contexts>> contexts_;
};

TEST_F(RandomProgramTest, GradientsOverWorkersEqualThoseOfOneProcess) {
  constexpr int kPrograms = 300;
  Open(/*with_references=*/true);
  int unused = 0;
  int nested = 0;
  int failed = 0;
  for (uint32_t seed = 1; seed <= kPrograms && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const Program program =
        RandomProgram(random, 1 + static_cast<int>(seed % kWorkers), true);
    const Models expected = RandomModels(seed);
    const Values local = RunInOneProcess(program, expected);
    const std::vector<size_t> roots = PickRoots(program, local);
    ASSERT_THAT(weft::Backward(Select(local, roots), Seeds(roots.size())),
                IsOk());
    unused += HasUnusedResult(program, roots);
    nested += program.has_nested_call;

    const Models models = RandomModels(seed);
    Place(models);
    {
      const Scope scope(*contexts_[0]);
      const Values values =
          RunOverWorkers(program, models, (*ranks_)[0], scope);
      PassOptions options;
      options.seeds = Seeds(roots.size());
      options.retain_graph = seed % 3 == 0;  // A9: two passes
      if (seed % 3 == 1) {                   // A4: all or none, and again
        for (const auto& model : models) model->hooks_fail = true;
        const absl::Status status =
            scope.Backward(Select(values, roots), options);
        failed += !status.ok();
        EXPECT_EQ(HasAnyGradient(scope, models), status.ok());
        for (const auto& model : models) model->hooks_fail = false;
        if (!status.ok()) {
          ASSERT_THAT(scope.Backward(Select(values, roots), options), IsOk());
        }
      } else {
        ASSERT_THAT(scope.Backward(Select(values, roots), options), IsOk());
      }
      if (options.retain_graph) {
        options.retain_graph = false;
        ASSERT_THAT(scope.Backward(Select(values, roots), options), IsOk());
      }
      ExpectGradients(scope, models, expected, seed % 3 == 0 ? 2 : 1);
    }
    ExpectEmptyTables();
  }
  RecordProperty("unused_percent", unused * 100 / kPrograms);
  RecordProperty("nested_percent", nested * 100 / kPrograms);
  std::printf(
      "%d programs: %d%% with an unused result, %d%% with nested calls, "
      "%d passes failed on purpose\n",
      kPrograms, unused * 100 / kPrograms, nested * 100 / kPrograms, failed);
  EXPECT_GE(unused * 100, 30 * kPrograms);
  EXPECT_GE(nested * 100, 30 * kPrograms);
  EXPECT_GE(failed, 10);
}

// Nested calls too: a worker that has part in the context only through the dead
// one is notified of the context's end by its creator.
TEST_F(RandomProgramTest, DeathInTheMiddleOfAPassLeavesAllGradientsOrNone) {
  int committed = 0;
  int aborted = 0;
  for (uint32_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Open(/*with_references=*/true);
    std::mt19937 random(seed);
    const Program program = RandomProgram(random, kWorkers, true);
    const Models expected = RandomModels(seed);
    const Values local = RunInOneProcess(program, expected);
    const std::vector<size_t> roots = PickRoots(program, local);
    ASSERT_THAT(weft::Backward(Select(local, roots), Seeds(roots.size())),
                IsOk());
    const Models models = RandomModels(seed);
    Place(models);
    const int dead = 1 + static_cast<int>(seed % (kWorkers - 1));
    {
      const Scope scope(*contexts_[0]);
      const Values values =
          RunOverWorkers(program, models, (*ranks_)[0], scope);
      PassOptions options;
      options.seeds = Seeds(roots.size());
      // The dead worker may still run hooks when the pass has ended.
      const auto once = std::make_shared<std::once_flag>();
      const auto kill = [this, once, dead] {
        std::call_once(*once, [&] { Kill(dead); });
      };
      // In the middle of the pass, at the worker of the first hook that runs.
      for (const auto& model : models) model->on_hook = kill;
      const Future<PassReport> pass =
          scope.BackwardAsync(Select(values, roots), options);
      const Result<PassReport> report = pass.Wait(testing::kPatience);
      kill();
      if (report.ok()) {
        ++committed;
        ExpectGradients(scope, models, expected, 1, dead);
      } else {
        ++aborted;
        EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable)
            << report.status();
        EXPECT_FALSE(HasAnyGradient(scope, models));
      }
    }
    ExpectEmptyTables();
    Close();
  }
  std::printf("%d passes committed, %d aborted\n", committed, aborted);
  EXPECT_GT(committed, 0);
  EXPECT_GT(aborted, 0);
}

}  // namespace
}  // namespace weft::dist_autograd
