#include "weft/net/audit.h"

#include <string>
#include <utility>

namespace weft::net {

Audit::Audit(Options options)
    : telemetry_(telemetry::OrSilent(options.telemetry)),
      clock_(options.clock != nullptr ? *options.clock : SteadyClock()),
      lines_per_minute_(options.lines_per_minute),
      minute_(clock_.Now()) {}

void Audit::Refused(absl::string_view kind, absl::string_view who,
                    absl::string_view what, absl::string_view why) {
  telemetry_.metrics()
      .CounterFor("weft_net_refused_total", {{"kind", std::string(kind)}},
                  "What was refused at the edge")
      .Increment();
  int64_t not_logged = 0;
  if (!MayWrite(&not_logged)) return;
  WEFT_LOG(telemetry_.logger(), Warning, "refused")
      .With("kind", kind)
      .With("who", who)
      .With("what", what)
      .With("why", why)
      .With("not_logged", not_logged);
}

bool Audit::MayWrite(int64_t* not_logged) {
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

}  // namespace weft::net
