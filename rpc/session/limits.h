// Limits: what one peer may ask of a worker at a time, and how many peers it
// remembers.

#ifndef WEFT_RPC_SESSION_LIMITS_H_
#define WEFT_RPC_SESSION_LIMITS_H_

#include <cstdint>

#include "absl/time/time.h"

namespace weft::rpc {

// Callers keep to them by waiting for credit; who does not is refused with
// kResourceExhausted. Bytes are those of requests in progress and of replies
// whose receipt is not acknowledged.
struct Limits {
  // Calls whose function waits for another call hold their credit meanwhile:
  // with all of it held, the call that would end them waits too (docs/rpc.md,
  // "Functions that wait"). Giving calls up, and calls that functions make,
  // need none.
  int64_t calls = 1024;
  // How many of `calls` may be streams. The rest is kept for other calls, so
  // that open streams do not hold up the call that would end them.
  int64_t most_streams() const { return calls - calls / 8; }
  int64_t bytes = int64_t{256} << 20;
  // Calls made by handlers while they serve one are outside `calls`, so that a
  // chain of workers cannot starve itself; beyond this many, or `bytes` of
  // their own, they fail at once.
  int64_t nested_calls = 4096;
  // What it may hold here at a time: objects and results, of whoever made them.
  int64_t objects = 4096;
  // The streams that it may have open here at a time.
  int64_t streams = 4096;
  // Most peers with a session here. Beyond it the oldest idle ones (neither
  // connected nor with a call that runs) are forgotten, workers that the
  // directory knows last; of one name others are few in any case. If they come
  // back, what they had sent ends with
  // kUnavailable, Reason::kForgotten and OutcomeUnknown; what those hold here
  // that are no members of the job is gone.
  int64_t sessions = 1024;
  // The one that is about what this worker asks: the longest time-out of the
  // calls that it makes; longer ones are cut, infinite ones too. What peers ask
  // has their time-outs.
  absl::Duration timeout = absl::InfiniteDuration();
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_SESSION_LIMITS_H_
