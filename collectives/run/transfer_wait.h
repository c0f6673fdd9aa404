// TransferWait: reports a Send or Receive for which a thread waits long, as
// backends do of collective operations (collectives/diagnosis.h).

#ifndef WEFT_COLLECTIVES_RUN_TRANSFER_WAIT_H_
#define WEFT_COLLECTIVES_RUN_TRANSFER_WAIT_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/collectives/backend.h"
#include "weft/collectives/call_site.h"
#include "weft/collectives/diagnosis.h"

namespace weft::collectives {

// Each of several that one call waits for is reported by itself, as long as it
// is not there. One that is begun and not waited for is not reported: its rank
// may do something else meanwhile.
//
// Thread-safety: one thread at a time.
class TransferWait {
 public:
  struct Part {
    bool is_send = false;
    int peer = 0;  // -1: from any
    uint64_t tag = 0;
    std::function<bool()> is_done;
  };

  // `backend` must outlive it. The wait begins at `now`.
  TransferWait(Backend& backend, std::string group, CallSite site,
               std::vector<Part> parts, Instant now);

  // When OnTime has something to do next.
  Instant next() const { return std::min(ask_at_, reports_.due()); }
  void OnTime(Instant now);
  // The wait is over, with `status`: tells it, if it was reported.
  void End(Instant now, const absl::Status& status);

 private:
  std::string TextOf(const Part& part) const;
  std::string WhomOf(const Part& part) const;
  void EndReported(size_t part, Instant now, const absl::Status& status);

  Backend& backend_;
  const std::string group_;
  const CallSite site_;
  const std::vector<Part> parts_;
  WaitReports reports_;
  Instant ask_at_;
  std::vector<bool> is_reported_;  // and not over, by part
};

// moved.Wait(timeout), with reports.
template <typename T>
Result<T> AwaitMoved(Backend& backend, const std::string& group, CallSite site,
                     std::vector<TransferWait::Part> parts,
                     const Future<T>& moved, absl::Duration timeout) {
  if (backend.diagnosis() == nullptr || moved.IsReady()) {
    return moved.Wait(timeout);
  }
  Clock& clock = moved.driver().clock();
  Instant now = clock.Now();
  const Instant give_up = now + timeout;
  TransferWait wait(backend, group, site, std::move(parts), now);
  for (;;) {
    Result<T> result = moved.Wait(std::min(give_up, wait.next()) - now);
    now = clock.Now();
    if (moved.IsReady() || now >= give_up ||
        // This thread must not block.
        absl::IsFailedPrecondition(internal::StatusOf(result))) {
      // It may have come since that Wait.
      if (moved.IsReady()) result = *moved.Peek();
      wait.End(now, internal::StatusOf(result));
      return result;
    }
    wait.OnTime(now);
  }
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RUN_TRANSFER_WAIT_H_
