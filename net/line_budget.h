// LineBudget: so many lines of a log in a minute, so that what peers provoke
// fills no disk.

#ifndef WEFT_NET_LINE_BUDGET_H_
#define WEFT_NET_LINE_BUDGET_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"

namespace weft::net {

// Thread-safety: thread-safe.
class LineBudget {
 public:
  // `clock` must outlive it.
  LineBudget(const Clock& clock, int lines_per_minute)
      : clock_(clock),
        lines_per_minute_(lines_per_minute),
        minute_(clock.Now()) {}

  // Whether a line may be written now; if so, *not_logged is how many before
  // it could not.
  bool MayWrite(int64_t* not_logged) ABSL_LOCKS_EXCLUDED(mu_) {
    const Instant now = clock_.Now();
    MutexLock lock(mu_);
    if (now - minute_ >= absl::Minutes(1)) {
      minute_ = now;
      lines_ = 0;
    }
    if (lines_ >= lines_per_minute_) {
      ++not_logged_;
      return false;
    }
    ++lines_;
    *not_logged = std::exchange(not_logged_, 0);
    return true;
  }

 private:
  const Clock& clock_;
  const int lines_per_minute_;
  Mutex mu_;
  Instant minute_ ABSL_GUARDED_BY(mu_);
  int lines_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t not_logged_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_LINE_BUDGET_H_
