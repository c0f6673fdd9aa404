// RetryPolicy: making a call again when its worker is gone.
//
//   WEFT_RPC_IDEMPOTENT(Lookup);    // in place of WEFT_RPC: may run twice
//   rpc::Target ps = agent->To("ps0").WithRetry(rpc::RetryPolicy());
//
// Within a session nothing of this is needed: a request is sent again, under
// the same id, until it is answered, and its function runs once. This is for
// when the session itself has ended. Each attempt asks the directory anew: by
// name, so that a worker that is away when the target or the call is made, and
// a later incarnation of it, are found. A target that is pinned to one
// incarnation stays so, and its calls end when that is gone or shuts down.

#ifndef WEFT_RPC_SESSION_RETRY_POLICY_H_
#define WEFT_RPC_SESSION_RETRY_POLICY_H_

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace weft::rpc {

// A call is made again after kUnavailable with a Reason, or where the directory
// does not know the worker (yet); never after an error of the function. One
// that may have run (OutcomeUnknown) is made again only if its function is
// declared idempotent, and if it fails then, that is still so. All attempts
// share the call's deadline.
struct RetryPolicy {
  int max_attempts = 5;  // the first included
  // Before the second attempt; each later pause is `growth` times as long.
  absl::Duration first_pause = absl::Milliseconds(100);
  double growth = 2;
  absl::Duration longest_pause = absl::Seconds(5);
};

// kInvalidArgument for numbers that make no sense.
absl::Status Validate(const RetryPolicy& policy);

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_RETRY_POLICY_H_
