// SharedFacts: see the header.

#include "weft/launch/stuck/shared_facts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace weft::launch {
namespace {

using nlohmann::json;

// A value of the store holds 1 MiB.
constexpr size_t kMostAwaited = 256;
constexpr size_t kMostWaits = 16;  // of a rank
constexpr size_t kMostRanks = 1024;
constexpr size_t kLongestText = 1024;
constexpr double kLongest = 1e9;  // seconds

absl::string_view NameOf(RankFacts::Process process) {
  switch (process) {
    case RankFacts::Process::kUnknown:
      break;
    case RankFacts::Process::kRuns:
      return "runs";
    case RankFacts::Process::kStopped:
      return "stopped";
    case RankFacts::Process::kGone:
      return "gone";
  }
  return "unknown";
}

absl::string_view NameOf(RankWait::Of of) {
  switch (of) {
    case RankWait::Of::kGroup:
      break;
    case RankWait::Of::kTransfer:
      return "transfer";
    case RankWait::Of::kTable:
      return "table";
    case RankWait::Of::kStore:
      return "store";
    case RankWait::Of::kBarrier:
      return "barrier";
  }
  return "group";
}

json ToJson(const AwaitedRank& awaited) {
  return {{"name", awaited.name},
          {"has_called", awaited.has_called},
          {"has_answered", awaited.has_answered},
          {"runs", awaited.is_known_to_run}};
}

json ToJson(const RankWait& wait) {
  json awaited = json::array();
  for (size_t i = 0; i < std::min(wait.awaited.size(), kMostAwaited); ++i) {
    awaited.push_back(ToJson(wait.awaited[i]));
  }
  return {{"operation", wait.operation},
          {"group", wait.group},
          {"of", std::string(NameOf(wait.of))},
          {"meeting", wait.meeting},
          {"waited_s", absl::ToDoubleSeconds(wait.waited)},
          {"said_ago_s", absl::ToDoubleSeconds(wait.said_ago)},
          {"awaited", std::move(awaited)}};
}

json ToJson(const RankFacts& rank) {
  json waits = json::array();
  for (size_t i = 0; i < std::min(rank.waits.size(), kMostWaits); ++i) {
    waits.push_back(ToJson(rank.waits[i]));
  }
  return {{"name", rank.name},
          {"process", std::string(NameOf(rank.process))},
          {"pid", rank.pid},
          {"state", std::string(1, rank.state)},
          {"cpu_s", absl::ToDoubleSeconds(rank.cpu)},
          {"of_s", absl::ToDoubleSeconds(rank.over)},
          {"stopped_s", absl::ToDoubleSeconds(rank.stopped)},
          {"is_heard", rank.is_heard},
          {"waits", std::move(waits)}};
}

// What `object` has under `key`; of another kind, or absent: nothing.
std::string TextIn(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_string()) return "";
  return it->get<std::string>().substr(0, kLongestText);
}

bool TruthIn(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() && it->get<bool>();
}

absl::Duration TimeIn(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return absl::ZeroDuration();
  const double seconds = it->get<double>();
  if (!std::isfinite(seconds)) return absl::ZeroDuration();
  return absl::Seconds(std::clamp(seconds, 0.0, kLongest));
}

pid_t PidIn(const json& object) {
  const auto it = object.find("pid");
  if (it == object.end() || !it->is_number_unsigned()) return 0;
  const auto pid = it->get<uint64_t>();
  return pid <= std::numeric_limits<int32_t>::max() ? static_cast<pid_t>(pid)
                                                    : 0;
}

// The objects under `key`, at most so many.
std::vector<json> ObjectsIn(const json& object, const char* key, size_t most) {
  std::vector<json> found;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return found;
  for (const json& one : *it) {
    if (found.size() == most) break;
    if (one.is_object()) found.push_back(one);
  }
  return found;
}

RankWait WaitOf(const json& object) {
  RankWait wait;
  wait.operation = TextIn(object, "operation");
  wait.group = TextIn(object, "group");
  wait.meeting = TextIn(object, "meeting");
  const std::string of = TextIn(object, "of");
  for (const auto one : {RankWait::Of::kTransfer, RankWait::Of::kTable,
                         RankWait::Of::kStore, RankWait::Of::kBarrier}) {
    if (of == NameOf(one)) wait.of = one;
  }
  wait.waited = TimeIn(object, "waited_s");
  wait.said_ago = TimeIn(object, "said_ago_s");
  for (const json& one : ObjectsIn(object, "awaited", kMostAwaited)) {
    AwaitedRank awaited;
    awaited.name = TextIn(one, "name");
    awaited.has_called = TruthIn(one, "has_called");
    awaited.has_answered = TruthIn(one, "has_answered");
    awaited.is_known_to_run = TruthIn(one, "runs");
    if (!awaited.name.empty()) wait.awaited.push_back(std::move(awaited));
  }
  return wait;
}

RankFacts FactsOf(const json& object, const std::string& host) {
  using Process = RankFacts::Process;
  RankFacts rank;
  rank.name = TextIn(object, "name");
  rank.host = host;
  const std::string process = TextIn(object, "process");
  for (const Process one :
       {Process::kRuns, Process::kStopped, Process::kGone}) {
    if (process == NameOf(one)) rank.process = one;
  }
  rank.pid = PidIn(object);
  const std::string state = TextIn(object, "state");
  if (state.size() == 1) rank.state = state[0];
  rank.cpu = TimeIn(object, "cpu_s");
  rank.over = TimeIn(object, "of_s");
  rank.stopped = TimeIn(object, "stopped_s");
  rank.is_heard = TruthIn(object, "is_heard");
  for (const json& one : ObjectsIn(object, "waits", kMostWaits)) {
    rank.waits.push_back(WaitOf(one));
  }
  return rank;
}

}  // namespace

std::string FormatFacts(absl::Span<const RankFacts> ranks,
                        absl::string_view host) {
  json all = json::array();
  for (size_t i = 0; i < std::min(ranks.size(), kMostRanks); ++i) {
    all.push_back(ToJson(ranks[i]));
  }
  const json text = {{"host", std::string(host)}, {"ranks", std::move(all)}};
  return text.dump(-1, ' ', /*ensure_ascii=*/true,
                   json::error_handler_t::replace);
}

absl::StatusOr<std::vector<RankFacts>> ParseFacts(absl::string_view text) {
  const json parsed = json::parse(text.begin(), text.end(), nullptr,
                                  /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "facts of ranks: wanted a JSON object, found ", text.substr(0, 40)));
  }
  const std::string host = TextIn(parsed, "host");
  std::vector<RankFacts> ranks;
  for (const json& one : ObjectsIn(parsed, "ranks", kMostRanks)) {
    RankFacts rank = FactsOf(one, host);
    if (!rank.name.empty()) ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace weft::launch
