#include "weft/optimizer/distributed_optimizer.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "weft/base/future.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/rpc/class.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/session/outcome.h"
#include "weft/tensor/ops/elementwise.h"

namespace weft::optimizer {

WEFT_RPC_CLASS(OptimizerShard, std::vector<v1::RuleSpec>, std::vector<int64_t>,
               std::vector<OptimizerShard::Placed>);
WEFT_RPC_METHOD(OptimizerShard, status);
WEFT_RPC_METHOD(OptimizerShard, Check);
WEFT_RPC_METHOD(OptimizerShard, Apply);
WEFT_RPC_METHOD(OptimizerShard, CheckAndApply);
WEFT_RPC_METHOD(OptimizerShard, SaveState);
WEFT_RPC_METHOD(OptimizerShard, StageState);
WEFT_RPC_METHOD(OptimizerShard, LoadStaged);

namespace {

// Participants of a context have deadlines of their own, which come first.
constexpr absl::Duration kCommitTimeout = absl::Minutes(10);

constexpr int64_t kNoNorm = -1;
constexpr int64_t kLastNorm = static_cast<int64_t>(Norm::kSum);

// The errors of several owners as one, which names each of them.
//
// Thread-safety: one thread at a time.
class OwnerErrors {
 public:
  void Note(const std::string& owner, const absl::Status& status) {
    if (status.ok()) return;
    texts_.push_back(
        absl::StrCat("the optimizer at ", owner, ": ", status.message()));
    // That a call may have run is what the caller must not miss.
    const bool tells_more =
        !rpc::OutcomeUnknown(first_) && rpc::OutcomeUnknown(status);
    if (first_.ok() || tells_more) first_ = status;
  }
  bool ok() const { return texts_.empty(); }
  // `prefix` and each error; the code and payloads of the first one, or of the
  // first whose outcome is unknown.
  absl::Status Get(absl::string_view prefix = "") const {
    return Reworded(first_, absl::StrCat(prefix, absl::StrJoin(texts_, "; ")));
  }

 private:
  absl::Status first_;
  std::vector<std::string> texts_;
};

std::string NameOf(int64_t group, int64_t place) {
  return absl::StrCat("group", group, ".parameter", place);
}

std::string ValueOf(const std::string& name) {
  return absl::StrCat(name, "/value");
}

// The same gradient times `factor`; what it was made from stays.
Gradient Scaled(const Gradient& gradient, double factor) {
  if (!gradient.defined() || factor == 1) return gradient;
  if (!gradient.is_sparse()) {
    Tensor values = gradient.dense().Clone();
    Mul_(values, factor);
    return values;
  }
  SparseRows rows = gradient.sparse();
  rows.values = rows.values.Clone();
  Mul_(rows.values, factor);
  return rows;
}

int64_t NormOf(const StepOptions& options) {
  return options.largest_norm.has_value() ? static_cast<int64_t>(options.norm)
                                          : kNoNorm;
}

OptimizerShard::Found Join(const OptimizerShard::Found& a,
                           const OptimizerShard::Found& b, int64_t norm) {
  return {std::get<0>(a) + std::get<0>(b),
          norm == kNoNorm ? 0
                          : JoinNorms(std::get<1>(a), std::get<1>(b),
                                      static_cast<Norm>(norm))};
}

// The factor by which all gradients, of norm `found`, are scaled down to
// `largest`.
absl::StatusOr<double> ClipFactor(double found, double largest) {
  if (!std::isfinite(found)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DistributedOptimizer::Step: the norm of the gradients is ", found));
  }
  return std::min(1.0, largest / (found + 1e-6));
}

absl::Status CheckOptions(const StepOptions& options) {
  if (!(options.learning_rate_scale >= 0) ||
      !std::isfinite(options.learning_rate_scale)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "DistributedOptimizer::Step: learning_rate_scale is ",
        options.learning_rate_scale, "; wanted a finite number, at least 0"));
  }
  if (options.largest_norm.has_value() && !(*options.largest_norm > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DistributedOptimizer::Step: largest_norm is ",
                     *options.largest_norm, "; wanted a positive number"));
  }
  return absl::OkStatus();
}

}  // namespace

// ------------------------------------------------------------ at an owner

OptimizerShard::OptimizerShard(const std::vector<v1::RuleSpec>& rules,
                               const std::vector<int64_t>& lazy,
                               const std::vector<Placed>& parameters) {
  status_ = Begin(rules, lazy, parameters);
}

absl::Status OptimizerShard::Begin(const std::vector<v1::RuleSpec>& rules,
                                   const std::vector<int64_t>& lazy,
                                   const std::vector<Placed>& parameters) {
  if (rules.size() != lazy.size()) {
    return absl::InvalidArgumentError("OptimizerShard: rules without groups");
  }
  if (parameters.empty()) {
    return absl::InvalidArgumentError("OptimizerShard: no parameters");
  }
  std::map<int64_t, ParameterGroup> groups;
  for (const auto& [group, place, ref] : parameters) {
    if (group < 0 || group >= static_cast<int64_t>(rules.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("OptimizerShard: there is no group ", group));
    }
    if (groups.count(group) == 0) {
      WEFT_ASSIGN_OR_RETURN(groups[group].rule, FromSpec(rules[group]));
      WEFT_ASSIGN_OR_RETURN(groups[group].clip, ClipFromSpec(rules[group]));
      groups[group].lazy = lazy[group] != 0;
    }
    WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Variable> variable,
                          ref.Local());
    groups[group].parameters.push_back({NameOf(group, place), *variable});
    weights_ = ref.reference()->references().template OnceFor<WeightsLock>();
  }
  std::vector<ParameterGroup> all;
  for (auto& [number, group] : groups) {
    parameters_.insert(parameters_.end(), group.parameters.begin(),
                       group.parameters.end());
    all.push_back(std::move(group));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Optimizer> made,
                        Optimizer::Create(std::move(all)));
  MutexLock lock(mu_);
  optimizer_ = std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<OptimizerShard::Found> OptimizerShard::CheckIn(
    const dist_autograd::Contexts& contexts, const dist_autograd::ContextId& id,
    int64_t norm) {
  WEFT_RETURN_IF_ERROR(status_);
  if (norm != kNoNorm && (norm < 0 || norm > kLastNorm)) {
    return absl::InvalidArgumentError(
        absl::StrCat("OptimizerShard::Check: wanted a norm from ", kNoNorm,
                     " to ", kLastNorm, ", found ", norm));
  }
  const auto context = contexts.Find(id);
  // A worker that no recorded call of the context came to has no gradients.
  if (absl::IsNotFound(context.status())) return Found(0, 0);
  WEFT_RETURN_IF_ERROR(context.status());
  std::vector<Gradient> present;
  const auto gradient_of = [&](const Parameter& parameter) {
    Gradient gradient = (*context)->GradientOf(*parameter.variable.leaf());
    if (gradient.defined()) present.push_back(gradient);
    return gradient;
  };
  {
    MutexLock lock(mu_);
    WEFT_RETURN_IF_ERROR(optimizer_->Check(gradient_of, Finite::kRequired));
  }
  WEFT_ASSIGN_OR_RETURN(const int64_t prepared,
                        (*context)->PrepareParticipants());
  const double found =
      norm == kNoNorm ? 0 : GradientNorm(present, static_cast<Norm>(norm));
  return Found(static_cast<int64_t>(present.size()) + prepared, found);
}

absl::Status OptimizerShard::ApplyIn(const dist_autograd::Contexts& contexts,
                                     const dist_autograd::ContextId& id,
                                     double learning_rate_scale,
                                     double gradient_scale) {
  WEFT_RETURN_IF_ERROR(status_);
  if (!(gradient_scale >= 0) || !std::isfinite(gradient_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("OptimizerShard::Apply: gradient_scale is ",
                     gradient_scale, "; wanted a finite number, at least 0"));
  }
  const auto context = contexts.Find(id);
  if (absl::IsNotFound(context.status())) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(context.status());
  // First what may fail.
  WEFT_RETURN_IF_ERROR((*context)->CommitParticipants().Wait(kCommitTimeout));
  MutexLock weights(weights_->mu);
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(optimizer_->SetLearningRateScale(learning_rate_scale));
  return optimizer_->Apply([&](const Parameter& parameter) {
    return Scaled((*context)->GradientOf(*parameter.variable.leaf()),
                  gradient_scale);
  });
}

namespace {

// Those of the worker that is called; kPermissionDenied if the caller may not
// step the context.
absl::StatusOr<std::shared_ptr<dist_autograd::Contexts>> ContextsToStep(
    rpc::CallContext& call, const dist_autograd::ContextId& id) {
  WEFT_ASSIGN_OR_RETURN(auto contexts,
                        dist_autograd::Contexts::Of(call.agent()));
  const auto context = contexts->FindToStep(call.peer(), id);
  if (absl::IsPermissionDenied(context.status())) return context.status();
  return contexts;
}

}  // namespace

absl::StatusOr<OptimizerShard::Found> OptimizerShard::Check(
    rpc::CallContext& call, const dist_autograd::ContextId& id, int64_t norm) {
  WEFT_ASSIGN_OR_RETURN(const auto contexts, ContextsToStep(call, id));
  return CheckIn(*contexts, id, norm);
}

absl::Status OptimizerShard::Apply(rpc::CallContext& call,
                                   const dist_autograd::ContextId& id,
                                   double learning_rate_scale,
                                   double gradient_scale) {
  WEFT_ASSIGN_OR_RETURN(const auto contexts, ContextsToStep(call, id));
  return ApplyIn(*contexts, id, learning_rate_scale, gradient_scale);
}

absl::StatusOr<OptimizerShard::Found> OptimizerShard::CheckAndApply(
    rpc::CallContext& call, const dist_autograd::ContextId& id, int64_t norm,
    double largest_norm, double learning_rate_scale, const Found& others) {
  WEFT_ASSIGN_OR_RETURN(const auto contexts, ContextsToStep(call, id));
  WEFT_ASSIGN_OR_RETURN(const Found own, CheckIn(*contexts, id, norm));
  const Found all = Join(own, others, norm);
  if (std::get<0>(all) == 0) return all;
  double factor = 1;
  if (norm != kNoNorm) {
    WEFT_ASSIGN_OR_RETURN(factor, ClipFactor(std::get<1>(all), largest_norm));
  }
  WEFT_RETURN_IF_ERROR(ApplyIn(*contexts, id, learning_rate_scale, factor));
  return all;
}

absl::StatusOr<OptimizerShard::State> OptimizerShard::SaveState() {
  WEFT_RETURN_IF_ERROR(status_);
  MutexLock weights(weights_->mu);
  MutexLock lock(mu_);
  State state;
  for (const auto& [name, tensor] : optimizer_->StateDict()) {
    state[name] = tensor;
  }
  for (const Parameter& parameter : parameters_) {
    state[ValueOf(parameter.name)] = parameter.variable.value().Clone();
  }
  return state;
}

absl::Status OptimizerShard::Validate(const State& state) {
  absl::btree_map<std::string, Tensor> slots(state.begin(), state.end());
  for (const Parameter& parameter : parameters_) {
    const std::string name = ValueOf(parameter.name);
    const auto found = slots.find(name);
    const std::string wanted = parameter.variable.value().Describe();
    const std::string there = found == slots.end() || !found->second.defined()
                                  ? "none"
                                  : found->second.Describe();
    if (there != wanted) {
      return absl::InvalidArgumentError(
          absl::StrCat("DistributedOptimizer::LoadState: wanted \"", name,
                       "\" of ", wanted, ", found ", there));
    }
    slots.erase(found);
  }
  // It checks all before it changes anything; what was there comes back.
  const auto old = optimizer_->StateDict();
  WEFT_RETURN_IF_ERROR(optimizer_->LoadStateDict(slots));
  return optimizer_->LoadStateDict(old);
}

absl::Status OptimizerShard::StageState(const State& state) {
  WEFT_RETURN_IF_ERROR(status_);
  MutexLock weights(weights_->mu);
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(Validate(state));
  staged_ = state;
  return absl::OkStatus();
}

absl::Status OptimizerShard::LoadStaged() {
  WEFT_RETURN_IF_ERROR(status_);
  MutexLock weights(weights_->mu);
  MutexLock lock(mu_);
  if (!staged_.has_value()) {
    return absl::FailedPreconditionError("OptimizerShard: nothing is staged");
  }
  absl::btree_map<std::string, Tensor> slots(staged_->begin(), staged_->end());
  for (const Parameter& parameter : parameters_) {
    const auto value = slots.find(ValueOf(parameter.name));
    parameter.variable.value().CopyFrom(value->second);
    slots.erase(value);
  }
  staged_.reset();
  return optimizer_->LoadStateDict(slots);
}

// ------------------------------------------------------------ at a trainer

absl::StatusOr<std::unique_ptr<DistributedOptimizer>>
DistributedOptimizer::Create(
    rpc::Agent& agent, const RuleOptions& rule,
    const std::vector<rref::RRef<Variable>>& parameters) {
  return Create(agent, {DistributedGroup{rule, parameters, /*lazy=*/false}});
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>>
DistributedOptimizer::Create(rpc::Agent& agent,
                             const std::vector<DistributedGroup>& groups) {
  std::map<rpc::WorkerKey, std::vector<OptimizerShard::Placed>> by_owner;
  std::vector<v1::RuleSpec> rules;
  std::vector<int64_t> lazy;
  for (const DistributedGroup& group : groups) {
    const auto number = static_cast<int64_t>(rules.size());
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const rref::RRef<Variable>& parameter = group.parameters[i];
      if (!parameter.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "DistributedOptimizer: ", NameOf(number, i), " is an empty RRef"));
      }
      by_owner[parameter.id().owner].emplace_back(number, i, parameter);
    }
    // The rule of a group without parameters, which no owner sees, is checked
    // too.
    WEFT_RETURN_IF_ERROR(MakeRule(group.rule, group.clip).status());
    rules.push_back(ToSpec(group.rule, group.clip));
    lazy.push_back(group.lazy);
  }
  if (by_owner.empty()) {
    return absl::InvalidArgumentError("DistributedOptimizer: no parameters");
  }
  auto optimizer =
      std::unique_ptr<DistributedOptimizer>(new DistributedOptimizer(agent));
  OwnerErrors errors;
  std::vector<std::pair<std::string, Future<void>>> made;  // by owner
  std::vector<std::string> local_names;
  for (const auto& [owner, own] : by_owner) {
    std::vector<std::string> names;
    for (const auto& [group, place, parameter] : own) {
      names.push_back(NameOf(group, place));
    }
    if (owner == agent.key()) {
      optimizer->local_ = std::make_unique<OptimizerShard>(rules, lazy, own);
      errors.Note(agent.name(), optimizer->local_->status());
      local_names = std::move(names);
      continue;
    }
    optimizer->names_.push_back(std::move(names));
    const rpc::Target target = agent.To(owner);
    auto shard = rref::BeginMake<OptimizerShard>(target, rules, lazy, own);
    errors.Note(target.name(), shard.status());
    if (!shard.ok()) continue;
    made.emplace_back(target.name(),
                      rref::CallAsync(*shard, &OptimizerShard::status));
    optimizer->shards_.push_back(*std::move(shard));
  }
  if (optimizer->local_ != nullptr) {
    optimizer->names_.push_back(std::move(local_names));
  }
  for (const auto& [owner, each] : made) {
    errors.Note(owner, each.Wait(optimizer->timeout()));
  }
  if (!errors.ok()) return errors.Get("DistributedOptimizer::Create: ");
  return optimizer;
}

absl::Duration DistributedOptimizer::timeout() const {
  return agent_.default_timeout() + absl::Seconds(1);
}

std::vector<rpc::WorkerKey> DistributedOptimizer::WithoutParameters(
    const dist_autograd::Scope& pass) const {
  const auto context = pass.contexts().Find(pass.id());
  if (!context.ok()) return {};
  std::set<rpc::WorkerKey> others = (*context)->Others();
  for (const auto& shard : shards_) others.erase(shard.id().owner);
  return {others.begin(), others.end()};
}

absl::StatusOr<OptimizerShard::Found> DistributedOptimizer::CheckHere(
    const dist_autograd::Scope& pass, int64_t norm) {
  if (local_ != nullptr)
    return local_->CheckIn(pass.contexts(), pass.id(), norm);
  const auto context = pass.contexts().Find(pass.id());
  if (!context.ok()) return OptimizerShard::Found(0, 0);
  WEFT_ASSIGN_OR_RETURN(const int64_t prepared,
                        (*context)->PrepareParticipants());
  return OptimizerShard::Found(prepared, 0);
}

absl::Status DistributedOptimizer::ApplyHere(const dist_autograd::Scope& pass,
                                             double rate_scale,
                                             double gradient_scale) {
  if (local_ != nullptr) {
    return local_->ApplyIn(pass.contexts(), pass.id(), rate_scale,
                           gradient_scale);
  }
  const auto context = pass.contexts().Find(pass.id());
  if (!context.ok()) return absl::OkStatus();
  return (*context)->CommitParticipants().Wait(kCommitTimeout);
}

absl::StatusOr<OptimizerShard::Found> DistributedOptimizer::CheckAll(
    const dist_autograd::Scope& pass, const StepOptions& options) {
  const dist_autograd::ContextId id = pass.id();
  const int64_t norm = NormOf(options);
  std::vector<Future<OptimizerShard::Found>> checks;
  for (const auto& shard : shards_) {
    checks.push_back(rref::CallAsync(shard, &OptimizerShard::Check, id, norm));
  }
  std::vector<std::pair<std::string, Future<int64_t>>> others;
  for (const rpc::WorkerKey worker : WithoutParameters(pass)) {
    const rpc::Target target = agent_.To(worker);
    others.emplace_back(
        target.name(),
        rpc::CallAsync(target, &dist_autograd::PrepareParticipants, id));
  }
  OptimizerShard::Found all(0, 0);
  OwnerErrors errors;
  const auto found = CheckHere(pass, norm);
  errors.Note(agent_.name(), found.status());
  if (found.ok()) all = *found;
  for (const auto& [name, each] : others) {
    const Result<int64_t> prepared = each.Wait(timeout());
    errors.Note(name, prepared.status());
    if (prepared.ok()) all = Join(all, {*prepared, 0}, norm);
  }
  for (size_t i = 0; i < checks.size(); ++i) {
    const Result<OptimizerShard::Found> found = checks[i].Wait(timeout());
    errors.Note(shards_[i].owner().name(), found.status());
    if (found.ok()) all = Join(all, *found, norm);
  }
  if (!errors.ok()) return errors.Get();
  return all;
}

absl::Status DistributedOptimizer::ApplyAll(const dist_autograd::Scope& pass,
                                            double rate_scale,
                                            double gradient_scale) {
  const dist_autograd::ContextId id = pass.id();
  std::vector<Future<void>> applies;
  for (const auto& shard : shards_) {
    applies.push_back(rref::CallAsync(shard, &OptimizerShard::Apply, id,
                                      rate_scale, gradient_scale));
  }
  std::vector<std::pair<std::string, Future<void>>> others;
  for (const rpc::WorkerKey worker : WithoutParameters(pass)) {
    const rpc::Target target = agent_.To(worker);
    others.emplace_back(
        target.name(),
        rpc::CallAsync(target, &dist_autograd::CommitParticipants, id));
  }
  OwnerErrors errors;
  errors.Note(agent_.name(), ApplyHere(pass, rate_scale, gradient_scale));
  for (const auto& [name, each] : others) {
    errors.Note(name, each.Wait(timeout()));
  }
  for (size_t i = 0; i < applies.size(); ++i) {
    errors.Note(shards_[i].owner().name(), applies[i].Wait(timeout()));
  }
  return errors.Get(
      "after all owners had agreed, so that the others have stepped: ");
}

absl::StatusOr<OptimizerShard::Found> DistributedOptimizer::StepByOneCall(
    const dist_autograd::Scope& pass, const StepOptions& options) {
  const dist_autograd::ContextId id = pass.id();
  const int64_t norm = NormOf(options);
  const std::string owner = shards_[0].owner().name();
  OptimizerShard::Found own(0, 0);
  OwnerErrors errors;
  const auto found = CheckHere(pass, norm);
  errors.Note(agent_.name(), found.status());
  if (found.ok()) own = *found;
  if (!errors.ok()) {
    // The other is asked all the same, so that the error names each.
    errors.Note(owner,
                rref::CallAsync(shards_[0], &OptimizerShard::Check, id, norm)
                    .Wait(timeout())
                    .status());
    return errors.Get();
  }
  const Result<OptimizerShard::Found> all =
      rref::CallAsync(shards_[0], &OptimizerShard::CheckAndApply, id, norm,
                      options.largest_norm.value_or(0),
                      options.learning_rate_scale, own)
          .Wait(timeout());
  if (!all.ok()) {
    errors.Note(owner, all.status());
    return errors.Get(rpc::OutcomeUnknown(all.status())
                          ? "after all owners had agreed, of which none has "
                            "stepped but perhaps this one: "
                          : "");
  }
  if (std::get<0>(*all) == 0) return *all;
  double factor = 1;
  if (norm != kNoNorm) {
    WEFT_ASSIGN_OR_RETURN(factor,
                          ClipFactor(std::get<1>(*all), *options.largest_norm));
  }
  errors.Note(agent_.name(),
              ApplyHere(pass, options.learning_rate_scale, factor));
  if (errors.ok()) return *all;
  return errors.Get(
      "after all owners had agreed, so that the others have stepped: ");
}

absl::StatusOr<StepReport> DistributedOptimizer::Step(
    const dist_autograd::Scope& pass, const StepOptions& options) {
  WEFT_RETURN_IF_ERROR(CheckOptions(options));
  const bool by_one_call =
      shards_.size() == 1 && WithoutParameters(pass).empty();
  WEFT_ASSIGN_OR_RETURN(const auto found, by_one_call
                                              ? StepByOneCall(pass, options)
                                              : CheckAll(pass, options));
  StepReport report;
  std::tie(report.updated, report.gradient_norm) = found;
  if (report.updated == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("DistributedOptimizer::Step: no parameter has a gradient "
                     "in ",
                     pass.id().ToString(), ": call Scope::Backward first"));
  }
  if (by_one_call) return report;
  double gradient_scale = 1;
  if (options.largest_norm.has_value()) {
    WEFT_ASSIGN_OR_RETURN(gradient_scale, ClipFactor(report.gradient_norm,
                                                     *options.largest_norm));
  }
  WEFT_RETURN_IF_ERROR(
      ApplyAll(pass, options.learning_rate_scale, gradient_scale));
  return report;
}

absl::StatusOr<DistributedOptimizer::State> DistributedOptimizer::SaveState() {
  std::vector<Future<OptimizerShard::State>> parts;
  for (const auto& shard : shards_) {
    parts.push_back(rref::CallAsync(shard, &OptimizerShard::SaveState));
  }
  State state;
  OwnerErrors errors;
  const auto add = [&](const std::string& owner, const auto& part) {
    errors.Note(owner, part.status());
    if (part.ok()) state.insert(part->begin(), part->end());
  };
  if (local_ != nullptr) add(agent_.name(), local_->SaveState());
  for (size_t i = 0; i < parts.size(); ++i) {
    add(shards_[i].owner().name(), parts[i].Wait(timeout()));
  }
  if (!errors.ok()) return errors.Get();
  return state;
}

absl::Status DistributedOptimizer::LoadState(const State& state) {
  std::map<std::string, size_t> shard_of;
  for (size_t i = 0; i < names_.size(); ++i) {
    for (const std::string& name : names_[i]) shard_of[name] = i;
  }
  std::vector<OptimizerShard::State> parts(names_.size());
  for (const auto& [name, tensor] : state) {
    const auto shard = shard_of.find(name.substr(0, name.find('/')));
    if (shard == shard_of.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("DistributedOptimizer::LoadState: \"", name,
                       "\" belongs to no parameter"));
    }
    parts[shard->second][name] = tensor;
  }
  // First all shards stage their state, and only if all agree do they load it.
  std::vector<Future<void>> stages;
  for (size_t i = 0; i < shards_.size(); ++i) {
    stages.push_back(
        rref::CallAsync(shards_[i], &OptimizerShard::StageState, parts[i]));
  }
  OwnerErrors errors;
  if (local_ != nullptr) {
    errors.Note(agent_.name(), local_->StageState(parts.back()));
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    errors.Note(shards_[i].owner().name(), stages[i].Wait(timeout()));
  }
  WEFT_RETURN_IF_ERROR(errors.Get());
  std::vector<Future<void>> loads;
  for (const auto& shard : shards_) {
    loads.push_back(rref::CallAsync(shard, &OptimizerShard::LoadStaged));
  }
  if (local_ != nullptr) errors.Note(agent_.name(), local_->LoadStaged());
  for (size_t i = 0; i < loads.size(); ++i) {
    errors.Note(shards_[i].owner().name(), loads[i].Wait(timeout()));
  }
  return errors.Get();
}

}  // namespace weft::optimizer
