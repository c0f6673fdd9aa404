// FaultPlan: what goes wrong, how often, and how often it did.

#ifndef WEFT_SIM_FAULT_PLAN_H_
#define WEFT_SIM_FAULT_PLAN_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/sim/random.h"

namespace weft::sim {

enum class Fault {
  kLoss,             // a message
  kDuplication,      // a message
  kDelay,            // a message and those behind it
  kReordering,       // a message, passed by those behind it
  kOneWayPartition,  // of a pair of nodes
  kTwoWayPartition,  // of a pair of nodes
  kReset,            // of the connection of a pair
  kCrash,            // of a node
  kRestart,          // of a crashed node; not drawn, it follows a crash
  kDiskFull,         // at some byte of a write
  kUnsyncedLoss,     // at the crash of a disk; not drawn, it follows
  kTornWrite,        // at the crash of a disk: part of what was not synced
  kLostReply,   // a message of who was connected to, where kLoss is of others
  kHalfOpen,    // of a connection: one end learns that it broke
  kCorruption,  // of a message: some bit of it flips
  kClockSkew,   // of a node, when it starts: a clock unlike the others'
};
constexpr int kFaultKinds = 16;

const char* NameOf(Fault fault);

// Thread-safety: one thread at a time.
class FaultPlan {
 public:
  // What befalls chosen messages, whatever the rates: the first three requests
  // of a function are lost, each reply is late by 1.5 s.
  //
  //   options.rules = {FaultPlan::Rule::Drop("request", "app::Push", 3),
  //                    FaultPlan::Rule::Delay("reply", absl::Seconds(1.5))};
  struct Rule {
    // In place of a number: of all of them.
    static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

    Fault fault = Fault::kReset;  // of a message
    // Which messages it strikes, as its network names them; empty: any.
    std::string kind = {};
    std::string function = {};
    int64_t first = kAll;       // so many times
    absl::Duration delay = {};  // by kDelay, beside its latency

    // They are not sent: the connection breaks in their place.
    static Rule Drop(std::string kind, std::string function, int64_t first);
    static Rule Delay(std::string kind, absl::Duration delay,
                      std::string function = "");
    // "reset of the first 3 request of app::Push", "delay by 1.5s of reply".
    std::string ToString() const;
  };
  // A message, to rules.
  struct Message {
    std::string kind;
    std::string function;
  };

  struct Options {
    // The probability of each kind at each opportunity.
    std::array<double, kFaultKinds> rate{};
    // Each kind with a rate strikes at least this often...
    int min_hits = 0;
    // ...at opportunities among its first `within`, which the seed picks.
    int within = 100;
    // The first of those that match a message and are not used up strikes.
    std::vector<Rule> rules;

    // `rate` for each of `kinds`.
    static Options Of(std::initializer_list<Fault> kinds, double rate,
                      int min_hits = 0);
  };

  // Each kind draws from a stream of its own: a change of one rate does not
  // move the others. REQUIRES: min_hits <= within.
  FaultPlan(uint64_t seed, Options options);
  explicit FaultPlan(uint64_t seed) : FaultPlan(seed, Options()) {}

  // Whether `fault` strikes at this opportunity. Counts it.
  bool Strikes(Fault fault);
  // The rule that strikes `together`, which leave as one; null: none does.
  // Counts it. What it strikes is no opportunity of the rates.
  const Rule* Strikes(const std::vector<Message>& together);
  bool has_rules() const { return !options_.rules.empty(); }
  // Counts one that was not drawn.
  void Count(Fault fault) { ++stream(fault).hits; }

  int64_t opportunities(Fault fault) const {
    return stream(fault).opportunities;
  }
  int64_t hits(Fault fault) const { return stream(fault).hits; }

  // Adds the counts of another plan, so that a report covers many seeds.
  void Absorb(const FaultPlan& other);
  // A line for each kind that had a rate, an opportunity or a hit, and for each
  // rule.
  std::string Report() const;
  // What makes this plan again: "seed 7, loss 0.02, reset of the first 3
  // request of app::Push". For the message of a test that fails, whose other
  // options are its own: the plan does not know its network's.
  std::string Replay() const;
  // kFailedPrecondition, naming them, if a kind that has a rate struck less
  // often than max(1, min_hits), or a rule never: the run proves nothing about
  // it.
  absl::Status CheckHits() const;

 private:
  struct Stream {
    explicit Stream(uint64_t seed) : random(seed) {}
    Random random;
    std::set<int64_t> forced;  // opportunities at which it must strike
    int64_t opportunities = 0;
    int64_t hits = 0;
  };

  Stream& stream(Fault fault) { return streams_[static_cast<int>(fault)]; }
  const Stream& stream(Fault fault) const {
    return streams_[static_cast<int>(fault)];
  }

  struct RuleCount {
    int64_t matches = 0;
    int64_t hits = 0;
  };

  const uint64_t seed_;
  const Options options_;
  std::vector<RuleCount> rules_;  // by rule
  std::vector<Stream> streams_;   // [kFaultKinds]
};

}  // namespace weft::sim

#endif  // WEFT_SIM_FAULT_PLAN_H_
