#include "weft/optimizer/distributed_optimizer.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/future.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/optimizer/rules/rule_spec.h"
#include "weft/rpc/class.h"

namespace weft::optimizer {

WEFT_RPC_CLASS(OptimizerShard, v1::RuleSpec, std::vector<rref::RRef<Variable>>);
WEFT_RPC_METHOD(OptimizerShard, Check);
WEFT_RPC_METHOD(OptimizerShard, Apply);

namespace {

absl::Status NamingOwner(const absl::Status& status, const std::string& owner) {
  return absl::Status(status.code(), absl::StrCat("the optimizer at ", owner,
                                                  ": ", status.message()));
}

}  // namespace

OptimizerShard::OptimizerShard(
    const v1::RuleSpec& rule,
    const std::vector<rref::RRef<Variable>>& parameters) {
  status_ = Begin(rule, parameters);
}

absl::Status OptimizerShard::Begin(
    const v1::RuleSpec& rule,
    const std::vector<rref::RRef<Variable>>& parameters) {
  WEFT_ASSIGN_OR_RETURN(const RuleOptions options, FromSpec(rule));
  ParameterGroup group{options, {}, /*lazy=*/false};
  for (const rref::RRef<Variable>& ref : parameters) {
    WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Variable> variable,
                          ref.Local());
    group.parameters.push_back(
        {absl::StrCat("parameter", group.parameters.size()), *variable});
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Optimizer> made,
                        Optimizer::Create({std::move(group)}));
  MutexLock lock(mu_);
  optimizer_ = std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> OptimizerShard::CheckIn(
    const dist_autograd::Contexts& contexts,
    const dist_autograd::ContextId& id) {
  WEFT_RETURN_IF_ERROR(status_);
  WEFT_ASSIGN_OR_RETURN(const auto context, contexts.Find(id));
  int64_t present = 0;
  const auto gradient_of = [&](const Parameter& parameter) {
    Gradient gradient =
        context->GradientOf(*parameter.variable.edge().node->leaf());
    present += gradient.defined();
    return gradient;
  };
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(optimizer_->Check(gradient_of, Finite::kRequired));
  return present;
}

absl::Status OptimizerShard::ApplyIn(const dist_autograd::Contexts& contexts,
                                     const dist_autograd::ContextId& id) {
  WEFT_RETURN_IF_ERROR(status_);
  WEFT_ASSIGN_OR_RETURN(const auto context, contexts.Find(id));
  MutexLock lock(mu_);
  return optimizer_->Apply([&](const Parameter& parameter) {
    return context->GradientOf(*parameter.variable.edge().node->leaf());
  });
}

absl::StatusOr<int64_t> OptimizerShard::Check(
    rpc::CallContext& call, const dist_autograd::ContextId& id) {
  WEFT_ASSIGN_OR_RETURN(const auto contexts,
                        dist_autograd::Contexts::Of(call.agent()));
  const absl::StatusOr<int64_t> present = CheckIn(*contexts, id);
  // A worker that no recorded call of the context came to has no gradients.
  if (absl::IsNotFound(present.status())) return int64_t{0};
  return present;
}

absl::Status OptimizerShard::Apply(rpc::CallContext& call,
                                   const dist_autograd::ContextId& id) {
  WEFT_ASSIGN_OR_RETURN(const auto contexts,
                        dist_autograd::Contexts::Of(call.agent()));
  const absl::Status applied = ApplyIn(*contexts, id);
  return absl::IsNotFound(applied) ? absl::OkStatus() : applied;
}

absl::StatusOr<std::unique_ptr<DistributedOptimizer>>
DistributedOptimizer::Create(
    rpc::Agent& agent, const RuleOptions& rule,
    const std::vector<rref::RRef<Variable>>& parameters) {
  std::map<rpc::WorkerKey, std::vector<rref::RRef<Variable>>> by_owner;
  for (const rref::RRef<Variable>& parameter : parameters) {
    if (!parameter.has_value()) {
      return absl::InvalidArgumentError(
          "DistributedOptimizer: a parameter is an empty RRef");
    }
    by_owner[parameter.id().owner].push_back(parameter);
  }
  if (by_owner.empty()) {
    return absl::InvalidArgumentError("DistributedOptimizer: no parameters");
  }
  const v1::RuleSpec spec = ToSpec(rule);
  auto optimizer =
      std::unique_ptr<DistributedOptimizer>(new DistributedOptimizer());
  std::vector<Future<rref::RRef<OptimizerShard>>> making;
  for (const auto& [owner, own] : by_owner) {
    if (owner == agent.key()) {
      optimizer->local_ = std::make_unique<OptimizerShard>(spec, own);
      WEFT_RETURN_IF_ERROR(optimizer->local_->status());
      continue;
    }
    making.push_back(
        rref::MakeAsync<OptimizerShard>(agent.To(owner), spec, own));
  }
  for (Future<rref::RRef<OptimizerShard>>& shard : making) {
    WEFT_ASSIGN_OR_RETURN(
        rref::RRef<OptimizerShard> made,
        shard.Wait(agent.default_timeout() + absl::Seconds(1)));
    optimizer->shards_.push_back(std::move(made));
  }
  return optimizer;
}

absl::Status DistributedOptimizer::Step(const dist_autograd::Scope& pass) {
  const dist_autograd::ContextId id = pass.id();
  const absl::Duration timeout =
      pass.contexts().agent().default_timeout() + absl::Seconds(1);
  std::vector<Future<int64_t>> checks;
  for (const auto& shard : shards_) {
    checks.push_back(rref::CallAsync(shard, &OptimizerShard::Check, id));
  }
  int64_t present = 0;
  if (local_ != nullptr) {
    WEFT_ASSIGN_OR_RETURN(present, local_->CheckIn(pass.contexts(), id));
  }
  for (size_t i = 0; i < checks.size(); ++i) {
    const Result<int64_t> checked = checks[i].Wait(timeout);
    if (!checked.ok()) {
      return NamingOwner(checked.status(), shards_[i].owner().name());
    }
    present += *checked;
  }
  if (present == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "DistributedOptimizer::Step: no parameter has a gradient in ",
        id.ToString(), ": call Scope::Backward first"));
  }
  std::vector<Future<void>> applies;
  for (const auto& shard : shards_) {
    applies.push_back(rref::CallAsync(shard, &OptimizerShard::Apply, id));
  }
  absl::Status first;
  if (local_ != nullptr) first = local_->ApplyIn(pass.contexts(), id);
  for (size_t i = 0; i < applies.size(); ++i) {
    const absl::Status applied = applies[i].Wait(timeout);
    if (applied.ok() || !first.ok()) continue;
    first = absl::Status(
        applied.code(),
        absl::StrCat("the optimizer at ", shards_[i].owner().name(),
                     " failed after all had agreed, so that other owners may "
                     "have stepped: ",
                     applied.message()));
  }
  return first;
}

}  // namespace weft::optimizer
