// CallUntil: one request to the coordinator, repeated while the network or the
// coordinator's restart may have swallowed it.

#ifndef WEFT_RENDEZVOUS_CLIENT_COORDINATOR_CALL_H_
#define WEFT_RENDEZVOUS_CLIENT_COORDINATOR_CALL_H_

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/base/future.h"
#include "weft/rendezvous/client/open_calls.h"
#include "weft/rendezvous/coordinator_link.h"
#include "weft/rendezvous/wire.h"

namespace weft::rendezvous {

// What the coordinator may hold one call, and what its answer takes besides.
inline constexpr absl::Duration kHold = absl::Seconds(5);
inline constexpr absl::Duration kAnswerTime = absl::Seconds(2);

// Blocks the caller for so long.
inline void PauseFor(TimerSource& timers, absl::Duration time) {
  auto [promise, pause] = MakePromise<void>(timers.driver());
  timers.RunAfter(
      time, [p = std::move(promise)]() mutable { p.Set(absl::OkStatus()); });
  (void)pause.Wait(time + absl::Seconds(1));
}

// Calls until there is an answer, `deadline` has passed, or `calls` end, whose
// reason is returned then. `make(hold)` makes the request, which the
// coordinator may hold for `hold`. The request must be one that may be
// repeated.
template <typename Reply, typename Make>
absl::StatusOr<Reply> CallUntil(CoordinatorLink& link, TimerSource& timers,
                                absl::string_view method, Instant deadline,
                                Make make, OpenCalls& calls) {
  const Clock& clock = timers.driver().clock();
  for (;;) {
    // Before the request is made: the coordinator may be there no more.
    if (absl::Status over = calls.status(); !over.ok()) return over;
    const absl::Duration left =
        std::max(deadline - clock.Now(), absl::ZeroDuration());
    const absl::Duration hold = std::min(left, kHold);
    const absl::Duration timeout = hold + kAnswerTime;
    const absl::StatusOr<std::string> answer = calls.Await(
        link.Call(method, make(hold).SerializeAsString(), timeout), timeout);
    if (answer.ok()) {
      Reply reply;
      if (reply.ParseFromString(*answer)) return reply;
      return BadAnswer(link.address(), method, "it cannot be read");
    }
    if (absl::Status over = calls.status(); !over.ok()) return over;
    const absl::Status& status = answer.status();
    const bool may_pass = absl::IsUnavailable(status) ||
                          absl::IsDeadlineExceeded(status) ||
                          absl::IsCancelled(status) || absl::IsUnknown(status);
    if (!may_pass) return status;
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(method, ": the coordinator at ", link.address(),
                       " did not answer in time: ", status.message()));
    }
    PauseFor(timers, absl::Milliseconds(100));
  }
}

template <typename Reply, typename Make>
absl::StatusOr<Reply> CallUntil(CoordinatorLink& link, TimerSource& timers,
                                absl::string_view method, Instant deadline,
                                Make make) {
  OpenCalls calls;  // which nobody ends
  return CallUntil<Reply>(link, timers, method, deadline, std::move(make),
                          calls);
}

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_CLIENT_COORDINATOR_CALL_H_
