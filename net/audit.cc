#include "weft/net/audit.h"

#include <cstdint>
#include <string>

namespace weft::net {

Audit::Audit(Options options)
    : telemetry_(telemetry::OrSilent(options.telemetry)),
      lines_(options.clock != nullptr ? *options.clock : SteadyClock(),
             options.lines_per_minute) {}

void Audit::Refused(absl::string_view kind, absl::string_view who,
                    absl::string_view what, absl::string_view why) {
  telemetry_.metrics()
      .CounterFor("weft_net_refused_total", {{"kind", std::string(kind)}},
                  "What was refused at the edge")
      .Increment();
  int64_t not_logged = 0;
  if (!lines_.MayWrite(&not_logged)) return;
  WEFT_LOG(telemetry_.logger(), Warning, "refused")
      .With("kind", kind)
      .With("who", who)
      .With("what", what)
      .With("why", why)
      .With("not_logged", not_logged);
}

}  // namespace weft::net
