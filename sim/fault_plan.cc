#include "weft/sim/fault_plan.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

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

namespace {

bool StrikesMessages(Fault fault) {
  switch (fault) {
    case Fault::kLoss:
    case Fault::kLostReply:
    case Fault::kDuplication:
    case Fault::kDelay:
    case Fault::kReordering:
    case Fault::kReset:
    case Fault::kHalfOpen:
    case Fault::kCorruption:
      return true;
    default:
      return false;
  }
}

// The shortest text that is read as just this rate.
std::string Exactly(double rate) {
  char text[32];
  return std::string(text, std::to_chars(text, std::end(text), rate).ptr);
}

bool Matches(const FaultPlan::Rule& rule, const FaultPlan::Message& message) {
  return (rule.kind.empty() || rule.kind == message.kind) &&
         (rule.function.empty() || rule.function == message.function);
}

}  // namespace

FaultPlan::Options FaultPlan::Options::Of(std::initializer_list<Fault> kinds,
                                          double rate, int min_hits) {
  Options options;
  for (const Fault kind : kinds) options.rate[static_cast<int>(kind)] = rate;
  options.min_hits = min_hits;
  return options;
}

FaultPlan::Rule FaultPlan::Rule::Drop(std::string kind, std::string function,
                                      int64_t first) {
  Rule rule;
  rule.kind = std::move(kind);
  rule.function = std::move(function);
  rule.first = first;
  return rule;
}

FaultPlan::Rule FaultPlan::Rule::Delay(std::string kind, absl::Duration delay,
                                       std::string function) {
  Rule rule;
  rule.fault = Fault::kDelay;
  rule.kind = std::move(kind);
  rule.function = std::move(function);
  rule.delay = delay;
  return rule;
}

std::string FaultPlan::Rule::ToString() const {
  return absl::StrCat(
      NameOf(fault),
      fault == Fault::kDelay ? absl::StrCat(" by ", absl::FormatDuration(delay))
                             : "",
      " of ", first == kAll ? "" : absl::StrCat("the first ", first, " "),
      kind.empty() ? "any message" : kind,
      function.empty() ? "" : absl::StrCat(" of ", function));
}

FaultPlan::FaultPlan(uint64_t seed, Options options)
    : seed_(seed), options_(std::move(options)), rules_(options_.rules.size()) {
  WEFT_CHECK_LE(options_.min_hits, options_.within);
  for (const Rule& rule : options_.rules) {
    WEFT_CHECK(StrikesMessages(rule.fault)) << rule.ToString();
    WEFT_CHECK_GE(rule.delay, absl::ZeroDuration()) << rule.ToString();
  }
  Random seeds(seed);
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    Stream& stream = streams_.emplace_back(seeds.Next());
    if (options_.rate[kind] <= 0) continue;
    while (static_cast<int>(stream.forced.size()) < options_.min_hits) {
      stream.forced.insert(stream.random.Below(options_.within));
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

const FaultPlan::Rule* FaultPlan::Strikes(
    const std::vector<Message>& together) {
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Rule& rule = options_.rules[i];
    const auto matches =
        std::count_if(together.begin(), together.end(),
                      [&](const Message& m) { return Matches(rule, m); });
    if (matches == 0) continue;
    rules_[i].matches += matches;
    if (rules_[i].hits >= rule.first) continue;
    // All that leaves with it shares its fate.
    rules_[i].hits += matches;
    Count(rule.fault);
    return &rule;
  }
  return nullptr;
}

void FaultPlan::Absorb(const FaultPlan& other) {
  for (size_t i = 0; i < std::min(rules_.size(), other.rules_.size()); ++i) {
    rules_[i].matches += other.rules_[i].matches;
    rules_[i].hits += other.rules_[i].hits;
  }
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
  for (size_t i = 0; i < rules_.size(); ++i) {
    absl::StrAppendFormat(&report, "%s: %d hits of %d\n",
                          options_.rules[i].ToString(), rules_[i].hits,
                          rules_[i].matches);
  }
  return report;
}

std::string FaultPlan::Replay() const {
  std::string replay = absl::StrCat("seed ", seed_);
  for (int kind = 0; kind < kFaultKinds; ++kind) {
    if (options_.rate[kind] <= 0) continue;
    absl::StrAppend(&replay, ", ", NameOf(static_cast<Fault>(kind)), " ",
                    Exactly(options_.rate[kind]));
  }
  if (options_.min_hits > 0) {
    absl::StrAppend(&replay, ", each at least ", options_.min_hits,
                    " times within ", options_.within);
  }
  for (const Rule& rule : options_.rules) {
    absl::StrAppend(&replay, ", ", rule.ToString());
  }
  return replay;
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
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].hits > 0) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", "the rule \"",
                    options_.rules[i].ToString(), "\" (0 hits of ",
                    rules_[i].matches, ")");
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("faults: wanted at least ", std::max(1, options_.min_hits),
                   " hits of each kind; too few of ", missing,
                   "; run longer or raise the rate"));
}

}  // namespace weft::sim
