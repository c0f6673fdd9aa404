// TimedLock: a MutexLock that can tell how long its thread waited for the
// mutex.

#ifndef WEFT_PS_CORE_TIMED_LOCK_H_
#define WEFT_PS_CORE_TIMED_LOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::ps {

class ABSL_SCOPED_LOCKABLE TimedLock {
 public:
  // Sets `waited` to the time that it took to get `mu`; null: the clock is not
  // read.
  TimedLock(Mutex& mu, absl::Duration* waited) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu)
      : mu_(mu) {
    const Instant began = waited == nullptr ? Instant() : SteadyClock().Now();
    mu_.Lock();
    if (waited != nullptr) *waited = SteadyClock().Now() - began;
  }
  ~TimedLock() ABSL_UNLOCK_FUNCTION() { mu_.Unlock(); }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;

 private:
  Mutex& mu_;
};

}  // namespace weft::ps

#endif  // WEFT_PS_CORE_TIMED_LOCK_H_
