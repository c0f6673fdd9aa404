#include "weft/dist_autograd/scope.h"

#include <utility>

#include "weft/autograd/leaf.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/recording.h"
#include "weft/rpc/class.h"

namespace weft {

WEFT_RPC_METHOD(Variable, Detach);  // for ValueOf

}  // namespace weft

namespace weft::dist_autograd {

absl::StatusOr<Scope> Scope::Within(const rpc::CallContext& call) {
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Contexts> contexts,
                        Contexts::Of(call.agent()));
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Context> context, ContextOf(call));
  return Scope(std::move(contexts), std::move(context));
}

rpc::Target Scope::Recorded(const rpc::Target& target,
                            std::string function) const {
  return target.WithAttachment(
      kRecordedKind, [context = context_, function = std::move(function)](
                         const rpc::CodecContext& message) {
        return StageRequest(context, message.peer, function);
      });
}

Gradient Scope::GradientOf(const Variable& leaf) const {
  if (!leaf.requires_grad() || !leaf.is_leaf()) return Gradient();
  return context_->GradientOf(*leaf.leaf());
}

Future<Tensor> ValueOfAsync(const rref::RRef<Variable>& variable) {
  return rref::CallAsync(variable, &Variable::Detach)
      .Then([](const Variable& value) { return value.value(); });
}

Result<Tensor> ValueOf(const rref::RRef<Variable>& variable) {
  return rref::WaitThrough(variable, [&] { return ValueOfAsync(variable); });
}

absl::StatusOr<Gradient> GradientOf(const rpc::CallContext& call, ContextId id,
                                    const Variable& leaf) {
  if (!leaf.requires_grad() || !leaf.is_leaf()) {
    return absl::InvalidArgumentError(
        "GradientOf: the variable is no leaf that requires a gradient");
  }
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Contexts> contexts,
                        Contexts::Of(call.agent()));
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<Context> context,
                        contexts->Find(id));
  return context->GradientOf(*leaf.leaf());
}

}  // namespace weft::dist_autograd
