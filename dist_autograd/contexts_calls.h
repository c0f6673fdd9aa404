// How Contexts call peers; for the sources of this folder.

#ifndef WEFT_DIST_AUTOGRAD_CONTEXTS_CALLS_H_
#define WEFT_DIST_AUTOGRAD_CONTEXTS_CALLS_H_

#include <limits>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/retry_policy.h"

namespace weft::dist_autograd {

class Contexts::Use {
 public:
  explicit Use(Contexts* contexts) : contexts_(*contexts) {
    MutexLock lock(contexts_.mu_);
    has_agent_ = !contexts_.agent_has_ended_;
    if (has_agent_) ++contexts_.uses_;
  }
  ~Use() {
    if (!has_agent_) return;
    MutexLock lock(contexts_.mu_);
    --contexts_.uses_;
    contexts_.changed_.NotifyAll();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  explicit operator bool() const { return has_agent_; }

 private:
  Contexts& contexts_;
  bool has_agent_ = false;
};

template <typename F, typename... A>
auto Contexts::CallOnce(WorkerKey to, absl::Duration timeout, F function,
                        const A&... arguments) {
  using Reply =
      decltype(rpc::CallAsync(agent_.To(to, timeout), function, arguments...));
  const Use agent(this);
  if (!agent) {
    return Reply(MakeReady<typename Reply::value_type>(
        absl::CancelledError("the agent has ended")));
  }
  return rpc::CallAsync(agent_.To(to, timeout), function, arguments...);
}

// A partition outlasts a call, which the session gives up after
// AgentOptions::give_up_after. So what peers call this way may run twice.
template <typename F, typename... A>
auto Contexts::CallUntilAnswered(WorkerKey to, F function,
                                 const A&... arguments) {
  rpc::RetryPolicy policy;
  policy.max_attempts = std::numeric_limits<int>::max();
  policy.first_pause = absl::Milliseconds(50);
  policy.longest_pause = absl::Seconds(2);
  using Reply = decltype(rpc::CallAsync(agent_.To(to), function, arguments...));
  const Use agent(this);
  if (!agent) {
    return Reply(MakeReady<typename Reply::value_type>(
        absl::CancelledError("the agent has ended")));
  }
  return rpc::CallAsync(
      agent_.To(to, absl::InfiniteDuration()).WithRetry(policy), function,
      arguments...);
}

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CONTEXTS_CALLS_H_
