#include "weft/launch/commands/stragglers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft::launch {
namespace {

constexpr double kLeastSeconds = 0.001;
// Of the time that was lost; less is not shown.
constexpr double kLeastShare = 0.01;
constexpr size_t kMostOperations = 5;

bool WaitsForAll(const std::string& verb) {
  for (const char* one :
       {"AllReduce", "AllGather", "ReduceScatter", "AllToAll", "Barrier"}) {
    if (verb == one) return true;
  }
  return false;
}

// Adds what was lost in one operation: how long each worker was in it.
void Add(std::vector<std::pair<double, std::string>> stays, Waiting* waiting) {
  std::sort(stays.rbegin(), stays.rend());  // who came first is first
  const size_t workers = stays.size();
  for (size_t came = 1; came < workers; ++came) {
    const double gap = stays[came - 1].first - stays[came].first;
    const double each =
        gap * static_cast<double>(came) / static_cast<double>(workers - came);
    for (size_t missing = came; missing < workers; ++missing) {
      waiting->for_worker[stays[missing].second] += each;
    }
  }
  ++waiting->operations;
}

// "trainer1 91 %, trainer0 9 %", the most first.
std::string Shares(const Waiting& waiting) {
  const double all = waiting.seconds();
  std::vector<std::pair<double, std::string>> most;
  for (const auto& [worker, seconds] : waiting.for_worker) {
    if (seconds >= kLeastShare * all) most.emplace_back(seconds, worker);
  }
  std::sort(most.rbegin(), most.rend());
  return absl::StrJoin(most, ", ", [&](std::string* out, const auto& one) {
    absl::StrAppendFormat(out, "%s %.0f %%", one.second, 100 * one.first / all);
  });
}

}  // namespace

double Waiting::seconds() const {
  double all = 0;
  for (const auto& [worker, seconds] : for_worker) all += seconds;
  return all;
}

std::map<std::pair<std::string, int64_t>, Waiting> WaitingIn(
    const TimedCalls& calls) {
  std::map<std::pair<std::string, int64_t>, Waiting> found;
  if (calls.size() < 2) return found;
  for (const auto& [number, first] : calls.begin()->second) {
    if (!WaitsForAll(first.verb)) continue;
    std::vector<std::pair<double, std::string>> stays;
    for (const auto& [worker, own] : calls) {
      const auto call = own.find(number);
      if (call == own.end() || call->second.fingerprint != first.fingerprint ||
          !std::isfinite(call->second.seconds)) {
        break;
      }
      stays.emplace_back(std::max(call->second.seconds, 0.0), worker);
    }
    if (stays.size() < calls.size()) continue;
    Waiting& waiting = found[{first.verb, first.fingerprint}];
    Add(std::move(stays), &waiting);
    waiting.newest = number;
  }
  return found;
}

std::string StragglerText(const TimedCalls& calls) {
  const auto found = WaitingIn(calls);
  Waiting all;
  std::vector<std::pair<double, std::string>> lines;
  for (const auto& [operation, waiting] : found) {
    all.operations += waiting.operations;
    for (const auto& [worker, seconds] : waiting.for_worker) {
      all.for_worker[worker] += seconds;
    }
    lines.emplace_back(
        waiting.seconds(),
        absl::StrFormat("    %s like #%d, %d times: %.3f s, %s\n",
                        operation.first, waiting.newest, waiting.operations,
                        waiting.seconds(), Shares(waiting)));
  }
  if (all.seconds() < kLeastSeconds) return "";
  std::sort(lines.rbegin(), lines.rend());
  std::string text = absl::StrFormat(
      "  in %d operations that all have finished they waited %.3f s for each "
      "other: for %s\n",
      all.operations, all.seconds(), Shares(all));
  for (size_t i = 0; i < lines.size() && i < kMostOperations; ++i) {
    if (lines[i].first >= kLeastShare * all.seconds()) text += lines[i].second;
  }
  return text;
}

}  // namespace weft::launch
