// How Contexts call peers; for the sources of this folder.

#ifndef WEFT_DIST_AUTOGRAD_CONTEXTS_CALLS_H_
#define WEFT_DIST_AUTOGRAD_CONTEXTS_CALLS_H_

#include <limits>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/mutex.h"
#include "weft/dist_autograd/contexts.h"
#include "weft/rpc/agent.h"
#include "weft/rpc/call.h"
#include "weft/rpc/session/failure.h"
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

// Whether the callee, which has not answered, may do so if it is called again.
inline bool MayComeLater(const absl::Status& answer) {
  const rpc::Reason reason = rpc::ReasonOf(answer);
  return absl::IsDeadlineExceeded(answer) ||
         reason == rpc::Reason::kUnreachable ||
         reason == rpc::Reason::kForgotten;
}
template <typename T>
bool MayComeLater(const absl::StatusOr<T>& answer) {
  return MayComeLater(answer.status());
}

// A partition outlasts a call, which the session gives up after
// AgentOptions::give_up_after; a connection that is silent at one end keeps a
// call without a deadline for ever. So what peers call this way may run twice.
template <typename F, typename Done, typename... A>
void Contexts::CallUntilAnswered(WorkerKey to, F function, Done done,
                                 const A&... arguments) {
  constexpr absl::Duration kAttempt = absl::Seconds(10);
  rpc::RetryPolicy policy;
  policy.max_attempts = std::numeric_limits<int>::max();
  policy.first_pause = absl::Milliseconds(50);
  policy.longest_pause = absl::Seconds(2);
  using Reply = decltype(rpc::CallAsync(agent_.To(to), function, arguments...));
  using Answer = Result<typename Reply::value_type>;
  const Use agent(this);
  if (!agent) return done(Answer(absl::CancelledError("the agent has ended")));
  rpc::CallAsync(agent_.To(to, kAttempt).WithRetry(policy), function,
                 arguments...)
      .OnReady([weak = weak_from_this(), to, function, done,
                arguments...](const Answer& answer) {
        const std::shared_ptr<Contexts> all = weak.lock();
        if (all == nullptr || !MayComeLater(answer)) return done(answer);
        all->CallUntilAnswered(to, function, done, arguments...);
      });
}

}  // namespace weft::dist_autograd

#endif  // WEFT_DIST_AUTOGRAD_CONTEXTS_CALLS_H_
