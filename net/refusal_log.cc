#include "weft/net/refusal_log.h"

#include <utility>

#include "absl/strings/str_join.h"

namespace weft::net {
namespace {

constexpr size_t kMostSeen = 256;
constexpr absl::Duration kForgetAfter = absl::Hours(1);

}  // namespace

RefusalLog::RefusalLog(Options options)
    : telemetry_(telemetry::OrSilent(options.telemetry)),
      clock_(options.clock != nullptr ? *options.clock : SteadyClock()),
      lines_(clock_, options.lines_per_minute) {}

bool RefusalLog::IsNews(std::string refusal) {
  const Instant now = clock_.Now();
  MutexLock lock(mu_);
  if (seen_.size() >= kMostSeen) seen_.clear();
  Seen& seen = seen_[std::move(refusal)];
  if (now - seen.last > kForgetAfter) seen.times = 0;
  seen.last = now;
  ++seen.times;
  return (seen.times & (seen.times - 1)) == 0;
}

void RefusalLog::Refused(absl::string_view kind, absl::string_view who,
                         absl::string_view what, absl::string_view why) {
  telemetry_.metrics()
      .CounterFor("weft_net_refused_total", {{"kind", std::string(kind)}},
                  "What was refused at the edge")
      .Increment();
  if (!IsNews(absl::StrJoin({kind, who, what, why}, "\n"))) {
    ++repeated_;
    return;
  }
  int64_t not_logged = 0;
  if (!lines_.MayWrite(&not_logged)) return;
  not_logged += repeated_.exchange(0);
  WEFT_LOG(telemetry_.logger(), Warning, "refused")
      .With("kind", kind)
      .With("who", who)
      .With("what", what)
      .With("why", why)
      .With("not_logged", not_logged);
}

}  // namespace weft::net
