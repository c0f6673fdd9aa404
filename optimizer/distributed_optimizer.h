// DistributedOptimizer: updates parameters where they live, from the gradients
// of a distributed pass.
//
//   // at each owner, for each parameter:
//   rref::RRef<Variable> w = rref::MakeLocal(agent,
//   std::make_shared<Variable>(w0));
//   // at the trainer, to which the references came as a result:
//   auto optimizer = DistributedOptimizer::Create(agent, SgdOptions{0.1}, all);
//   dist_autograd::Scope pass(*contexts);
//   ...
//   WEFT_RETURN_IF_ERROR(pass.Backward(loss));
//   WEFT_RETURN_IF_ERROR(optimizer->Step(pass));
//
// A step has two phases: each owner checks its gradients, and only if all can
// be applied does each apply them. So a gradient that is not finite, a context
// that was released or an owner that is gone changes no weight anywhere. An
// owner that dies between the phases leaves the others updated: Step says so.
//
// A parameter without a gradient in the context is left alone, as by Optimizer.
// Each owner keeps the state of its parameters; it is the same as that of a
// local Optimizer over them.

#ifndef WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_H_
#define WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/autograd/variable.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/scope.h"
#include "weft/optimizer/optimizer.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/proto/optimizer.pb.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call_context.h"
#include "weft/rref/rref.h"

namespace weft::optimizer {

// The part of one owner: an Optimizer over parameters that live there.
//
// Thread-safety: thread-safe. Steps of several trainers run one at a time at
// each owner, in no order between owners (Hogwild).
class OptimizerShard {
 public:
  // What cannot be optimized fails each call.
  OptimizerShard(const v1::RuleSpec& rule,
                 const std::vector<rref::RRef<Variable>>& parameters);

  // How many of the parameters have a gradient in the context. Fails as
  // Optimizer::Check, gradients that are not finite included; kNotFound or
  // kFailedPrecondition if the context has no part here or was released.
  absl::StatusOr<int64_t> Check(rpc::CallContext& call,
                                const dist_autograd::ContextId& id);
  absl::Status Apply(rpc::CallContext& call,
                     const dist_autograd::ContextId& id);

  // The same without a call, for the owner itself.
  absl::StatusOr<int64_t> CheckIn(const dist_autograd::Contexts& contexts,
                                  const dist_autograd::ContextId& id)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ApplyIn(const dist_autograd::Contexts& contexts,
                       const dist_autograd::ContextId& id)
      ABSL_LOCKS_EXCLUDED(mu_);
  const absl::Status& status() const { return status_; }

 private:
  absl::Status Begin(const v1::RuleSpec& rule,
                     const std::vector<rref::RRef<Variable>>& parameters);

  absl::Status status_;  // why there is no optimizer
  std::vector<Variable> variables_;
  Mutex mu_;
  std::unique_ptr<Optimizer> optimizer_ ABSL_GUARDED_BY(mu_);
};

// Thread-safety: thread-safe.
class DistributedOptimizer {
 public:
  // Groups the parameters by owner and makes an optimizer at each, all at once.
  // kInvalidArgument for no parameters, an empty reference, or what
  // Optimizer::Create refuses, with the owner's name; else as a call fails.
  static absl::StatusOr<std::unique_ptr<DistributedOptimizer>> Create(
      rpc::Agent& agent, const RuleOptions& rule,
      const std::vector<rref::RRef<Variable>>& parameters);

  // Updates all parameters by the gradients in the context of `pass`.
  // kFailedPrecondition if no parameter has one (was there a Backward?);
  // kInvalidArgument names a gradient that is not finite; then nothing changed.
  absl::Status Step(const dist_autograd::Scope& pass);

  int owners() const {
    return static_cast<int>(shards_.size()) + (local_ != nullptr);
  }

 private:
  DistributedOptimizer() = default;

  std::vector<rref::RRef<OptimizerShard>> shards_;
  std::unique_ptr<OptimizerShard> local_;  // of this worker's own parameters
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_DISTRIBUTED_OPTIMIZER_H_
