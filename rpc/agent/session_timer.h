// SessionTimer: the one time at which a session wants to look again.

#ifndef WEFT_RPC_AGENT_SESSION_TIMER_H_
#define WEFT_RPC_AGENT_SESSION_TIMER_H_

#include <functional>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/transport/transport.h"

namespace weft::rpc {

// Thread-safety: thread-safe. `transport` must outlive it.
class SessionTimer {
 public:
  explicit SessionTimer(transport::Transport& transport)
      : transport_(transport) {}

  // Runs `tick` at `when`, in place of what was set before.
  void Set(Instant when, std::function<void()> tick) ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is set any more. One that runs already goes on.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using TimerId = transport::Transport::TimerId;

  transport::Transport& transport_;
  Mutex mu_;
  std::optional<TimerId> timer_ ABSL_GUARDED_BY(mu_);
  bool has_stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace weft::rpc

#endif  // WEFT_RPC_AGENT_SESSION_TIMER_H_
