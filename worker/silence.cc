#include "weft/worker/silence.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "weft/base/status_macros.h"

namespace weft::worker {
namespace {

constexpr absl::Duration kLeast = absl::Seconds(1);
constexpr absl::Duration kMost = absl::Hours(1);
constexpr absl::Duration kDefaultRpcTimeout = absl::Minutes(1);
constexpr absl::Duration kDefaultJoinTimeout = absl::Minutes(5);

// "heartbeat_interval=500ms and suspect_after=300ms: wanted ..."
absl::Status Wrong(absl::string_view name, absl::Duration value,
                   absl::string_view other, absl::Duration limit,
                   absl::string_view wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", absl::FormatDuration(value), " and ", other, "=",
                   absl::FormatDuration(limit), ": wanted ", wanted));
}

}  // namespace

absl::Status ParseSilence(const std::string& text, absl::Duration* silence) {
  absl::Duration read;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    read = std::isnan(seconds) ? absl::ZeroDuration() : absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &read)) {
    read = absl::ZeroDuration();
  }
  if (read < kLeast || read > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("wanted a duration from ", absl::FormatDuration(kLeast),
                     " to ", absl::FormatDuration(kMost), ", such as 10s"));
  }
  *silence = read;
  return absl::OkStatus();
}

void DeriveFromSilence(SilenceTimes times) {
  Limits& limits = times.limits;
  const absl::Duration silence = limits.silence;
  if (silence == absl::ZeroDuration()) return;
  const auto set = [&](const char* name, absl::Duration* time,
                       absl::Duration value) {
    if (limits.given.count(name) == 0) *time = value;
  };
  set("dead_after", &limits.dead_after, silence);
  set("suspect_after", &limits.suspect_after, 0.3 * limits.dead_after);
  set("give_up_after", &limits.give_up_after, silence);
  set("heartbeat_interval", &limits.heartbeat_interval,
      std::min(absl::Milliseconds(500), limits.dead_after / 20));
  if (times.rpc_timeout == kDefaultRpcTimeout) {
    times.rpc_timeout = std::max(kDefaultRpcTimeout, 2 * limits.dead_after);
  }
  if (times.join_timeout == kDefaultJoinTimeout) {
    times.join_timeout = std::max(kDefaultJoinTimeout, 2 * limits.dead_after);
  }
}

absl::Status CheckSilence(const SilenceTimes& times) {
  const Limits& limits = times.limits;
  if (limits.dead_after <= limits.suspect_after) {
    return Wrong("--limits: dead_after", limits.dead_after, "suspect_after",
                 limits.suspect_after,
                 "a member to be suspect before it is dead");
  }
  if (2 * limits.heartbeat_interval > limits.suspect_after) {
    return Wrong("--limits: heartbeat_interval", limits.heartbeat_interval,
                 "suspect_after", limits.suspect_after,
                 "at least two heartbeats before a member is suspect");
  }
  if (limits.silence == absl::ZeroDuration()) return absl::OkStatus();
  if (times.rpc_timeout <= limits.dead_after) {
    return Wrong("--rpc-timeout", times.rpc_timeout, "--silence",
                 limits.dead_after,
                 "a call to wait for longer than a silent peer is borne: it "
                 "would end before the peer is known to be dead");
  }
  if (times.join_timeout <= limits.dead_after) {
    return Wrong("--join-timeout", times.join_timeout, "--silence",
                 limits.dead_after,
                 "a worker to wait for longer than a silent one is borne: it "
                 "could not take the place of one that has died");
  }
  return absl::OkStatus();
}

}  // namespace weft::worker
