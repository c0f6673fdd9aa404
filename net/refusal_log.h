// RefusalLog: one line of the log for each refusal at the edge: who wanted
// what, and why it was not given.
//
// A flood of refusals must not fill a disk: beyond `lines_per_minute` they are
// only counted, in weft_net_refused_total and in the field `not_logged` of the
// next line. So is the same one over and over, but for the 2nd, 4th, 8th and so
// on, until an hour has passed without it.

#ifndef WEFT_NET_REFUSAL_LOG_H_
#define WEFT_NET_REFUSAL_LOG_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "weft/base/clock.h"
#include "weft/base/mutex.h"
#include "weft/net/line_budget.h"
#include "weft/telemetry/telemetry.h"

namespace weft::net {

// Thread-safety: thread-safe.
class RefusalLog {
 public:
  struct Options {
    telemetry::Telemetry* telemetry = nullptr;  // must outlive it
    const Clock* clock = nullptr;               // null: SteadyClock()
    int lines_per_minute = 60;
  };

  explicit RefusalLog(Options options);
  explicit RefusalLog(telemetry::Telemetry& telemetry)
      : RefusalLog(Options{&telemetry, nullptr, 60}) {}

  // `kind` is of a small set: connection, certificate, method, request,
  // function, name, coordinator, descriptors, http2_frames, rpc_limits, or the
  // option that names a limit.
  void Refused(absl::string_view kind, absl::string_view who,
               absl::string_view what, absl::string_view why)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Seen {
    int64_t times = 0;
    Instant last;
  };
  bool IsNews(std::string refusal) ABSL_LOCKS_EXCLUDED(mu_);

  telemetry::Telemetry& telemetry_;
  const Clock& clock_;
  LineBudget lines_;
  Mutex mu_;
  std::map<std::string, Seen> seen_ ABSL_GUARDED_BY(mu_);
  std::atomic<int64_t> repeated_{0};  // and not logged
};

}  // namespace weft::net

#endif  // WEFT_NET_REFUSAL_LOG_H_
