// DistributedOptimizer: updates parameters where they live, from the gradients
// of a distributed pass.
//
//   // At each owner, for each parameter:
//   rref::RRef<Variable> w =
//       rref::MakeLocal(agent, std::make_shared<Variable>(w0)).value();
//   // At the trainer, to which the references came as a result:
//   auto optimizer = DistributedOptimizer::Create(agent, SgdOptions{0.1}, all);
//   dist_autograd::Scope pass(worker.contexts());
//   ...
//   WEFT_RETURN_IF_ERROR(pass.Backward(loss));
//   StepOptions options;
//   options.learning_rate_scale = schedule(step);   // see schedule.h
//   options.largest_norm = 1.0;
//   WEFT_RETURN_IF_ERROR(optimizer->Step(pass, options).status());
//
// A step has two phases: each owner checks its gradients, and only if all can
// be applied does each apply them. So a gradient that is not finite, a context
// that was released or an owner that is gone changes no weight anywhere. An
// owner that dies between the phases leaves the others updated: Step says so.
//
// Participants of the context (dist_autograd/participant.h), such as look-ups
// in tables, are prepared with the first phase and committed with the second,
// at an owner before its parameters change. The same is done at workers that
// have a part in the context but no parameters; a step with such a worker takes
// two rounds of calls.
//
// A parameter without a gradient in the context does not change, as with
// Optimizer. Each owner keeps the state of its parameters; it is the same as
// that of a local Optimizer over them.
//
// Several trainers may each have an optimizer of the same parameters (Hogwild):
// updates at one owner run one at a time, in no order between owners. A
// recorded forward keeps the weights that it saved (optimizer.h), so its
// backward works through the steps of others. A read of a weight during an
// update may see a part of it.

#ifndef WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_H_
#define WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/autograd/variable.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/scope.h"
#include "weft/optimizer/clip.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/proto/optimizer.pb.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call_context.h"
#include "weft/rref/rref.h"
#include "weft/tensor/tensor.h"

namespace weft::optimizer {

// As ParameterGroup, of parameters that live anywhere.
struct DistributedGroup {
  RuleOptions rule;
  std::vector<rref::RRef<Variable>> parameters;
  bool lazy = false;
  ClipOptions clip = {};
};

struct StepOptions {
  // Multiplies the learning rates of all groups in this step: schedule(step).
  // Finite and at least 0.
  double learning_rate_scale = 1;
  // All gradients of the step, over all owners, are scaled down to this norm if
  // theirs is larger, as ClipGradNorm does. Positive.
  std::optional<double> largest_norm;
  Norm norm = Norm::kEuclidean;
};

struct StepReport {
  // Parameters that had a gradient, and participants that had changes.
  int64_t updated = 0;
  double gradient_norm = 0;  // before it was clipped; 0 without largest_norm
};

// The part of one owner: an Optimizer over parameters that live there.
//
// Thread-safety: thread-safe.
class OptimizerShard {
 public:
  // A parameter's group, its place in it, and where it is.
  using Placed = std::tuple<int64_t, int64_t, rref::RRef<Variable>>;
  // What Check found: how many parameters have a gradient, and their norm.
  using Found = std::tuple<int64_t, double>;
  using State = std::map<std::string, Tensor>;

  // `rules`, `lazy`: one for each group. If a parameter cannot be optimized,
  // status() and each call fail.
  OptimizerShard(const std::vector<v1::RuleSpec>& rules,
                 const std::vector<int64_t>& lazy,
                 const std::vector<Placed>& parameters);

  // Fails as Optimizer::Check, gradients that are not finite included;
  // kFailedPrecondition if the context was released; kPermissionDenied if the
  // caller may not step it (dist_autograd::Contexts::FindToStep). If the
  // context has no part here, no parameter has a gradient. `norm`: as the enum;
  // -1: none; kInvalidArgument for another number.
  absl::StatusOr<Found> Check(rpc::CallContext& call,
                              const dist_autograd::ContextId& id, int64_t norm);
  absl::Status Apply(rpc::CallContext& call, const dist_autograd::ContextId& id,
                     double learning_rate_scale, double gradient_scale);
  // Check and Apply in one call, where this owner alone has not agreed yet:
  // `others` is what the others have found together. Returns what all have
  // found; with an error, or if that is no gradient, nothing has changed here.
  // `largest_norm` is used unless `norm` is -1.
  absl::StatusOr<Found> CheckAndApply(rpc::CallContext& call,
                                      const dist_autograd::ContextId& id,
                                      int64_t norm, double largest_norm,
                                      double learning_rate_scale,
                                      const Found& others);

  // The state of this owner: as Optimizer::StateDict, and "<name>/value", the
  // weights.
  absl::StatusOr<State> SaveState() ABSL_LOCKS_EXCLUDED(mu_);
  // Checks `state` and keeps it; LoadStaged puts it into place.
  absl::Status StageState(const State& state) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status LoadStaged() ABSL_LOCKS_EXCLUDED(mu_);

  // The same without a call, for the owner itself.
  absl::StatusOr<Found> CheckIn(const dist_autograd::Contexts& contexts,
                                const dist_autograd::ContextId& id,
                                int64_t norm) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ApplyIn(const dist_autograd::Contexts& contexts,
                       const dist_autograd::ContextId& id,
                       double learning_rate_scale, double gradient_scale)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Why there is no optimizer: what Optimizer::Create has refused.
  absl::Status status() const { return status_; }

 private:
  // All shards of one worker share it: they may have parameters in common.
  struct WeightsLock {
    Mutex mu;
  };

  absl::Status Begin(const std::vector<v1::RuleSpec>& rules,
                     const std::vector<int64_t>& lazy,
                     const std::vector<Placed>& parameters);
  absl::Status Validate(const State& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Status status_;
  std::shared_ptr<WeightsLock> weights_;
  std::vector<Parameter> parameters_;
  Mutex mu_;
  std::unique_ptr<Optimizer> optimizer_ ABSL_GUARDED_BY(mu_);
  std::optional<State> staged_ ABSL_GUARDED_BY(mu_);
};

// Thread-safety: thread-safe.
class DistributedOptimizer {
 public:
  // The state of all owners: as OptimizerShard::State, by
  // "group0.parameter3/momentum". Names count parameters in the order of
  // Create, wherever they live.
  using State = absl::btree_map<std::string, Tensor>;

  // Groups the parameters by owner and makes an optimizer at each, all at once.
  // kInvalidArgument for no parameters, an empty reference, or what
  // Optimizer::Create refuses, at any owner; else as a call fails. This and all
  // other errors of owners name each owner that failed; their code and payloads
  // are those of the first.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      rpc::Agent& agent, const std::vector<DistributedGroup>& groups);
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      rpc::Agent& agent, const RuleOptions& rule,
      const std::vector<rref::RRef<Variable>>& parameters);

  // Updates all parameters by the gradients in the context of `pass`.
  // kFailedPrecondition if no parameter has one (was there a Backward?);
  // kInvalidArgument names gradients that are not finite, or an invalid option;
  // then nothing has changed. An error that begins with "after all owners had
  // agreed" names the owners that did not step, or may not have. One round of
  // calls if one other worker has parameters and part in the context, two if
  // several have.
  absl::StatusOr<StepReport> Step(const dist_autograd::Scope& pass,
                                  const StepOptions& options);
  absl::Status Step(const dist_autograd::Scope& pass) {
    return Step(pass, StepOptions()).status();
  }

  // The state and the weights of all parameters, copied: what a checkpoint
  // keeps (CheckpointDirectory::Save). Other trainers' steps must not run
  // meanwhile; the caller ensures that.
  absl::StatusOr<State> SaveState();
  // Puts them back, at all owners or, if one refuses, at none. The parameters
  // may live at other workers than when it was saved. kInvalidArgument names
  // the entries that are missing, unknown, or of another shape or dtype.
  absl::Status LoadState(const State& state);

  int owners() const {
    return static_cast<int>(shards_.size()) + (local_ != nullptr);
  }

 private:
  explicit DistributedOptimizer(rpc::Agent& agent) : agent_(agent) {}

  // The other workers that have part in the context, but no parameters: some of
  // its participants may be there.
  std::vector<rpc::WorkerKey> WithoutParameters(
      const dist_autograd::Scope& pass) const;
  // This worker's own part.
  absl::StatusOr<OptimizerShard::Found> CheckHere(
      const dist_autograd::Scope& pass, int64_t norm);
  absl::Status ApplyHere(const dist_autograd::Scope& pass, double rate_scale,
                         double gradient_scale);
  // How many parameters have gradients, and their norm.
  absl::StatusOr<OptimizerShard::Found> CheckAll(
      const dist_autograd::Scope& pass, const StepOptions& options);
  absl::Status ApplyAll(const dist_autograd::Scope& pass, double rate_scale,
                        double gradient_scale);
  // Where one other worker has parameters: this worker checks, that one checks
  // and applies, and this one applies.
  absl::StatusOr<OptimizerShard::Found> StepByOneCall(
      const dist_autograd::Scope& pass, const StepOptions& options);
  absl::Duration timeout() const;

  rpc::Agent& agent_;
  std::vector<rref::RRef<OptimizerShard>> shards_;
  std::unique_ptr<OptimizerShard> local_;  // of this worker's own parameters
  // Which parameters ("group0.parameter3") each shard has, the local one last.
  std::vector<std::vector<std::string>> names_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_H_
