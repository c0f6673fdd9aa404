#include "weft/dist_autograd/random_program.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "weft/autograd/ops.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/call.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"

namespace weft::dist_autograd {

namespace {

using Style = RandomStep::Style;
constexpr int kOperations = 7;
constexpr size_t kFirstResult = 3;

Variable Vector(double x, bool requires_grad) {
  return Variable(Tensor::Full({3}, x, DType::kF64), requires_grad);
}

// Two results, so that one may be used without the other.
Values Compute(int64_t operation, const Values& in, int64_t leaf,
               const std::shared_ptr<RandomModel>& model) {
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

absl::StatusOr<Values> ApplyStep(rpc::CallContext& call, int64_t operation,
                                 const Values& in, int64_t leaf) {
  const std::shared_ptr<RandomModel> model = call.agent().Local<RandomModel>();
  if (model == nullptr || in.size() != 2) {
    return absl::InvalidArgumentError("a step without its model or inputs");
  }
  return Compute(operation, in, leaf, model);
}
WEFT_RPC(ApplyStep);

// Applies the operation at another worker, and uses one of its results here.
absl::StatusOr<Values> ApplyStepElsewhere(rpc::CallContext& call,
                                          const std::string& where,
                                          int64_t operation, const Values& in,
                                          int64_t leaf) {
  WEFT_ASSIGN_OR_RETURN(const Scope scope, Scope::Within(call));
  WEFT_ASSIGN_OR_RETURN(const Values out, scope.Call(call.To(where), ApplyStep,
                                                     operation, in, leaf));
  return Values{Add(out[0], in[1]), out[1]};
}
WEFT_RPC(ApplyStepElsewhere);

void Append(const Values& results, Values* values) {
  values->insert(values->end(), results.begin(), results.end());
}

Style RandomStyle(size_t number) {
  if (number == 0) return Style::kRemote;
  return number == 1 ? Style::kAsync : Style::kCall;
}

// One run of a program over workers.
class Run {
 public:
  Run(const std::vector<std::string>& names, rpc::Agent& agent,
      const Scope& scope)
      : names_(names), agent_(agent), scope_(scope) {}

  absl::StatusOr<Values> All(const RandomProgram& program) {
    const std::shared_ptr<RandomModel> own = agent_.Local<RandomModel>();
    values_ = {own->leaves[0], own->leaves[1], Vector(0.7, false)};
    pending_.resize(program.steps.size());
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const RandomStep& step = program.steps[i];
      Values in;
      for (const size_t input : step.inputs) {
        WEFT_RETURN_IF_ERROR(Await(input));
        in.push_back(values_[input]);
      }
      if (step.style == Style::kAsync) {
        pending_[i] = scope_.CallAsync(To(step.worker), ApplyStep,
                                       step.operation, in, step.leaf);
        values_.resize(values_.size() + 2);
        continue;
      }
      WEFT_ASSIGN_OR_RETURN(const Values out, Results(step, in, own));
      Append(out, &values_);
    }
    for (size_t i = 0; i < values_.size(); ++i) WEFT_RETURN_IF_ERROR(Await(i));
    return std::move(values_);
  }

 private:
  rpc::Target To(int worker) { return agent_.To(names_[worker]); }

  // The value, if an asynchronous step makes it.
  absl::Status Await(size_t value) {
    if (value < kFirstResult) return absl::OkStatus();
    const size_t step = (value - kFirstResult) / 2;
    std::optional<Future<Values>> pending;
    pending.swap(pending_[step]);
    if (!pending.has_value()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(const Values out, pending->Wait(absl::Minutes(5)));
    for (size_t i = 0; i < 2; ++i) {
      values_[kFirstResult + 2 * step + i] = out[i];
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Values> Results(const RandomStep& step, const Values& in,
                                 const std::shared_ptr<RandomModel>& own) {
    const rpc::Target to = To(step.worker);
    switch (step.style) {
      case Style::kLocal:
      case Style::kAsync:
        break;
      case Style::kCall:
        return scope_.Call(to, ApplyStep, step.operation, in, step.leaf);
      case Style::kRemote: {
        WEFT_ASSIGN_OR_RETURN(const auto kept,
                              rref::Remote(scope_.Recorded(to), ApplyStep,
                                           step.operation, in, step.leaf));
        WEFT_ASSIGN_OR_RETURN(const Values out, scope_.Fetch(kept));
        // Once more, and not used.
        WEFT_RETURN_IF_ERROR(scope_.Fetch(kept).status());
        return out;
      }
      case Style::kNested:
        return scope_.Call(To(step.via), ApplyStepElsewhere,
                           names_[step.worker], step.operation, in, step.leaf);
    }
    return Compute(step.operation, in, step.leaf, own);
  }

  const std::vector<std::string>& names_;
  rpc::Agent& agent_;
  const Scope& scope_;
  Values values_;
  std::vector<std::optional<Future<Values>>> pending_;  // by step
};

}  // namespace

RandomModels MakeRandomModels(uint32_t seed, int workers) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> value(-1.2, 1.2);
  RandomModels models;
  for (int worker = 0; worker < workers; ++worker) {
    models.push_back(std::make_shared<RandomModel>());
    for (int leaf = 0; leaf < RandomModel::kLeaves; ++leaf) {
      models.back()->leaves.push_back(Vector(value(random), true));
    }
  }
  return models;
}

RandomProgram RandomProgram::Make(std::mt19937& random, int workers) {
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  RandomProgram program;
  const size_t steps = 2 + below(9);
  for (size_t i = 0; i < steps; ++i) {
    RandomStep step;
    step.operation = static_cast<int64_t>(below(kOperations));
    step.leaf = static_cast<int64_t>(below(RandomModel::kLeaves));
    for (size_t& input : step.inputs) input = below(kFirstResult + 2 * i);
    step.worker = static_cast<int>(below(workers));
    // Now and then of the root to itself.
    if (step.worker != 0 || below(4) == 0) step.style = RandomStyle(below(4));
    step.via = static_cast<int>(below(workers));
    if (step.via != 0 && step.via != step.worker && below(2) == 0) {
      step.style = Style::kNested;  // perhaps back to the root
      program.has_nested_call = true;
    }
    program.steps.push_back(step);
  }
  for (int i = 0; i < 8; ++i) {
    program.candidates.push_back(below(kFirstResult + 2 * steps));
  }
  program.candidates.push_back(0);  // a leaf, which surely has a gradient
  return program;
}

std::vector<size_t> RandomProgram::PickRoots(const Values& values) const {
  std::vector<size_t> roots;
  const size_t wanted = 1 + steps.size() % 2;
  for (const size_t candidate : candidates) {
    if (!values[candidate].requires_grad()) continue;
    roots.push_back(candidate);
    if (roots.size() == wanted) break;
  }
  return roots;
}

bool RandomProgram::HasUnusedResult(const std::vector<size_t>& roots) const {
  std::vector<bool> used(kFirstResult + 2 * steps.size());
  for (const size_t root : roots) used[root] = true;
  bool unused = false;
  for (size_t i = steps.size(); i-- > 0;) {
    const size_t first = kFirstResult + 2 * i;
    if (used[first] || used[first + 1]) {
      for (const size_t input : steps[i].inputs) used[input] = true;
    } else {
      unused = unused || steps[i].style != Style::kLocal;
    }
  }
  return unused;
}

Values RandomProgram::RunInOneProcess(const RandomModels& models) const {
  Values values = {models[0]->leaves[0], models[0]->leaves[1],
                   Vector(0.7, false)};
  for (const RandomStep& step : steps) {
    const Values in = {values[step.inputs[0]], values[step.inputs[1]]};
    Values out = Compute(step.operation, in, step.leaf, models[step.worker]);
    if (step.style == Style::kNested) out[0] = Add(out[0], in[1]);
    Append(out, &values);
  }
  return values;
}

absl::StatusOr<Values> RandomProgram::RunOverWorkers(
    const std::vector<std::string>& names, rpc::Agent& agent,
    const Scope& scope) const {
  return Run(names, agent, scope).All(*this);
}

Values Select(const Values& values, const std::vector<size_t>& which) {
  Values selected;
  for (const size_t i : which) selected.push_back(values[i]);
  return selected;
}

std::vector<weft::Gradient> RandomProgramSeeds(size_t n) {
  return std::vector<weft::Gradient>(
      n, weft::Gradient(Tensor::Full({3}, 1.5, DType::kF64)));
}

absl::Status BackwardInOneProcess(const Values& values,
                                  const std::vector<size_t>& roots) {
  return weft::Backward(Select(values, roots),
                        RandomProgramSeeds(roots.size()));
}

std::string ShowGradient(const weft::Gradient& gradient, double scale) {
  if (!gradient.defined()) return "-";
  const double first = gradient.ToDense().Select(0, 0).item<double>() * scale;
  return absl::StrFormat("%.9g", first);
}

}  // namespace weft::dist_autograd
