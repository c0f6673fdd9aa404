// How References make the calls of their protocol.

#ifndef WEFT_RREF_CONTROL_CALLS_H_
#define WEFT_RREF_CONTROL_CALLS_H_

#include <limits>

#include "absl/time/time.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/retry_policy.h"

namespace weft::rref::internal {

// A control call is made again, to the same incarnation, until it is answered
// or the peer is gone: a partition outlasts a call, which the session gives up
// after AgentOptions::give_up_after. So what peers call may run twice.
inline rpc::Target UntilAnswered(const rpc::Target& target) {
  rpc::RetryPolicy policy;
  policy.max_attempts = std::numeric_limits<int>::max();
  policy.first_pause = absl::Milliseconds(50);
  policy.longest_pause = absl::Seconds(2);
  return target.WithTimeout(absl::InfiniteDuration()).WithRetry(policy);
}

}  // namespace weft::rref::internal

#endif  // WEFT_RREF_CONTROL_CALLS_H_
