// Limits: see the header.

#include "weft/worker/limits.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "weft/worker/flags.h"

namespace weft::worker {
namespace {

// Whether the text was a value.
using Setter = std::function<bool(absl::string_view)>;

template <typename Integer>
Setter To(Integer* target) {
  return [target](absl::string_view text) {
    return absl::SimpleAtoi(text, target) && *target >= 1;
  };
}

Setter To(absl::Duration* target) {
  return [target](absl::string_view text) {
    double seconds = 0;
    if (absl::SimpleAtod(text, &seconds)) {
      if (std::isnan(seconds)) return false;
      *target = absl::Seconds(seconds);
    } else if (!absl::ParseDuration(text, target)) {
      return false;
    }
    return *target > absl::ZeroDuration();
  };
}

std::map<std::string, Setter> SettersOf(Limits& limits) {
  return {
      {"max_message_bytes", To(&limits.loop.max_message_bytes)},
      {"max_buffered_bytes", To(&limits.loop.max_buffered_bytes)},
      {"max_metadata_bytes", To(&limits.loop.max_metadata_bytes)},
      {"max_calls_per_connection", To(&limits.loop.max_calls_per_connection)},
      {"max_wasted_calls_per_peer", To(&limits.loop.max_wasted_calls_per_peer)},
      {"keepalive_interval", To(&limits.loop.keepalive_interval)},
      {"keepalive_timeout", To(&limits.loop.keepalive_timeout)},
      {"max_connections", To(&limits.loop.max_connections)},
      {"max_connections_per_address",
       To(&limits.loop.max_connections_per_address)},
      {"max_handshakes", To(&limits.loop.max_handshakes)},
      {"handshake_timeout", To(&limits.loop.handshake_timeout)},
      {"max_calls", To(&limits.admission.max_calls)},
      {"max_calls_per_peer", To(&limits.admission.max_calls_per_peer)},
      {"max_bytes", To(&limits.admission.max_bytes)},
      {"max_bytes_per_peer", To(&limits.admission.max_bytes_per_peer)},
      {"rpc_calls", To(&limits.rpc.calls)},
      {"rpc_bytes", To(&limits.rpc.bytes)},
      {"rpc_nested_calls", To(&limits.rpc.nested_calls)},
      {"rpc_objects", To(&limits.rpc.objects)},
      {"rpc_streams", To(&limits.rpc.streams)},
      {"rpc_sessions", To(&limits.rpc.sessions)},
      {"rpc_timeout", To(&limits.rpc.timeout)},
      {"give_up_after", To(&limits.give_up_after)},
      {"suspect_after", To(&limits.suspect_after)},
      {"dead_after", To(&limits.dead_after)},
      {"heartbeat_interval", To(&limits.heartbeat_interval)},
  };
}

absl::Status Unknown(absl::string_view name,
                     const std::map<std::string, Setter>& setters) {
  std::vector<std::string> known;
  for (const auto& [limit, setter] : setters) known.push_back(limit);
  const std::string nearest = NearestName(std::string(name), known);
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no limit \"", name, "\"",
      nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
      "; there are: ", absl::StrJoin(known, ", ")));
}

}  // namespace

absl::Status SetLimits(const std::string& text, Limits* limits) {
  Limits read = *limits;
  const std::map<std::string, Setter> setters = SettersOf(read);
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> limit =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto setter = setters.find(std::string(limit.first));
    if (setter == setters.end()) return Unknown(limit.first, setters);
    read.given.insert(setter->first);
    if (setter->second(limit.second)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(limit.first,
                     ": wanted an integer from 1 on, or a "
                     "duration above 0 such as 5s, found \"",
                     limit.second, "\""));
  }
  *limits = read;
  return absl::OkStatus();
}

}  // namespace weft::worker
