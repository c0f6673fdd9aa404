#include "weft/rpc/extension/weak_agent.h"

#include <limits>

#include "weft/rpc/session/failure.h"
#include "weft/rpc/session/retry_policy.h"

namespace weft::rpc::extension {

bool WeakAgent::BeginUse() const {
  MutexLock lock(mu_);
  if (has_ended_) return false;
  ++uses_;
  return true;
}

void WeakAgent::EndUse() const {
  MutexLock lock(mu_);
  if (--uses_ == 0 && has_ended_) unused_.NotifyAll();
}

void WeakAgent::End() {
  MutexLock lock(mu_);
  has_ended_ = true;
  while (uses_ > 0) unused_.Wait(mu_);
}

std::string WeakAgent::NameOf(WorkerKey worker) const {
  if (worker == key_) return name_;
  const Use agent(*this);
  return agent ? agent->To(worker).name() : worker.ToString();
}

absl::Status WeakAgent::Ended() {
  return absl::CancelledError("the agent has ended");
}

Target WeakAgent::Repeated(const Target& target) {
  RetryPolicy policy;
  policy.max_attempts = std::numeric_limits<int>::max();
  policy.first_pause = absl::Milliseconds(50);
  policy.longest_pause = absl::Seconds(2);
  return target.WithRetry(policy);
}

bool WeakAgent::MayComeLater(const absl::Status& answer) {
  const Reason reason = ReasonOf(answer);
  return absl::IsDeadlineExceeded(answer) || reason == Reason::kUnreachable ||
         reason == Reason::kForgotten;
}

}  // namespace weft::rpc::extension
