#include "weft/dist_autograd/receive_node.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/error.h"

namespace weft::dist_autograd {

void ReceiveNode::Apply(BackwardCall& call) {
  auto* const store = dynamic_cast<PassStore*>(call.pass().store);
  if (store == nullptr) {
    throw Error(absl::FailedPreconditionError(absl::StrCat(
        "the graph goes on at worker ", message_.producer.ToString(),
        ", which made ", message_.ToString(), " of ", context_.ToString(),
        ": use dist_autograd::Scope::Backward, not a local one")));
  }
  std::vector<Gradient> slots(call.outputs.begin(), call.outputs.end());
  store->SendGradients(context_, message_, std::move(slots));
}

}  // namespace weft::dist_autograd
