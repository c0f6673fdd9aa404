#include "weft/launch/commands/training_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "weft/launch/stuck/stuck.h"
#include "weft/launch/stuck/stuck_text.h"
#include "weft/telemetry/field.h"
#include "weft/telemetry/field_json.h"

namespace weft::launch {
namespace {

using nlohmann::json;
using telemetry::Printable;

constexpr int64_t kMostSteps = int64_t{1} << 53;
// By how much less than all others the slowest trainer must wait.
constexpr double kLessWaiting = 0.2;

std::optional<double> NumberIn(const json& fields, const char* key) {
  if (!fields.is_object() || !fields.contains(key)) return std::nullopt;
  const json& value = fields[key];
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!std::isfinite(number)) return std::nullopt;
  return number;
}

std::string TextIn(const json& fields, const char* key) {
  if (!fields.is_object() || !fields.contains(key)) return "";
  const json& value = fields[key];
  return Printable(value.is_string() ? value.get<std::string>() : value.dump());
}

std::optional<int64_t> StepIn(const json& fields) {
  const std::optional<double> step = NumberIn(fields, "step");
  if (!step.has_value() || *step < 0 || *step > kMostSteps) return std::nullopt;
  return static_cast<int64_t>(*step);
}

std::optional<int64_t> FurthestOf(const TrainingReport& report) {
  std::optional<int64_t> furthest;
  for (const auto& [name, fields] : report.trainers) {
    const std::optional<int64_t> step = StepIn(fields);
    if (step.has_value()) furthest = std::max(furthest.value_or(0), *step);
  }
  return furthest;
}

// Empty for a trainer that has not reported its step.
std::optional<int64_t> StepsBehind(const json& fields,
                                   std::optional<int64_t> furthest) {
  const std::optional<int64_t> step = StepIn(fields);
  if (!step.has_value() || !furthest.has_value()) return std::nullopt;
  return *furthest - *step;
}

// Whether it is more than what the others trained while they were asked.
bool IsBehind(const json& fields, int64_t steps, absl::Duration spread) {
  if (steps <= 0) return false;
  const double seconds = absl::ToDoubleSeconds(spread);
  // The trainer has been at this step all the time.
  if (NumberIn(fields, "phase_seconds").value_or(0) > seconds) return true;
  const double each = NumberIn(fields, "step_seconds").value_or(0);
  return static_cast<double>(steps) * each > seconds;
}

std::string Percent(double share) {
  return absl::StrFormat("%.0f %%", 100 * share);
}

std::string Steps(int64_t steps) {
  return absl::StrCat(steps, steps == 1 ? " step" : " steps");
}

std::string Mebibytes(double bytes) {
  return absl::StrFormat("%.1f", bytes / (1 << 20));
}

// "cuda:0 812.0 MiB in use of 1024.0, at most 980.5"; nothing of a trainer that
// uses no device.
std::string DeviceMemory(const json& fields) {
  const auto used = NumberIn(fields, "device_used_bytes");
  if (!used.has_value()) return "";
  return absl::StrCat(
      TextIn(fields, "device"), " ", Mebibytes(*used), " MiB in use of ",
      Mebibytes(NumberIn(fields, "device_reserved_bytes").value_or(0)),
      ", at most ",
      Mebibytes(NumberIn(fields, "device_peak_bytes").value_or(0)));
}

std::string Line(const json& fields, std::optional<int64_t> behind) {
  // The section was busy, or has failed.
  if (fields.contains("error")) return TextIn(fields, "error");
  std::vector<std::string> parts;
  const std::optional<int64_t> step = StepIn(fields);
  parts.push_back(step.has_value() ? absl::StrCat("step ", *step)
                                   : "no step yet");
  if (behind.value_or(0) > 0) parts.push_back(absl::StrCat(*behind, " behind"));
  std::string phase = TextIn(fields, "phase");
  if (const auto age = NumberIn(fields, "phase_seconds"); age.has_value()) {
    absl::StrAppendFormat(&phase, " for %.3f s", *age);
  }
  parts.push_back(phase);
  if (const std::string operation = TextIn(fields, "operation");
      !operation.empty()) {
    parts.push_back(
        absl::StrFormat("in %s for %.3f s", operation,
                        NumberIn(fields, "operation_seconds").value_or(0)));
  }
  if (const auto share = NumberIn(fields, "wait_share"); share.has_value()) {
    parts.push_back(absl::StrCat("waits ", Percent(*share)));
  }
  if (fields.contains("loss")) {
    const auto loss = NumberIn(fields, "loss");
    parts.push_back(loss.has_value()
                        ? absl::StrFormat("loss %.4g", *loss)
                        : absl::StrCat("loss ", TextIn(fields, "loss")));
  }
  if (const auto rate = NumberIn(fields, "examples_per_s"); rate.has_value()) {
    parts.push_back(absl::StrFormat("%.0f examples/s", *rate));
  }
  if (const std::string memory = DeviceMemory(fields); !memory.empty()) {
    parts.push_back(memory);
  }
  return absl::StrJoin(parts, ", ");
}

// Who is behind, and how: those that do not answer, then the furthest first.
std::vector<std::pair<std::string, std::string>> BehindOf(
    const TrainingReport& report, std::optional<int64_t> furthest) {
  std::vector<std::pair<int64_t, std::string>> behind;
  for (const auto& [name, fields] : report.trainers) {
    const int64_t steps = StepsBehind(fields, furthest).value_or(0);
    if (!IsBehind(fields, steps, report.spread)) continue;
    behind.emplace_back(-steps, name);
  }
  std::sort(behind.begin(), behind.end());
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [name, why] : report.silent) {
    all.emplace_back(name, "no answer");
  }
  for (const auto& [steps, name] : behind)
    all.emplace_back(name, Steps(-steps));
  return all;
}

std::string BehindLine(const TrainingReport& report,
                       std::optional<int64_t> furthest) {
  std::vector<std::string> all;
  for (const auto& [name, how] : BehindOf(report, furthest)) {
    all.push_back(absl::StrCat(name, " (", how, ")"));
  }
  if (all.empty()) return "";
  return absl::StrCat("  behind: ", absl::StrJoin(all, ", "), "\n");
}

// Where all keep step, the one for which the others wait does not wait itself.
// That is of their last steps, and another one may be behind at this moment.
std::string SlowestLine(const TrainingReport& report,
                        std::optional<int64_t> furthest) {
  std::vector<std::pair<double, std::string>> waits;
  for (const auto& [name, fields] : report.trainers) {
    const auto share = NumberIn(fields, "wait_share");
    if (!share.has_value()) return "";
    waits.emplace_back(*share, name);
  }
  if (waits.size() < 2) return "";
  std::sort(waits.begin(), waits.end());
  if (waits[1].first - waits[0].first < kLessWaiting) return "";
  const std::string& slowest = waits[0].second;
  const auto behind = BehindOf(report, furthest);
  const bool is_another =
      std::any_of(behind.begin(), behind.end(),
                  [&](const auto& one) { return one.first != slowest; });
  return absl::StrCat(
      "  slowest: ", slowest, " waits ", Percent(waits[0].first),
      " of its time for others, each other trainer ", Percent(waits[1].first),
      " or more",
      is_another ? ", over about ten steps; who is behind is as of now" : "",
      "\n");
}

// Only the group of all trainers is reported: it is not known who is in others.
constexpr absl::string_view kOfAll = " of group trainer/world";
constexpr absl::Duration kLongWait = absl::Seconds(4);

// The 12 of "AllReduce #12"; -1: there is none.
int64_t NumberOf(absl::string_view operation) {
  const size_t at = operation.rfind('#');
  int64_t number = -1;
  if (at == absl::string_view::npos) return number;
  return absl::SimpleAtoi(operation.substr(at + 1), &number) ? number : -1;
}

// What each trainer says that it is in, as facts: who answers runs.
// Those of the group of all trainers.
std::vector<RankFacts> FactsOfTrainers(const TrainingReport& report) {
  std::vector<RankFacts> all;
  for (const auto& [name, fields] : report.trainers) {
    RankFacts rank;
    rank.name = name;
    rank.process = RankFacts::Process::kRuns;
    rank.is_heard = !fields.contains("error");
    std::string operation = TextIn(fields, "operation");
    const double seconds = NumberIn(fields, "operation_seconds").value_or(0);
    if (absl::EndsWith(operation, kOfAll) && seconds > 0 && seconds < 1e9) {
      operation.resize(operation.size() - kOfAll.size());
      rank.waits = {{std::move(operation),
                     "trainer/world",
                     absl::Seconds(seconds),
                     absl::ZeroDuration(),
                     {}}};
    }
    all.push_back(std::move(rank));
  }
  for (RankFacts& rank : all) {
    for (RankWait& wait : rank.waits) {
      for (const RankFacts& other : all) {
        const bool is_in_it =
            !other.waits.empty() &&
            NumberOf(other.waits[0].operation) >= NumberOf(wait.operation);
        if (!is_in_it) wait.awaited.push_back({other.name});
      }
      for (const auto& [name, why] : report.silent) {
        wait.awaited.push_back({name, false, /*has_answered=*/false});
      }
    }
  }
  return all;
}

// What servers and those trainers wait for that are in an operation on a table.
void AddServerWaits(const TrainingReport& report,
                    std::vector<RankFacts>* facts) {
  const auto awaited = [&](const std::string& name) {
    AwaitedRank rank;
    rank.name = name;
    rank.has_answered =
        std::none_of(report.silent.begin(), report.silent.end(),
                     [&](const auto& one) { return one.first == name; });
    return rank;
  };
  const auto wait_on = [](const std::string& table, absl::Duration waited) {
    RankWait wait;
    wait.operation = "Pull";
    wait.group = table;
    wait.waited = waited;
    wait.of = RankWait::Of::kTable;
    return wait;
  };
  for (size_t i = 0; i < report.trainers.size(); ++i) {
    RankFacts& rank = (*facts)[i];
    const json& fields = report.trainers[i].second;
    const std::string phase = TextIn(fields, "phase");
    const double seconds = NumberIn(fields, "phase_seconds").value_or(0);
    if ((phase != "pull" && phase != "push") || !rank.waits.empty() ||
        !(seconds > 0 && seconds < 1e9)) {
      continue;
    }
    RankWait wait = wait_on("", absl::Seconds(seconds));
    for (const ServerWait& server : report.servers) {
      for (const std::string& name : server.workers) {
        if (name != rank.name) wait.awaited.push_back(awaited(name));
      }
      wait.group = server.table;
    }
    rank.waits = {std::move(wait)};
  }
  for (const ServerWait& server : report.servers) {
    RankFacts rank;
    rank.name = server.server;
    rank.process = RankFacts::Process::kRuns;
    rank.is_heard = true;
    RankWait wait = wait_on(server.table, server.waited);
    for (const std::string& name : server.workers) {
      wait.awaited.push_back(awaited(name));
    }
    rank.waits = {std::move(wait)};
    facts->push_back(std::move(rank));
  }
}

std::string ServerLines(const TrainingReport& report) {
  std::string lines;
  for (const ServerWait& wait : report.servers) {
    absl::StrAppendFormat(
        &lines, "  %s: table %s waits for %s for %.1f s: %s\n",
        Printable(wait.server), Printable(wait.table),
        wait.workers.empty() ? "somebody"
                             : Printable(absl::StrJoin(wait.workers, ", ")),
        absl::ToDoubleSeconds(wait.waited), Printable(wait.why));
  }
  for (const auto& [name, why] : report.silent_servers) {
    absl::StrAppend(&lines, "  ", name,
                    ": no answer: ", Printable(why.message()), "\n");
  }
  return lines;
}

std::vector<RankFacts> FactsOf(const TrainingReport& report) {
  std::vector<RankFacts> facts = FactsOfTrainers(report);
  AddServerWaits(report, &facts);
  return facts;
}

std::vector<StuckCause> StuckIn(const TrainingReport& report,
                                const std::vector<RankFacts>& facts) {
  return FindStuck(facts, kLongWait + report.spread);
}

std::string StuckLines(const TrainingReport& report) {
  const std::vector<RankFacts> facts = FactsOf(report);
  std::string lines;
  for (const StuckCause& cause : StuckIn(report, facts)) {
    absl::StrAppend(&lines, "  no progress: ",
                    Printable(StuckText(cause, facts, "", report.job)), "\n");
  }
  return lines;
}

json StuckJson(const TrainingReport& report) {
  const std::vector<RankFacts> facts = FactsOf(report);
  json all = json::array();
  for (const StuckCause& cause : StuckIn(report, facts)) {
    all.push_back(json(telemetry::ToJson(StuckFields(cause, facts, ""))));
  }
  return all;
}

}  // namespace

json ToJson(const TrainingReport& report) {
  const std::optional<int64_t> furthest = FurthestOf(report);
  json workers = json::object();
  for (const auto& [name, fields] : report.trainers) {
    json& said = workers[name] = fields;
    const auto behind = StepsBehind(fields, furthest);
    if (behind.has_value()) said["steps_behind"] = *behind;
  }
  json silent = json::array();
  json reasons = json::object();
  for (const auto& [name, why] : report.silent) {
    silent.push_back(name);
    reasons[name] = Printable(why.ToString());
  }
  json servers = json::array();
  for (const ServerWait& wait : report.servers) {
    servers.push_back({{"server", wait.server},
                       {"table", wait.table},
                       {"waits_for", wait.workers},
                       {"why", Printable(wait.why)},
                       {"waited_s", absl::ToDoubleSeconds(wait.waited)}});
  }
  for (const auto& [name, why] : report.silent_servers) {
    silent.push_back(name);
    reasons[name] = Printable(why.ToString());
  }
  return {{"workers", std::move(workers)},
          {"servers", std::move(servers)},
          {"no_answer", std::move(silent)},
          {"reasons", std::move(reasons)},
          {"stuck", StuckJson(report)}};
}

std::string ToText(const TrainingReport& report) {
  if (report.trainers.empty() && report.silent.empty() &&
      report.servers.empty()) {
    return "";
  }
  const std::optional<int64_t> furthest = FurthestOf(report);
  std::string text = "training\n";
  for (const auto& [name, fields] : report.trainers) {
    absl::StrAppend(&text, "  ", name, ": ",
                    Line(fields, StepsBehind(fields, furthest)), "\n");
  }
  for (const auto& [name, why] : report.silent) {
    absl::StrAppend(&text, "  ", name,
                    ": no answer: ", Printable(why.message()), "\n");
  }
  absl::StrAppend(&text, ServerLines(report), BehindLine(report, furthest),
                  SlowestLine(report, furthest), StuckLines(report));
  return text;
}

}  // namespace weft::launch
