// FirstFailure: why a device fails for good, kept so that each later call says
// so.

#ifndef WEFT_DEVICE_FIRST_FAILURE_H_
#define WEFT_DEVICE_FIRST_FAILURE_H_

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/check.h"
#include "weft/base/mutex.h"

namespace weft::device {

// Thread-safety: thread-safe.
class FirstFailure {
 public:
  // Whether Set has been called. One load: for the way of each call.
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }

  // The first call wins. REQUIRES: !status.ok().
  void Set(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    WEFT_CHECK(!status.ok());
    MutexLock lock(mu_);
    if (!first_.ok()) return;
    first_ = status;
    failed_.store(true, std::memory_order_release);
  }

  // The cause, or OK.
  absl::Status Get() const ABSL_LOCKS_EXCLUDED(mu_) {
    if (!has_failed()) return absl::OkStatus();
    MutexLock lock(mu_);
    return first_;
  }

  // What a call for `operation` ("cuda:0: Allocate(64 bytes)") returns now: the
  // code and the words of the cause. REQUIRES: has_failed().
  absl::Status Refuse(absl::string_view operation) const
      ABSL_LOCKS_EXCLUDED(mu_) {
    const absl::Status first = Get();
    return absl::Status(first.code(),
                        absl::StrCat(operation, ": the device failed before: ",
                                     first.message()));
  }

 private:
  std::atomic<bool> failed_{false};
  mutable Mutex mu_;
  absl::Status first_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_FIRST_FAILURE_H_
