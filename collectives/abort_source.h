// AbortSource: ends process groups for a reason that lies outside of them, such
// as that their worker is out of its job.

#ifndef WEFT_COLLECTIVES_ABORT_SOURCE_H_
#define WEFT_COLLECTIVES_ABORT_SOURCE_H_

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"
#include "weft/base/reworded.h"
#include "weft/collectives/backend.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class AbortSource {
 public:
  // Aborts every group that was made with this source (GroupOptions) or from
  // such a group, and each that is made later: its operations end with
  // `reason`, on every rank, after the number of this rank. Only the first
  // reason counts. REQUIRES: !reason.ok(), and a code that breaks a group.
  void Abort(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_) {
    WEFT_CHECK(!reason.ok());
    MutexLock lock(mu_);
    if (!reason_.ok()) return;
    reason_ = reason;
    // With the lock held, since a backend may end once it is removed.
    for (Backend* backend : backends_) AbortOne(*backend);
  }

  // OK: nothing has aborted them.
  absl::Status reason() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return reason_;
  }

  // `backend` must live until it is removed.
  void Add(Backend& backend) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    backends_.insert(&backend);
    if (!reason_.ok()) AbortOne(backend);
  }
  void Remove(Backend& backend) ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    backends_.erase(&backend);
  }

 private:
  void AbortOne(Backend& backend) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    backend.Abort(Reworded(reason_, absl::StrCat("rank ", backend.rank(), ": ",
                                                 reason_.message())));
  }

  mutable Mutex mu_;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  std::set<Backend*> backends_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ABORT_SOURCE_H_
