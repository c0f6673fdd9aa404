// JobPhases: see the header.

#include "weft/rendezvous/testing/job_phases.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/check.h"
#include "weft/sim/fault_plan.h"
#include "weft/sim/sim_network.h"
#include "weft/sim/simulator.h"

namespace weft::rendezvous {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(1);
constexpr size_t kHeartbeat = 1;  // in CoordinatorCore::Request

sim::SimNetwork::Options Links() {
  sim::SimNetwork::Options links;
  links.min_latency = absl::Microseconds(100);
  links.max_latency = absl::Microseconds(500);
  links.crash_resets = 1;
  return links;
}

SimulatedJob::Options JobOf(const PhaseOptions& options) {
  SimulatedJob::Options job;
  job.members = options.workers;
  job.shares_views = true;
  job.has_supervisor = false;
  job.refuses = true;
  job.describe = [rack = options.rack](int rank, v1::Member& member) {
    const int host = rank / rack;
    member.set_address(absl::StrCat("10.", 20 + host / 256, ".", host % 256,
                                    ".7:", 40000 + rank % rack));
    v1::Process& process = *member.mutable_process();
    process.set_pid(200000 + rank);
    process.set_started(123456789 + rank);
    process.set_group(200000 + rank);
    process.set_space(absl::StrCat("0f7bd1f4-93c5-4c2f-8d8e-",
                                   100000000000 + host, " pid:[4026531836]"));
  };
  return job;
}

// A simulated job and the clock of its phases.
class Run {
 public:
  explicit Run(const PhaseOptions& options)
      : options_(options),
        simulator_(options.seed),
        faults_(options.seed),
        network_(simulator_, faults_, Links()),
        job_(simulator_, network_, JobOf(options)) {
    simulator_.RunUntil(simulator_.Now() + absl::Milliseconds(1));
    Settle("");
  }

  SimulatedJob& job() { return job_; }
  int workers() const { return options_.workers; }
  std::vector<PhaseCosts> costs() && { return std::move(costs_); }

  // Runs `event` for each rank that runs, somewhere within `spread`.
  void ForEach(absl::Duration spread, std::function<void(int)> event) {
    for (int rank = 0; rank < workers(); ++rank) {
      simulator_.After(
          simulator_.random().Between(absl::ZeroDuration(), spread),
          [rank, event] { event(rank); });
    }
  }
  void After(absl::Duration delay, std::function<void()> event) {
    simulator_.After(delay, std::move(event));
  }
  void Fail(int rank) { network_.Crash(SimulatedJob::NameOf(rank)); }
  void PassTime(absl::Duration time) {
    simulator_.RunUntil(simulator_.Now() + time);
  }

  // The phase ends when `is_over` holds and all have the same view.
  void Until(const std::string& phase, const std::function<bool()>& is_over) {
    const Instant limit = began_ + absl::Minutes(2);
    while (!is_over() || !job_.Agrees()) {
      WEFT_CHECK(simulator_.Now() < limit) << phase << " does not end";
      PassTime(kLook);
    }
    Settle(phase);
  }

 private:
  void Settle(const std::string& phase) {
    const JobCounts counts = job_.TakeCounts();
    PhaseCosts costs;
    costs.phase = phase;
    costs.time = simulator_.Now() - began_;
    began_ = simulator_.Now();
    for (size_t method = 0; method < JobCounts::kMethods; ++method) {
      const Traffic& in = counts.requests[method];
      const Traffic& out = counts.answers[method];
      if (method == kHeartbeat) {
        costs.heartbeats = in + out;
      } else {
        costs.in = costs.in + in;
        costs.out = costs.out + out;
      }
    }
    for (const Traffic& member : counts.members) {
      costs.member_messages = std::max(costs.member_messages, member.messages);
      costs.member_bytes = std::max(costs.member_bytes, member.bytes);
    }
    costs.log = counts.log;
    costs.cpu = counts.coordinator_time;
    costs.events = counts.coordinator_events;
    if (!phase.empty()) costs_.push_back(std::move(costs));
  }

  const PhaseOptions options_;
  sim::Simulator simulator_;
  sim::FaultPlan faults_;
  sim::SimNetwork network_;
  SimulatedJob job_;
  Instant began_;
  std::vector<PhaseCosts> costs_;
};

int MembersOf(Run& run) { return run.job().coordinator().members(); }

void JoinAll(Run& run, absl::Duration spread) {
  run.ForEach(spread, [&](int rank) { run.job().member(rank).Begin(); });
}

void Meet(Run& run, const std::string& tag, int from) {
  run.ForEach(absl::Milliseconds(100), [&run, tag, from](int rank) {
    if (rank >= from) run.job().member(rank).Arrive(tag);
  });
}

bool HaveMet(Run& run) {
  for (int rank = 0; rank < run.workers(); ++rank) {
    const SimulatedJob::Member& member = run.job().member(rank);
    if (member.is_waiting() || !member.met().ok()) return false;
  }
  return true;
}

// Its end is the end of the phase.
void FailUntilKnown(Run& run, const std::string& phase, int first, int count,
                    bool is_seen) {
  const int before = MembersOf(run);
  for (int rank = first; rank < first + count; ++rank) {
    SimulatedJob::Member& member = run.job().member(rank);
    const uint64_t incarnation = member.incarnation();
    run.Fail(rank);
    if (is_seen) run.job().coordinator().ReportExit(member.name(), incarnation);
  }
  run.Until(phase, [&] { return MembersOf(run) == before - count; });
}

}  // namespace

std::vector<PhaseCosts> RunJobPhases(const PhaseOptions& options) {
  WEFT_CHECK_GT(options.workers, 2 * options.rack);
  const int last = options.workers - 1;
  Run run(options);
  JoinAll(run, options.spread);
  run.Until("join", [&] { return MembersOf(run) == options.workers; });

  run.PassTime(absl::Seconds(10));
  run.Until("idle, 10 s", [] { return true; });

  Meet(run, "all", 0);
  run.PassTime(absl::Milliseconds(100));
  run.Until("barrier", [&] { return HaveMet(run); });

  Meet(run, "all but one", 1);
  run.After(absl::Seconds(12),
            [&] { run.job().member(0).Arrive("all but one"); });
  run.PassTime(absl::Seconds(12));
  run.Until("barrier, one 12 s late", [&] { return HaveMet(run); });

  FailUntilKnown(run, "one fails, silently", last, 1, /*is_seen=*/false);
  FailUntilKnown(run, "one fails, seen", last - 1, 1, /*is_seen=*/true);
  FailUntilKnown(run, "rack fails, silently", 0, options.rack,
                 /*is_seen=*/false);

  run.job().CrashCoordinator();
  run.PassTime(absl::Seconds(2));
  run.job().RestartCoordinator();
  run.Until("coordinator away 2 s", [] { return true; });

  run.ForEach(options.spread,
              [&](int rank) { run.job().member(rank).Leave(); });
  run.Until("leave", [&] { return MembersOf(run) == 0; });
  std::vector<PhaseCosts> costs = std::move(run).costs();

  Run other(options);
  JoinAll(other, options.spread);
  other.PassTime(options.spread / 2);
  other.job().CrashCoordinator();
  other.PassTime(absl::Seconds(1));
  other.job().RestartCoordinator();
  other.Until("join, coordinator away 1 s",
              [&] { return MembersOf(other) == options.workers; });
  for (PhaseCosts& more : std::move(other).costs()) {
    costs.push_back(std::move(more));
  }
  return costs;
}

}  // namespace weft::rendezvous
