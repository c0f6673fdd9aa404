// OpenCalls: the requests of one worker to its coordinator that are in flight,
// which all end when the worker is out of its job.

#ifndef WEFT_RENDEZVOUS_CLIENT_OPEN_CALLS_H_
#define WEFT_RENDEZVOUS_CLIENT_OPEN_CALLS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/base/check.h"
#include "weft/base/future.h"
#include "weft/base/mutex.h"

namespace weft::rendezvous {

// Thread-safety: thread-safe.
class OpenCalls {
 public:
  // Ends the requests in flight; those that come later end at once. Only the
  // first reason counts. REQUIRES: !why.ok().
  void End(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_) {
    WEFT_CHECK(!why.ok());
    std::map<uint64_t, Future<std::string>> open;
    {
      MutexLock lock(mu_);
      if (!why_.ok()) return;
      why_ = why;
      open.swap(open_);
    }
    for (const auto& [id, call] : open) call.Cancel(why);
  }

  // Ok until End, then its reason.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    return why_;
  }

  // The result of `call`; status() if that is an error before there is one.
  absl::StatusOr<std::string> Await(const Future<std::string>& call,
                                    absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mu_) {
    uint64_t id = 0;
    {
      MutexLock lock(mu_);
      if (!why_.ok()) return why_;
      id = ++last_id_;
      open_.emplace(id, call);
    }
    absl::StatusOr<std::string> answer = call.Wait(timeout);
    MutexLock lock(mu_);
    open_.erase(id);
    if (!answer.ok() && !why_.ok()) return why_;
    return answer;
  }

 private:
  mutable Mutex mu_;
  absl::Status why_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, Future<std::string>> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_OPEN_CALLS_H_
