#include "weft/sim/fault_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/check.h"

namespace weft::sim {

const char* NameOf(Fault fault) {
  static constexpr const char* kNames[kFaultKinds] = {"loss",
                                                      "duplication",
                                                      "delay",
                                                      "reordering",
                                                      "one-way partition",
                                                      "two-way partition",
                                                      "reset",
                                                      "crash",
                                                      "restart",
                                                      "disk full",
                                                      "unsynced loss",
                                                      "torn write",
                                                      "lost reply",
                                                      "half-open",
                                                      "corruption",
                                                      "clock skew"};
  return kNames[static_cast<int>(fault)];
}

FaultPlan::Options FaultPlan::Options::Of(std::initializer_list<Fault> kinds,
                                          double rate, int min_hits) {
  Options options;
  for (const Fault kind : kinds) options.rate[static_cast<int>(kind)] = rate;
  options.min_hits = min_hits;
  return options;
}

FaultPlan::FaultPlan(uint64_t seed, Options options) : options_(options) {
  WEFT_CHECK_LE(options.min_hits, options.within);
  Random seeds(seed);
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    Stream& stream = streams_.emplace_back(seeds.Next());
    if (options.rate[kind] <= 0) continue;
    while (static_cast<int>(stream.forced.size()) < options.min_hits) {
      stream.forced.insert(stream.random.Below(options.within));
    }
  }
}

bool FaultPlan::Strikes(Fault fault) {
  Stream& drawn = stream(fault);
  const bool is_forced = drawn.forced.count(drawn.opportunities++) > 0;
  const bool is_chance =
      drawn.random.Chance(options_.rate[static_cast<int>(fault)]);
  if (!is_forced && !is_chance) return false;
  ++drawn.hits;
  return true;
}

void FaultPlan::Absorb(const FaultPlan& other) {
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    streams_[kind].opportunities += other.streams_[kind].opportunities;
    streams_[kind].hits += other.streams_[kind].hits;
  }
}

std::string FaultPlan::Report() const {
  std::string report;
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    const Stream& counted = streams_[kind];
    if (options_.rate[kind] <= 0 && counted.opportunities == 0 &&
        counted.hits == 0) {
      continue;
    }
    absl::StrAppendFormat(&report, "%-18s %8d hits of %8d\n",
                          NameOf(static_cast<Fault>(kind)), counted.hits,
                          counted.opportunities);
  }
  return report;
}

absl::Status FaultPlan::CheckHits() const {
  std::string missing;
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    const Stream& counted = streams_[kind];
    if (options_.rate[kind] <= 0 ||
        counted.hits >= std::max(1, options_.min_hits)) {
      continue;
    }
    absl::StrAppend(&missing, missing.empty() ? "" : ", ",
                    NameOf(static_cast<Fault>(kind)), " (", counted.hits,
                    " hits of ", counted.opportunities, ")");
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("faults: wanted at least ", std::max(1, options_.min_hits),
                   " hits of each kind; too few of ", missing,
                   "; run longer or raise the rate"));
}

}  // namespace weft::sim
