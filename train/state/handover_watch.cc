#include "weft/train/state/handover_watch.h"

#include <utility>

#include "weft/base/start_thread.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"

namespace weft::train {

absl::StatusOr<std::unique_ptr<HandoverWatch>> HandoverWatch::Start(
    absl::Duration patience, OnHang on_hang) {
  std::unique_ptr<HandoverWatch> watch(
      new HandoverWatch(patience, std::move(on_hang)));
  WEFT_ASSIGN_OR_RETURN(watch->thread_,
                        StartThread("whether a newcomer hangs",
                                    [own = watch.get()] { own->Watch(); }));
  return watch;
}

HandoverWatch::~HandoverWatch() {
  {
    MutexLock lock(mu_);
    is_over_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void HandoverWatch::Works(const std::string& what) {
  const Instant now = SteadyClock().Now();
  MutexLock lock(mu_);
  what_ = what;
  // Its thread looks again when that is over at the latest.
  if (since_.is_infinite()) changed_.NotifyAll();
  since_ = now;
}

void HandoverWatch::AwaitsOthers() {
  MutexLock lock(mu_);
  since_ = Instant::Infinite();
}

void HandoverWatch::Watch() {
  std::string what;
  {
    MutexLock lock(mu_);
    for (;;) {
      if (is_over_) return;
      if (since_.is_infinite()) {
        changed_.Wait(mu_);
        continue;
      }
      const absl::Duration left = since_ + patience_ - SteadyClock().Now();
      if (left <= absl::ZeroDuration()) break;
      changed_.WaitUntil(mu_, SteadyDeadline(left));
    }
    what = what_;
  }
  on_hang_(what);
}

}  // namespace weft::train
