// The functions by which the workers of a pass speak with each other. Every
// worker that links dist_autograd serves them.

#ifndef WEFT_DIST_AUTOGRAD_PASS_CALLS_H_
#define WEFT_DIST_AUTOGRAD_PASS_CALLS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/base/future.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/context_codec.h"
#include "weft/dist_autograd/core/message_set.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/rpc/codec/worker_codec.h"
#include "weft/tensor/tensor.h"

namespace weft::dist_autograd::internal {

// PREPARE: ends once the callee's part is done (DONE), or why it failed.
Future<void> TakePart(rpc::CallContext& context, ContextId id, PassId pass,
                      const MessageIntervals& live,
                      const std::vector<WorkerKey>& participants, bool retain);
// GRAD: the gradients of the slots of one message; absent ones have none.
Future<void> TakeGradients(rpc::CallContext& context, ContextId id, PassId pass,
                           uint64_t message,
                           const std::vector<std::optional<Tensor>>& slots);
// COMMIT or ABORT: ends once it is applied.
Future<void> TakeOutcome(rpc::CallContext& context, ContextId id, PassId pass,
                         int64_t code, const std::string& message);
// From another participant, once the root is gone: the state here.
Future<int64_t> AskOutcome(rpc::CallContext& context, ContextId id,
                           PassId pass);
// The context is of no use any more.
void ReleaseContext(rpc::CallContext& context, ContextId id);

}  // namespace weft::dist_autograd::internal

#endif  // WEFT_DIST_AUTOGRAD_PASS_CALLS_H_
