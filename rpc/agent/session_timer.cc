#include "weft/rpc/agent/session_timer.h"

#include <utility>

namespace weft::rpc {

void SessionTimer::Set(Instant when, std::function<void()> tick) {
  std::optional<TimerId> former;
  {
    MutexLock lock(mu_);
    if (has_stopped_) return;
    former.swap(timer_);
  }
  if (former.has_value()) transport_.CancelTimer(*former);
  const TimerId timer = transport_.RunAt(when, std::move(tick));
  {
    MutexLock lock(mu_);
    if (!has_stopped_) {
      timer_ = timer;
      return;
    }
  }
  transport_.CancelTimer(timer);  // stopped meanwhile
}

void SessionTimer::Stop() {
  std::optional<TimerId> timer;
  {
    MutexLock lock(mu_);
    has_stopped_ = true;
    timer.swap(timer_);
  }
  if (timer.has_value()) transport_.CancelTimer(*timer);
}

}  // namespace weft::rpc
