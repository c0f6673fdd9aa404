// The functions by which the workers of a pass speak with each other. Every
// worker that links dist_autograd serves them.

#ifndef WEFT_DIST_AUTOGRAD_PASS_CALLS_H_
#define WEFT_DIST_AUTOGRAD_PASS_CALLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/autograd/gradient.h"
#include "weft/base/future.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/context_codec.h"
#include "weft/dist_autograd/core/message_set.h"
#include "weft/dist_autograd/gradient_codec.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/worker_codec.h"

namespace weft::dist_autograd {

// What the root asks of a participant.
struct PassRequest {
  // The callee's messages that the pass goes through, ascending; up to
  // kLastMessage: all that it has sent.
  MessageIntervals live;
  std::vector<WorkerKey> participants;
  bool retain = false;
  bool deterministic = false;
};

// How long a control call waits for its answer before it is made again.
inline constexpr absl::Duration kControlAttempt = absl::Seconds(10);

// kFailedPrecondition: what to do at a worker without Contexts.
absl::Status NoContexts(const rpc::Agent& agent);

namespace internal {

// PREPARE: ends once the callee's part is done (DONE), with the number of its
// live messages, or why it failed.
Future<uint64_t> TakePart(rpc::CallContext& context, ContextId id, PassId pass,
                          const MessageIntervals& live,
                          const std::vector<WorkerKey>& participants,
                          bool retain, bool deterministic);
// GRAD, from the worker to which the message went: the gradients of its slots;
// absent ones are undefined. kPermissionDenied from another worker;
// kInvalidArgument if they are not of the slots' shapes and dtypes.
Future<void> TakeGradients(rpc::CallContext& context, ContextId id, PassId pass,
                           uint64_t message,
                           const std::vector<Gradient>& slots);
// To the root, from a participant that is done: a gradient that it sent was not
// taken, so that the pass must not be committed. `code` is not OK's.
// kPermissionDenied from a worker that has no part in the pass; kNotFound once
// it has ended.
absl::Status FailPass(rpc::CallContext& context, ContextId id, PassId pass,
                      int64_t code, const std::string& message);
// COMMIT or ABORT: ends once it is applied.
Future<void> TakeOutcome(rpc::CallContext& context, ContextId id, PassId pass,
                         int64_t code, const std::string& message);
// The same, again: the answer to the first was lost with its session.
Future<void> RepeatOutcome(rpc::CallContext& context, ContextId id, PassId pass,
                           int64_t code, const std::string& message);
// From another participant, once the root is gone. Returns the state of the
// pass here.
Future<int64_t> AskOutcome(rpc::CallContext& context, ContextId id,
                           PassId pass);
// From the root, at the deadline. Returns what the callee's part waits for, one
// line for each message.
Future<std::vector<std::string>> AskAwaited(rpc::CallContext& context,
                                            ContextId id, PassId pass);
// From an agent to itself: a call that ends with the pass. Its time-out is the
// deadline.
Future<void> AwaitEnd(rpc::CallContext& context, ContextId id, PassId pass);

// The ends of contexts; contexts.cc has them.

// From the creator: the context is of no use any more. kPermissionDenied from
// anybody else.
absl::Status ReleaseContext(rpc::CallContext& context, ContextId id);
// To the creator: the caller has part in the context and wants to be notified
// of its end. kFailedPrecondition or kNotFound if it has ended;
// kInvalidArgument at a worker that has not created it.
absl::Status JoinContext(rpc::CallContext& context, ContextId id);

}  // namespace internal
}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_PASS_CALLS_H_
