// CallRateLimiter: limits the calls of each peer that are refused or reset.
// Such a call costs as much as any other, so a peer with very many of them
// delays the calls of others.

#ifndef WEFT_NET_EDGE_CALL_RATE_LIMITER_H_
#define WEFT_NET_EDGE_CALL_RATE_LIMITER_H_

#include <cstddef>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::net {

// The generic cell rate algorithm (ITU-T I.371): a bucket of `at_once` calls
// that fills in four seconds. Thread-safety: thread-safe.
class CallRateLimiter {
 public:
  explicit CallRateLimiter(int at_once) : at_once_(at_once) {}

  // Counts one call of `peer`; false if that is more than it may have.
  bool Allows(const std::string& peer, Instant now) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Forget(Instant now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int at_once_;
  Mutex mu_;
  // When each will have its whole allowance again; absent: it has.
  absl::flat_hash_map<std::string, Instant> whole_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::net

#endif  // WEFT_NET_EDGE_CALL_RATE_LIMITER_H_
