#include "weft/rpc/testing/simulated_agents.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// What is looked at from outside; only one simulated thread runs at a time.
struct Ledger {
  SimulatedAgents* agents = nullptr;
  std::map<int64_t, int> runs;             // of each call, in all incarnations
  std::map<int64_t, WorkerKey> meant_for;  // where it is to run, if known
  std::vector<int64_t> misled;             // that ran elsewhere
  int64_t cancelled = 0;

  void Ran(const CallContext& context, int64_t id) {
    ++runs[id];
    const auto it = meant_for.find(id);
    if (it != meant_for.end() && !(it->second == context.agent().key())) {
      misled.push_back(id);
    }
  }
};

int64_t Post(CallContext& context, int64_t id, const std::string& padding) {
  context.Local<Ledger>()->Ran(context, id);
  return id + static_cast<int64_t>(padding.size());
}
WEFT_RPC(Post);

// Takes its time, as it is, but looks at its cancellation.
int64_t Work(CallContext& context, int64_t id) {
  auto* ledger = context.Local<Ledger>();
  ledger->Ran(context, id);
  for (int i = 0; i < 20; ++i) {
    if (context.cancel().IsCancelled()) {
      ++ledger->cancelled;
      break;
    }
    ledger->agents->Sleep(absl::Milliseconds(5));
  }
  return id;
}
WEFT_RPC(Work);

int64_t Read(CallContext& context, int64_t id) { return Work(context, id); }
WEFT_RPC_IDEMPOTENT(Read);

absl::Status Refuse(CallContext& context, int64_t id) {
  context.Local<Ledger>()->Ran(context, id);
  return absl::UnavailableError("the function says so");
}
WEFT_RPC_IDEMPOTENT(Refuse);

// Waits for a call of its own.
absl::StatusOr<int64_t> Forward(CallContext& context, const std::string& to,
                                int64_t id) {
  return Call(context.To(to), Post, id, "");
}
WEFT_RPC(Forward);

absl::StatusOr<int64_t> PingPong(CallContext& context, int64_t depth) {
  if (depth == 0) return 0;
  auto below = Call(context.To(context.peer().name), PingPong, depth - 1);
  if (!below.ok()) return below.status();
  return *below + 1;
}
WEFT_RPC(PingPong);

SimulatedAgents::Options Quiet(int workers) {
  SimulatedAgents::Options options;
  options.workers = workers;
  return options;
}

// Sums over all seeds.
struct Coverage {
  std::map<std::string, int64_t> ends;  // how calls ended, by what a user reads
  sim::FaultPlan faults{0};
  SessionCoverage transitions;
};

std::string EndOf(const absl::Status& status) {
  if (status.ok()) return "ok";
  std::string end(absl::StatusCodeToString(status.code()));
  absl::StrAppend(&end, " in ", NameOf(PhaseOf(status)));
  if (ReasonOf(status) != Reason::kNone) {
    absl::StrAppend(&end, ", ", NameOf(ReasonOf(status)));
  }
  if (OutcomeUnknown(status)) absl::StrAppend(&end, ", outcome unknown");
  if (FailuresOf(status).size() > 1) absl::StrAppend(&end, ", nested");
  return end;
}

SimulatedAgents::Options Faulty() {
  SimulatedAgents::Options options;
  options.workers = 4;
  options.faults = SimulatedAgents::AllFaults(0.02);
  options.give_up_after = absl::Milliseconds(100);  // of a partition, a half
  options.limits.calls = 3;
  options.limits.sessions = 1;
  return options;
}

void AppendTrace(const sim::Simulator& simulator,
                 std::vector<std::string>* trace) {
  const auto& lines = simulator.trace();
  trace->insert(trace->end(), lines.begin(), lines.end());
  trace->push_back(absl::StrCat("of all: ", simulator.trace_hash()));
}

// Two workers call the other two, which crash now and then. Returns what is
// wrong.
std::string RunSeed(uint64_t seed, Coverage* coverage,
                    PlantedBug planted = PlantedBug::kNone,
                    std::vector<std::string>* trace = nullptr) {
  SimulatedAgents::Options options = Faulty();
  options.planted = planted;
  SimulatedAgents agents(seed, options);
  Ledger ledger;
  ledger.agents = &agents;
  std::map<int, WorkerKey> keys;
  agents.OnStart([&](int worker, Agent& agent) {
    agent.SetLocal(&ledger);
    keys[worker] = agent.key();
  });
  std::string wrong;
  const auto check = [&](int64_t id, const absl::Status& status) {
    if (coverage != nullptr) ++coverage->ends[EndOf(status)];
    const int runs = ledger.runs[id];
    // A function that fails by a nested call has run, and its end is known.
    const bool is_certain = status.ok() || FailuresOf(status).size() == 1;
    if (runs > 1 || (status.ok() && runs != 1) ||
        (is_certain && !status.ok() && !OutcomeUnknown(status) && runs != 0) ||
        absl::IsResourceExhausted(status)) {  // they keep to their credit
      absl::StrAppend(&wrong, "call ", id, " ran ", runs,
                      " times and ended with ", status.ToString(), "\n");
    }
  };
  agents.Run(2, [&](int worker) -> absl::Status {
    struct Open {
      int64_t id;
      Future<int64_t> future;
    };
    std::vector<Open> open;
    for (int64_t i = 0; i < 12; ++i) {
      const int64_t id = 100 * worker + i;
      const int callee = 2 + static_cast<int>(i % 2);
      const Target to = agents[worker].To(absl::StrCat("w", callee));
      if (i % 4 != 2) ledger.meant_for[id] = keys[callee];
      const Target brief = to.WithTimeout(absl::Milliseconds(30));
      if (i % 4 == 0) {
        // Some bodies travel in chunks.
        open.push_back({id, CallAsync(to, Post, id,
                                      std::string(i == 4 ? 200000 : 0, 'x'))});
      } else if (i % 4 == 1) {
        open.push_back({id, CallAsync(brief, Work, id)});
      } else if (i % 4 == 2) {
        open.push_back(
            {id, CallAsync(to, Forward, absl::StrCat("w", 3 - i % 2), id)});
      } else {
        open.push_back({id, CallAsync(to, Work, id)});
        if (i == 7) open.back().future.Cancel();
      }
      agents.Sleep(absl::Milliseconds(5));
    }
    for (const Open& call : open) {
      check(call.id, call.future.Wait(absl::Minutes(2)).status());
    }
    return absl::OkStatus();
  });
  // Nothing runs late either.
  for (const auto& [id, runs] : ledger.runs) {
    if (runs > 1) absl::StrAppend(&wrong, "call ", id, " ran ", runs, " times");
  }
  for (const int64_t id : ledger.misled) {
    absl::StrAppend(&wrong, "call ", id, " ran in another incarnation\n");
  }
  if (coverage != nullptr) {
    coverage->faults.Absorb(agents.faults());
    coverage->transitions.Absorb(agents.transitions());
  }
  if (trace != nullptr) AppendTrace(agents.simulator(), trace);
  return wrong;
}

TEST(SimulatedFaults, CallsRunOnceOrNotAtAllForAThousandSeeds) {
  Coverage coverage{{}, sim::FaultPlan(0, Faulty().faults), {}};
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    ASSERT_EQ(RunSeed(seed, &coverage), "") << "seed " << seed;
  }
  constexpr auto kAgents = SessionCoverage::Where::kAgents;
  std::cout << coverage.faults.Report() << coverage.transitions.Report(kAgents);
  for (const auto& [end, count] : coverage.ends) {
    std::cout << count << " calls: " << end << "\n";
  }
  EXPECT_THAT(coverage.faults.CheckHits(), IsOk());
  EXPECT_THAT(coverage.transitions.CheckHits(kAgents), IsOk());
  // Every way in which one of them can end has been seen, and no other.
  std::vector<std::string> ends;
  for (const auto& [end, count] : coverage.ends) ends.push_back(end);
  EXPECT_THAT(ends, UnorderedElementsAre(
                        "ok", "CANCELLED in queue",
                        "CANCELLED in handler, outcome unknown",
                        "DEADLINE_EXCEEDED in queue",
                        "DEADLINE_EXCEEDED in wire, outcome unknown",
                        "DEADLINE_EXCEEDED in handler, outcome unknown",
                        "UNAVAILABLE in queue, peer gone",
                        "UNAVAILABLE in wire, peer gone, outcome unknown",
                        "UNAVAILABLE in queue, unreachable",
                        "UNAVAILABLE in wire, unreachable, outcome unknown",
                        "UNAVAILABLE in wire, forgotten, outcome unknown",
                        "UNAVAILABLE in handler, nested"));
}

TEST(SimulatedFaults, FindEachPlantedBugWithinTheSeeds) {
  const std::pair<PlantedBug, const char*> bugs[] = {
      {PlantedBug::kNoDedupe, "ran 2 times"},
      {PlantedBug::kNoFence, "ran 2 times"},
      {PlantedBug::kEpochIgnored, "ran in another incarnation"},
      {PlantedBug::kSendOrderLost, "RESOURCE_EXHAUSTED"},
      {PlantedBug::kNoMemory, "ran 2 times"}};
  for (const auto& [bug, what] : bugs) {
    std::string wrong;
    uint64_t seed = 0;
    while (!absl::StrContains(wrong, what) && ++seed <= 1000) {
      wrong = RunSeed(seed, nullptr, bug);
    }
    std::cout << "bug " << static_cast<int>(bug) << ": seed " << seed << "\n";
    EXPECT_LE(seed, 1000u) << "bug " << static_cast<int>(bug);
  }
}

constexpr char kReplaySeed[] = "WEFT_REPLAY_SEED";

// In a process of its own, which has other addresses and hash seeds.
std::string TraceOfAnotherProcess(uint64_t seed) {
  auto process = testing::Process::Start(
      {{"/proc/self/exe", "--gtest_filter=*ASeedReplaysBitForBit"},
       {absl::StrCat(kReplaySeed, "=", seed),
        "XML_OUTPUT_FILE=", "TEST_PREMATURE_EXIT_FILE="}});
  if (!process.ok()) return process.status().ToString();
  const auto code = (*process)->Wait(absl::Minutes(2));
  return code.ok() ? (*process)->output() : code.status().ToString();
}

// w3 crashes amid calls of the three others, when it has called each: in which
// order it ends its sessions is when each of them is notified.
void CrashAmidSessions(uint64_t seed, std::vector<std::string>* trace) {
  SimulatedAgents agents(seed, Quiet(4));
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  agents.Run(3, [&](int worker) -> absl::Status {
    const Target to = agents[worker].To("w3");
    WEFT_RETURN_IF_ERROR(Call(to, PingPong, 2).status());
    const Future<int64_t> call = CallAsync(to, Work, worker);
    agents.Sleep(absl::Milliseconds(20));
    if (worker == 0) agents.CrashAndRestart(3);
    return call.Wait(absl::Minutes(2)).status();
  });
  AppendTrace(agents.simulator(), trace);
}

std::vector<std::string> TraceOf(uint64_t seed) {
  std::vector<std::string> trace;
  RunSeed(seed, nullptr, PlantedBug::kNone, &trace);
  CrashAmidSessions(seed, &trace);
  return trace;
}

TEST(SimulatedFaults, ASeedReplaysBitForBit) {
  constexpr uint64_t kSeeds = 20;
  if (const char* const only = std::getenv(kReplaySeed)) {
    uint64_t seed = 0;
    ASSERT_TRUE(absl::SimpleAtoi(only, &seed));
    std::cout << absl::StrJoin(TraceOf(seed), "\n") << "\nend\n";
    return;
  }
  std::map<uint64_t, std::vector<std::string>> first;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    first[seed] = TraceOf(seed);
    ASSERT_GT(first[seed].size(), 100u);
  }
  // In another order, so that nothing is at the address that it had.
  for (uint64_t seed = kSeeds; seed >= 1; --seed) {
    ASSERT_EQ(first[seed], TraceOf(seed)) << "seed " << seed;
  }
  EXPECT_NE(first[1], first[2]);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    EXPECT_THAT(
        TraceOfAnotherProcess(seed),
        ::testing::HasSubstr(absl::StrJoin(first[seed], "\n") + "\nend\n"))
        << "seed " << seed;
  }
}

// ------------------------------------------------------------ rules

// Which of its caller's calls to this worker it is.
int64_t WhichCall(CallContext& context) {
  return static_cast<int64_t>(static_cast<ServedCall&>(context).id());
}
WEFT_RPC(WhichCall);

struct RuledRun {
  int64_t first = 0;  // what two calls of WhichCall returned
  int64_t second = 0;
  absl::Duration post;   // how long a call of Post took
  absl::Duration other;  // and one of WhichCall
  int64_t runs = 0;      // of Post
  int64_t lost = 0;
  int64_t late = 0;
  std::string report;
  std::string replay;
  uint64_t trace = 0;
};

RuledRun RunWithRules(uint64_t seed, std::vector<sim::FaultPlan::Rule> rules) {
  SimulatedAgents::Options options = Quiet(2);
  options.faults.rules = std::move(rules);
  SimulatedAgents agents(seed, options);
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  RuledRun run;
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    const Target to = agents[0].To("w1");
    WEFT_ASSIGN_OR_RETURN(run.first, Call(to, WhichCall));
    const auto time = [&](absl::Duration* took, auto function, auto... a) {
      const Instant start = agents.simulator().Now();
      const absl::Status status = Call(to, function, a...).status();
      *took = agents.simulator().Now() - start;
      return status;
    };
    WEFT_RETURN_IF_ERROR(time(&run.post, Post, int64_t{1}, std::string()));
    WEFT_RETURN_IF_ERROR(time(&run.other, WhichCall));
    WEFT_ASSIGN_OR_RETURN(run.second, Call(to, WhichCall));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk())) << agents.faults().Replay();
  run.runs = ledger.runs[1];
  run.lost = agents.faults().hits(sim::Fault::kReset);
  run.late = agents.faults().hits(sim::Fault::kDelay);
  run.report = agents.faults().Report();
  run.replay = agents.faults().Replay();
  run.trace = agents.trace_hash();
  EXPECT_THAT(agents.faults().CheckHits(), IsOk()) << run.replay;
  return run;
}

TEST(SimulatedFaults, TheFirstRequestsOfAFunctionAreLostAndTheFourthPasses) {
  const std::string name = internal::NameOf<&WhichCall>();
  const std::vector<sim::FaultPlan::Rule> rules = {
      sim::FaultPlan::Rule::Drop("request", name, 3)};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RuledRun run = RunWithRules(seed, rules);
    EXPECT_EQ(run.first, 1) << run.replay;  // the same id each time
    EXPECT_EQ(run.second, 4) << run.replay;
    EXPECT_EQ(run.runs, 1) << run.replay;
    EXPECT_EQ(run.lost, 3) << run.replay;
    // Three were lost of those that were sent: of one call four, of two one.
    EXPECT_THAT(run.report,
                HasSubstr(absl::StrCat("reset of the first 3 request of ", name,
                                       ": 3 hits of 6\n")));
    EXPECT_EQ(run.trace, RunWithRules(seed, rules).trace) << run.replay;
    EXPECT_NE(run.trace, RunWithRules(seed, {}).trace) << run.replay;
  }
  EXPECT_EQ(RunWithRules(7, rules).replay,
            absl::StrCat("seed 7, reset of the first 3 request of ", name));
}

TEST(SimulatedFaults, ChosenMessagesAreLateByTheTimeThatARuleSays) {
  using Rule = sim::FaultPlan::Rule;
  const absl::Duration late = absl::Seconds(1.5);
  const RuledRun request = RunWithRules(
      3, {Rule::Delay("request", late, internal::NameOf<&Post>())});
  EXPECT_GE(request.post, late);
  EXPECT_LT(request.post, late + absl::Milliseconds(100));
  EXPECT_LT(request.other, absl::Milliseconds(100));
  EXPECT_EQ(request.late, 1);
  const RuledRun reply = RunWithRules(3, {Rule::Delay("reply", late)});
  EXPECT_GE(reply.post, late);
  EXPECT_GE(reply.other, late);
  EXPECT_EQ(reply.late, 4);
}

// ------------------------------------------------------------ clocks

int64_t RemainingMilliseconds(CallContext& context) {
  return absl::ToInt64Milliseconds(context.Remaining());
}
WEFT_RPC(RemainingMilliseconds);

// Until the caller's time is over, by its own clock.
absl::Status Outlast(CallContext& context) {
  auto* ledger = context.Local<Ledger>();
  while (!context.cancel().IsCancelled()) {
    ledger->agents->Sleep(absl::Milliseconds(5));
  }
  ++ledger->cancelled;
  return absl::OkStatus();
}
WEFT_RPC(Outlast);

TEST(SimulatedFaults, DeadlinesTravelAsRemaindersBetweenClocksThatDiffer) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedAgents::Options options = Quiet(2);
    options.faults.rate[static_cast<int>(sim::Fault::kClockSkew)] = 1;
    SimulatedAgents agents(seed, options);
    Ledger ledger;
    ledger.agents = &agents;
    agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
    const auto statuses = agents.Run(1, [&](int) -> absl::Status {
      const auto remaining =
          Call(agents[0].To("w1", absl::Seconds(10)), RemainingMilliseconds);
      if (!remaining.ok()) return remaining.status();
      EXPECT_NEAR(*remaining, 10000, 100) << "seed " << seed;
      const Instant before = agents.simulator().Now();
      // It answers in time where its clock is the faster one.
      const absl::Status end =
          Call(agents[0].To("w1", absl::Seconds(10)), Outlast);
      EXPECT_TRUE(end.ok() || absl::IsDeadlineExceeded(end)) << end;
      // Either clock is off by a tenth at most.
      const absl::Duration took = agents.simulator().Now() - before;
      EXPECT_GE(took, absl::Seconds(9)) << "seed " << seed;
      EXPECT_LE(took, absl::Seconds(11.2)) << "seed " << seed;
      agents.Sleep(absl::Seconds(3));
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, ElementsAre(IsOk())) << "seed " << seed;
    EXPECT_EQ(ledger.cancelled, 1) << "seed " << seed;
    EXPECT_EQ(agents.faults().hits(sim::Fault::kClockSkew), 2);
  }
}

TEST(SimulatedFaults, FunctionsMayWaitForCallsOfTheirOwn) {  // PROBE-P6
  SimulatedAgents agents(3, Quiet(2));
  const auto statuses = agents.Run(2, [&](int worker) -> absl::Status {
    const Target other = agents[worker].To(absl::StrCat("w", 1 - worker));
    const absl::StatusOr<int64_t> depth = Call(other, PingPong, 12);
    if (!depth.ok()) return depth.status();
    return *depth == 12 ? absl::OkStatus() : absl::InternalError("too few");
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

// A chain whose last function takes its time, whoever has given up.
absl::StatusOr<int64_t> PingPongAndOversleep(CallContext& context,
                                             int64_t depth) {
  if (depth == 0) {
    context.Local<Ledger>()->agents->Sleep(absl::Seconds(30));
    return 0;
  }
  return Call(context.To(context.peer().name), PingPongAndOversleep, depth - 1);
}
WEFT_RPC(PingPongAndOversleep);

// PROBE-P6
TEST(SimulatedFaults, TwelveStuckChainsEndWithinAQuarterSecondOfTheirDeadline) {
  SimulatedAgents agents(13, Quiet(2));
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  constexpr absl::Duration kDeadline = absl::Seconds(2);
  const auto statuses = agents.Run(2, [&](int worker) -> absl::Status {
    const Target other =
        agents[worker].To(absl::StrCat("w", 1 - worker), kDeadline);
    const Instant start = agents.simulator().Now();
    std::vector<Future<int64_t>> chains;
    for (int i = 0; i < 6; ++i) {
      chains.push_back(CallAsync(other, PingPongAndOversleep, 10));
    }
    for (const auto& chain : chains) {
      EXPECT_THAT(chain.Wait(absl::Minutes(2)),
                  StatusIs(absl::StatusCode::kDeadlineExceeded, ""));
    }
    const absl::Duration took = agents.simulator().Now() - start;
    EXPECT_GE(took, kDeadline);
    EXPECT_LE(took, kDeadline + absl::Milliseconds(250));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(SimulatedFaults, HoursPassInNoTime) {
  SimulatedAgents agents(11, Quiet(2));
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  const absl::Time really = absl::Now();
  Instant before;
  Instant after;
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    before = agents.simulator().Now();
    agents.Cut(0, 1);
    const absl::Status late =
        Call(agents[0].To("w1", absl::Hours(1)), Post, 1, "").status();
    after = agents.simulator().Now();
    agents.Sleep(absl::Hours(10));
    agents.Heal(0, 1);
    return late;
  });
  // Calls to an unreachable worker end before.
  EXPECT_THAT(statuses,
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable, "w1")));
  EXPECT_GE(after - before, absl::Seconds(10));
  EXPECT_GE(agents.simulator().Now() - after, absl::Hours(10));
  EXPECT_LT(absl::Now() - really, absl::Minutes(1));
}

TEST(SimulatedFaults, APartitionHeals) {
  SimulatedAgents agents(4, Quiet(2));
  Ledger ledger;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    const Target other = agents[0].To("w1", absl::Seconds(5));
    WEFT_RETURN_IF_ERROR(Call(other, Post, 1, "").status());
    agents.Cut(0, 1);
    Future<int64_t> call = CallAsync(other, Post, 2, "");
    agents.Sleep(absl::Seconds(1));
    if (call.IsReady()) return absl::InternalError("through the partition");
    agents.Heal(0, 1);
    return call.Wait(absl::Seconds(10)).status();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(ledger.runs[2], 1);
}

void Stay(CallContext& context) {
  auto* ledger = context.Local<Ledger>();
  while (!context.cancel().IsCancelled()) {
    ledger->agents->Sleep(absl::Milliseconds(100));
  }
  ++ledger->cancelled;
}
WEFT_RPC(Stay);

class GiveUpAfter : public ::testing::TestWithParam<int> {};

// Longer and shorter than the pause between attempts, which is a second.
INSTANTIATE_TEST_SUITE_P(Milliseconds, GiveUpAfter,
                         ::testing::Values(50, 100, 200, 300, 1000, 3000));

TEST_P(GiveUpAfter, CallThatIsGivenUpInAPartitionIsCancelledOnceThatHeals) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimulatedAgents::Options options = Quiet(2);
    options.give_up_after = absl::Milliseconds(GetParam());
    // So that timers of one worker meet in either order.
    options.faults = sim::FaultPlan::Options::Of({sim::Fault::kClockSkew}, 1);
    SimulatedAgents agents(seed, options);
    Ledger ledger;
    ledger.agents = &agents;
    agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
    const auto statuses = agents.Run(1, [&](int) -> absl::Status {
      const Target w1 = agents[0].To("w1", absl::Seconds(600));
      const Future<void> call = CallAsync(w1, Stay);
      agents.Sleep(absl::Seconds(1));
      agents.Cut(0, 1);
      const Future<int64_t> lost = CallAsync(w1, Post, 1, "");
      EXPECT_THAT(call.Wait(absl::Seconds(60)),
                  StatusIs(absl::StatusCode::kUnavailable, "w1"));
      EXPECT_THAT(lost.Wait(absl::Seconds(1)).status(),
                  StatusIs(absl::StatusCode::kUnavailable, "w1"));
      agents.Sleep(absl::Seconds(20));
      EXPECT_EQ(ledger.cancelled, 0);
      // Nothing else is called there.
      agents.Heal(0, 1);
      agents.Sleep(absl::Seconds(20));
      EXPECT_EQ(ledger.cancelled, 1);
      return absl::OkStatus();
    });
    EXPECT_THAT(statuses, ElementsAre(IsOk())) << "seed " << seed;
  }
}

// PROBE-P9: a call that is out, and one whose loss shows that the connection
// is.
TEST(SimulatedFaults, TenSecondsOfSilenceEndACallThatIsOut) {
  SimulatedAgents agents(5, Quiet(2));
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  absl::Duration took;
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    const Target w1 = agents[0].To("w1", absl::Hours(1));
    const Future<void> out = CallAsync(w1, Stay);
    agents.Sleep(absl::Seconds(3));
    EXPECT_EQ(agents[1].Metrics().server_active_calls, 1);
    agents.Cut(0, 1);
    const Instant cut = agents.simulator().Now();
    const Future<int64_t> lost = CallAsync(w1, Post, 1, "");
    const absl::Status status = out.Wait(absl::Hours(2));
    took = agents.simulator().Now() - cut;
    EXPECT_THAT(lost.Wait(absl::Seconds(1)),
                StatusIs(absl::StatusCode::kUnavailable, "w1"));
    return status;
  });
  ASSERT_THAT(statuses,
              ElementsAre(StatusIs(absl::StatusCode::kUnavailable, "w1")));
  EXPECT_EQ(ReasonOf(statuses[0]), Reason::kUnreachable);
  EXPECT_TRUE(OutcomeUnknown(statuses[0]));
  EXPECT_GE(took, absl::Seconds(10));
  EXPECT_LT(took, absl::Seconds(11));
}

// Its reply does not arrive.
int64_t PostAndCut(CallContext& context, int64_t id) {
  auto* ledger = context.Local<Ledger>();
  ledger->Ran(context, id);
  ledger->agents->Cut(static_cast<int>(context.peer().key.id),
                      static_cast<int>(context.agent().key().id));
  return id;
}
WEFT_RPC(PostAndCut);

// Waits for what it makes at w1 until it is itself given up.
absl::Status MakeAtW1(CallContext& context, int64_t id) {
  return Remote(context.To("w1"), PostAndCut, id).status();
}
WEFT_RPC(MakeAtW1);

// Whether there is room at w1 for a second object of `maker`, whose first was
// made, by way of w0 and `give_up`, with a reply that did not arrive.
absl::Status MakeASecond(
    int maker,
    const std::function<absl::Status(SimulatedAgents& agents)>& give_up) {
  SimulatedAgents::Options options = Quiet(3);
  options.limits.objects = 1;
  SimulatedAgents agents(12, options);
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  return agents.Run(1, [&](int) -> absl::Status {
    const absl::Status lost = give_up(agents);
    EXPECT_TRUE(OutcomeUnknown(lost)) << lost;
    EXPECT_EQ(ledger.runs[1], 1);
    agents.Heal(maker, 1);
    agents.Sleep(absl::Seconds(5));
    return Remote(agents[maker].To("w1"), Post, 2, "").status();
  })[0];
}

TEST(SimulatedFaults, ObjectIsReleasedWhenItsReplyIsLostForGood) {  // F51
  EXPECT_THAT(MakeASecond(0,
                          [](SimulatedAgents& agents) {
                            auto made =
                                RemoteAsync(agents[0].To("w1"), PostAndCut, 1);
                            agents.Sleep(absl::Seconds(1));
                            EXPECT_FALSE(made.IsReady());
                            made.Cancel();
                            return made.Wait(absl::Seconds(1)).status();
                          }),
              IsOk());
  static constexpr absl::Duration kBrief = absl::Seconds(1);
  EXPECT_THAT(MakeASecond(0,
                          [](SimulatedAgents& agents) {
                            const Target w1 = agents[0].To("w1", kBrief);
                            return Remote(w1, PostAndCut, 1).status();
                          }),
              IsOk());
  // In a call that has ended: the release is no part of it.
  EXPECT_THAT(MakeASecond(2,
                          [](SimulatedAgents& agents) {
                            const Target w2 = agents[0].To("w2", kBrief);
                            return Call(w2, MakeAtW1, 1);
                          }),
              IsOk());
  EXPECT_THAT(MakeASecond(2,
                          [](SimulatedAgents& agents) {
                            auto call =
                                CallAsync(agents[0].To("w2"), MakeAtW1, 1);
                            agents.Sleep(absl::Seconds(1));
                            call.Cancel();
                            return call.Wait(absl::Seconds(1));
                          }),
              IsOk());
}

// G5, where the callee lives and has lost its memory.
TEST(SimulatedFaults, ForgottenSessionEndsSentCallsAndRepeatsNone) {
  SimulatedAgents::Options options = Quiet(3);
  options.limits.calls = 1;
  options.limits.sessions = 1;
  telemetry::Telemetry::Options silently;
  silently.log_level = telemetry::Level::kOff;
  telemetry::Telemetry telemetry(silently);
  options.telemetry = &telemetry;
  SimulatedAgents agents(14, options);
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  absl::Status sent;
  absl::StatusOr<int64_t> kept;
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    const Target w1 = agents[0].To("w1");
    WEFT_ASSIGN_OR_RETURN(const auto handle, Remote(w1, Post, 1, ""));
    const Future<int64_t> unanswered = CallAsync(w1, PostAndCut, 2);
    const Future<int64_t> waiting = CallAsync(w1, Post, 3, "");  // for credit
    agents.Sleep(absl::Seconds(1));
    EXPECT_EQ(ledger.runs[2], 1);
    // The session of another is one too many.
    WEFT_RETURN_IF_ERROR(Call(agents[2].To("w1"), Post, 4, "").status());
    EXPECT_FALSE(unanswered.IsReady());
    agents.Heal(0, 1);
    sent = unanswered.Wait(absl::Minutes(1)).status();
    kept = Fetch(handle);
    return waiting.Wait(absl::Minutes(1)).status();  // in the next generation
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_THAT(sent, StatusIs(absl::StatusCode::kUnavailable, "forgotten"));
  EXPECT_EQ(ReasonOf(sent), Reason::kForgotten);
  EXPECT_TRUE(OutcomeUnknown(sent));
  // Objects of a member end with its incarnation, not with a session.
  EXPECT_THAT(kept, IsOkAndHolds(1));
  EXPECT_EQ(ledger.runs[2], 1);
  EXPECT_EQ(ledger.runs[3], 1);
  // A peer that comes back is not counted as refused.
  EXPECT_EQ(telemetry.metrics()
                .CounterFor("weft_net_refused_total", {{"kind", "name"}})
                .Value(),
            0);
}

// G1: it would begin the forgotten generation again, without what had run in
// it.
TEST(SimulatedFaults, AHelloThatComesAfterItsSessionWasForgottenIsOfNoUse) {
  using Rule = sim::FaultPlan::Rule;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimulatedAgents::Options options = Quiet(3);
    options.limits.sessions = 1;
    options.network.max_delay = absl::Seconds(2);
    options.faults.rules = {Rule{sim::Fault::kReordering, "hello", "", 1}};
    SimulatedAgents agents(seed, options);
    Ledger ledger;
    ledger.agents = &agents;
    agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
    const auto statuses = agents.Run(1, [&](int) -> absl::Status {
      const Future<int64_t> call = CallAsync(agents[0].To("w1"), PostAndCut, 1);
      agents.Sleep(absl::Milliseconds(500));
      WEFT_RETURN_IF_ERROR(Call(agents[2].To("w1"), Post, 2, "").status());
      agents.Sleep(absl::Milliseconds(100) * (seed % 10));
      agents.Heal(0, 1);
      call.Wait(absl::Minutes(1)).IgnoreError();
      return absl::OkStatus();
    });
    ASSERT_THAT(statuses, ElementsAre(IsOk()));
    ASSERT_EQ(ledger.runs[1], 1) << agents.faults().Replay();
  }
}

TEST(SimulatedFaults, ACrashedWorkerIsCalledAgainInItsNextLife) {  // PROBE-P5
  SimulatedAgents agents(5, Quiet(2));
  Ledger ledger;
  ledger.agents = &agents;
  std::vector<uint64_t> epochs;
  agents.OnStart([&](int worker, Agent& agent) {
    agent.SetLocal(&ledger);
    if (worker == 1) epochs.push_back(agent.key().epoch);
  });
  absl::Status lost;
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    Future<int64_t> call = CallAsync(agents[0].To("w1"), Work, 1);
    agents.Sleep(absl::Milliseconds(20));
    agents.CrashAndRestart(1);
    lost = call.Wait(absl::Seconds(10)).status();
    return Call(agents[0].To("w1"), Post, 2, "").status();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_THAT(lost, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ReasonOf(lost), Reason::kPeerGone);
  EXPECT_TRUE(OutcomeUnknown(lost));
  EXPECT_EQ(ledger.cancelled, 1);
  EXPECT_THAT(epochs, ElementsAre(1, 2));
}

// -------------------------------------------------------------------- queues

// The calls of each queue as their functions saw them.
struct QueueLedger {
  SimulatedAgents* agents = nullptr;
  std::map<int64_t, std::vector<int64_t>> began;  // by queue
  std::map<int64_t, int> running;
  std::string wrong;
};

// Goes on when it is cancelled, unless the queue is odd.
int64_t Step(CallContext& context, int64_t queue, int64_t i,
             const std::string&) {
  auto* ledger = context.Local<QueueLedger>();
  if (++ledger->running[queue] > 1) {
    absl::StrAppend(&ledger->wrong, "two at a time on queue ", queue, "\n");
  }
  ledger->began[queue].push_back(i);
  for (int64_t tick = 0; tick < i % 4; ++tick) {
    if (queue % 2 == 1 && context.cancel().IsCancelled()) break;
    ledger->agents->Sleep(absl::Milliseconds(7));
  }
  --ledger->running[queue];
  return i;
}
WEFT_RPC(Step);

// The outcomes of calls on queues, over all seeds.
struct QueueEnds {
  int64_t ok = 0;
  int64_t given_up = 0;  // that may have run, with later ones that were ok
  int64_t lost = 0;
};

// Each of two workers makes ten calls on each of two queues to workers that
// crash, and gives some up. Returns what is wrong.
std::string RunQueues(uint64_t seed, QueueEnds* ends) {
  SimulatedAgents agents(seed, Faulty());
  QueueLedger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  const auto statuses = agents.Run(2, [&](int worker) -> absl::Status {
    for (int n = 0; n < 2; ++n) {
      const int64_t queue = 10 * (worker + 1) + n;
      const Target to =
          agents[worker].To(absl::StrCat("w", 2 + n)).Serialized();
      std::vector<Future<int64_t>> calls;
      for (int64_t i = 0; i < 10; ++i) {
        const Target one = i == 3 ? to.WithTimeout(absl::Milliseconds(20)) : to;
        calls.push_back(CallAsync(one, Step, queue, i,
                                  std::string(i == 5 ? 200000 : 0, 'x')));
        if (i % 4 == 3) agents.Sleep(absl::Milliseconds(10));
        if (i == 6) calls[2 + 2 * n].Cancel();
      }
      bool is_unknown = false;
      for (const auto& call : calls) {
        const absl::Status end = call.Wait(absl::Minutes(2)).status();
        if (end.ok()) {
          ++ends->ok;
          ends->given_up += std::exchange(is_unknown, false);
        } else if (absl::IsUnavailable(end)) {
          ++ends->lost;
        } else if (absl::IsCancelled(end) || OutcomeUnknown(end)) {
          is_unknown = true;
        } else if (PhaseOf(end) == Phase::kNone) {
          return end;  // it has not ended
        }
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) absl::StrAppend(&ledger.wrong, status.ToString(), "\n");
  }
  for (const auto& [queue, began] : ledger.began) {
    if (std::is_sorted(began.begin(), began.end(), std::less_equal<>())) {
      continue;
    }
    absl::StrAppend(&ledger.wrong, "queue ", queue, " began ",
                    absl::StrJoin(began, " "), "\n");
  }
  return ledger.wrong;
}

TEST(SimulatedOrderedQueues,
     CallsRunInOrderUnderFaultsOfAThousandSeeds) {  // F43
  QueueEnds ends;
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    ASSERT_EQ(RunQueues(seed, &ends), "") << "seed " << seed;
  }
  std::cout << ends.ok << " ok, " << ends.given_up << " given up in between, "
            << ends.lost << " lost\n";
  EXPECT_GT(ends.ok, 1000);
  EXPECT_GT(ends.given_up, 100);
  EXPECT_GT(ends.lost, 100);
}

// ------------------------------------------------------------------ targets

// Runs `main` on w0 of two workers, of which w1 may be restarted.
std::vector<absl::Status> RunWithTwo(
    uint64_t seed, Ledger* ledger,
    const std::function<absl::Status(SimulatedAgents&)>& main) {
  SimulatedAgents agents(seed, Quiet(2));
  ledger->agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(ledger); });
  return agents.Run(1, [&](int) { return main(agents); });
}

TEST(Target, ByNameReachesEachIncarnationAndPinnedOnlyItsOwn) {
  Ledger ledger;
  const auto statuses = RunWithTwo(40, &ledger, [](SimulatedAgents& agents) {
    const Worker first = *agents.directory().Find("w1");
    const Target by_name = agents[0].To("w1");
    const Target queue = by_name.Serialized();
    std::vector<Target> selected = *agents[0].ToAll("name=w1");
    const std::vector<Target> pinned = {by_name.Pinned(), queue.Pinned(),
                                        agents[0].To(first),
                                        agents[0].To(first.key)};
    std::vector<Target> following = {by_name, queue, selected[0]};
    for (const auto& targets : {pinned, following}) {
      for (const Target& target : targets) {
        EXPECT_THAT(Call(target, Post, 1, ""), IsOk());
      }
    }
    for (int restart = 0; restart < 2; ++restart) {
      agents.CrashAndRestart(1);
      for (const Target& target : following) {
        EXPECT_THAT(target.status(), IsOk());
        EXPECT_THAT(Call(target, Post, 2, ""), IsOk());
      }
      for (const Target& target : pinned) {
        const absl::Status end = Call(target, Post, 3, "").status();
        EXPECT_THAT(end, StatusIs(absl::StatusCode::kUnavailable, "is gone"));
        EXPECT_EQ(ReasonOf(end), Reason::kPeerGone);
        EXPECT_FALSE(OutcomeUnknown(end));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(ledger.runs[1], 7);
  EXPECT_EQ(ledger.runs[2], 6);
  EXPECT_EQ(ledger.runs[3], 0);
}

TEST(Target, ByNameCanBeMadeBeforeItsWorkerIsThere) {
  Ledger ledger;
  const auto statuses = RunWithTwo(41, &ledger, [](SimulatedAgents& agents) {
    const Worker w1 = *agents.directory().Find("w1");
    agents.directory().Remove("w1");
    const Target early = agents[0].To("w1");
    EXPECT_EQ(early.name(), "w1");
    EXPECT_THAT(early.status(), StatusIs(absl::StatusCode::kNotFound, "w1"));
    const absl::Status absent = Call(early, Post, 1, "").status();
    EXPECT_THAT(absent, StatusIs(absl::StatusCode::kNotFound, "w1"));
    EXPECT_TRUE(IsLocal(absent));
    const Target pinned = early.Pinned();
    agents.directory().Put(w1);
    EXPECT_THAT(early.status(), IsOk());
    EXPECT_THAT(Call(pinned, Post, 1, ""),
                StatusIs(absl::StatusCode::kNotFound, "w1"));
    return Call(early, Post, 1, "").status();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(ledger.runs[1], 1);
}

TEST(Target, ObjectsAndResultsStayWithTheIncarnationThatMadeThem) {
  Ledger ledger;
  const auto statuses = RunWithTwo(42, &ledger, [](SimulatedAgents& agents) {
    const Target w1 = agents[0].To("w1");
    // Its calls get their ids when they leave, too late for an object.
    EXPECT_THAT(Remote(w1.Serialized(), Post, 5, ""),
                StatusIs(absl::StatusCode::kInvalidArgument, "Serialized()"));
    const auto kept = Remote(w1, Post, 5, "");
    WEFT_RETURN_IF_ERROR(kept.status());
    agents.CrashAndRestart(1);
    // The same id, in a session with the next incarnation.
    EXPECT_THAT(Remote(w1, Post, 6, ""), IsOk());
    EXPECT_THAT(Fetch(*kept), StatusIs(absl::StatusCode::kUnavailable));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
}

// ------------------------------------------------------------------ retries

TEST(Retry, IsKeptByATargetMadeWhileItsWorkerIsAway) {
  Ledger ledger;
  const auto statuses = RunWithTwo(43, &ledger, [](SimulatedAgents& agents) {
    const Worker w1 = *agents.directory().Find("w1");
    agents.directory().Remove("w1");
    const Target unknown = agents[0].To("w1").WithRetry(RetryPolicy());
    const Future<int64_t> early = CallAsync(unknown, Post, 1, "");
    agents.Sleep(absl::Milliseconds(250));
    agents.directory().Put(w1);
    EXPECT_THAT(early.Wait(absl::Seconds(5)), IsOk());
    agents[0].PeerGone(w1.key, "so it is said");
    const Target gone = agents[0].To("w1").WithRetry(RetryPolicy());
    const Future<int64_t> late = CallAsync(gone, Post, 2, "");
    agents.Sleep(absl::Milliseconds(50));
    agents.CrashAndRestart(1);
    EXPECT_THAT(late.Wait(absl::Seconds(5)), IsOk());
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(ledger.runs[1], 1);
  EXPECT_EQ(ledger.runs[2], 1);
}

TEST(Retry, OfOneIncarnationEndsAtOnceWhenThatIsGone) {
  Ledger ledger;
  const auto statuses = RunWithTwo(44, &ledger, [](SimulatedAgents& agents) {
    const Worker first = *agents.directory().Find("w1");
    const Target pinned = agents[0].To(first).WithRetry(RetryPolicy());
    EXPECT_THAT(Call(pinned, Post, 1, ""), IsOk());
    agents.CrashAndRestart(1);
    agents[0].PeerGone(first.key, "so it is said");
    const Instant start = agents.simulator().Now();
    EXPECT_THAT(Call(pinned, Post, 2, ""),
                StatusIs(absl::StatusCode::kUnavailable, "is gone"));
    EXPECT_EQ(agents.simulator().Now(), start);
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(ledger.runs[2], 0);
}

// Calls `function` on w1, which crashes meanwhile; returns what came of it.
template <typename Function>
absl::Status CallAcrossACrash(Function function, Ledger* ledger,
                              const RetryPolicy& policy) {
  SimulatedAgents agents(6, Quiet(2));
  ledger->agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(ledger); });
  return agents.Run(1, [&](int) -> absl::Status {
    Future<int64_t> call =
        CallAsync(agents[0].To("w1").WithRetry(policy), function, 1);
    agents.Sleep(absl::Milliseconds(20));
    agents.CrashAndRestart(1);
    return call.Wait(absl::Minutes(2)).status();
  })[0];
}

TEST(Retry, AnIdempotentCallGoesToTheNextIncarnation) {
  Ledger ledger;
  EXPECT_THAT(CallAcrossACrash(Read, &ledger, RetryPolicy()), IsOk());
  EXPECT_EQ(ledger.runs[1], 2);
}

TEST(Retry, CallThatMayHaveRunIsNotRetriedByDefault) {
  Ledger ledger;
  const absl::Status status = CallAcrossACrash(Work, &ledger, RetryPolicy());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(OutcomeUnknown(status));
  EXPECT_EQ(ledger.runs[1], 1);
}

TEST(Retry, CallThatHasNotRunIsRetried) {
  SimulatedAgents agents(7, Quiet(2));
  Ledger ledger;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    const Target dead = agents[0].To("w1").WithRetry(RetryPolicy());
    agents.CrashAndRestart(1);
    return Call(dead, Post, 1, "").status();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(ledger.runs[1], 1);
}

TEST(Retry, AttemptsAreCounted) {
  Ledger ledger;
  RetryPolicy once;
  once.max_attempts = 1;
  EXPECT_THAT(CallAcrossACrash(Read, &ledger, once),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ledger.runs[1], 1);
}

TEST(Retry, AnErrorOfTheFunctionIsTheAnswer) {
  SimulatedAgents agents(8, Quiet(2));
  Ledger ledger;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    return Call(agents[0].To("w1").WithRetry(RetryPolicy()), Refuse, 1);
  });
  EXPECT_THAT(statuses, ElementsAre(StatusIs(absl::StatusCode::kUnavailable,
                                             "the function says so")));
  EXPECT_EQ(ledger.runs[1], 1);
}

// How long a call is tried again of a worker that is said to be gone.
absl::Duration TimeOfAttempts(const RetryPolicy& policy) {
  SimulatedAgents agents(15, Quiet(2));
  absl::Duration took;
  agents.Run(1, [&](int) -> absl::Status {
    const Target w1 = agents[0].To("w1").WithRetry(policy);
    agents[0].PeerGone(agents[1].key(), "so it is said");
    const Instant start = agents.simulator().Now();
    EXPECT_THAT(Call(w1, Refuse, 1),
                StatusIs(absl::StatusCode::kUnavailable, "is gone"));
    took = agents.simulator().Now() - start;
    return absl::OkStatus();
  });
  return took;
}

TEST(Retry, PausesGrowUpToTheLongest) {
  RetryPolicy policy;
  policy.first_pause = absl::Milliseconds(100);
  policy.growth = 2;
  policy.longest_pause = absl::Milliseconds(300);
  policy.max_attempts = 1;
  absl::Duration all;
  for (const int pause : {0, 100, 200, 300, 300}) {
    all += absl::Milliseconds(pause);
    EXPECT_EQ(TimeOfAttempts(policy), all) << policy.max_attempts;
    ++policy.max_attempts;
  }
}

TEST(Retry, AWorkerThatTheDirectoryLacksMayCome) {
  SimulatedAgents agents(16, Quiet(2));
  Ledger ledger;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    const Target w1 = agents[0].To("w1").WithRetry(RetryPolicy());
    WEFT_ASSIGN_OR_RETURN(const Worker known, agents.directory().Find("w1"));
    agents.directory().Remove("w1");
    const Future<int64_t> call = CallAsync(w1, Post, 1, "");
    agents.Sleep(absl::Milliseconds(250));
    EXPECT_FALSE(call.IsReady());
    agents.directory().Put(known);
    WEFT_RETURN_IF_ERROR(call.Wait(absl::Seconds(1)).status());
    agents.directory().Remove("w1");
    EXPECT_THAT(Call(w1, Post, 2, ""),  // when no attempt is left
                StatusIs(absl::StatusCode::kNotFound, "w1"));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
  EXPECT_EQ(ledger.runs[1], 1);
}

TEST(Retry, APauseEndsWithTheDeadlineAndWithACancellation) {
  SimulatedAgents agents(9, Quiet(2));
  RetryPolicy patient;
  patient.max_attempts = 1000;
  patient.growth = 1;
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    agents[0].PeerGone(agents[1].key(), "so it is said");
    const Target gone = agents[0].To("w1", absl::Seconds(1)).WithRetry(patient);
    EXPECT_TRUE(gone.status().ok());  // it may come back
    agents.CrashAndRestart(1);
    const Target target =
        agents[0].To("w1", absl::Seconds(1)).WithRetry(patient);
    agents[0].PeerGone(agents[1].key(), "so it is said");
    const Instant start = agents.simulator().Now();
    const absl::Status never_out = Call(target, Refuse, 1);
    EXPECT_THAT(never_out, StatusIs(absl::StatusCode::kUnavailable, "is gone"));
    EXPECT_FALSE(OutcomeUnknown(never_out));
    EXPECT_GE(agents.simulator().Now() - start, absl::Milliseconds(800));
    EXPECT_LE(agents.simulator().Now() - start, absl::Seconds(1));
    Future<void> call = CallAsync(target, Refuse, 1);
    agents.Sleep(absl::Milliseconds(250));
    call.Cancel(absl::CancelledError("enough"));
    return call.Wait(absl::Milliseconds(1));
  });
  EXPECT_THAT(statuses,
              ElementsAre(StatusIs(absl::StatusCode::kCancelled, "enough")));
}

// How a call of `Read` ends, which was out when w1 was said to be gone, and
// which nobody comes back for: when its policy or its time allows no more, or
// when its agent ends in a pause.
absl::Status CallOneThatIsLost(absl::Duration timeout, int attempts,
                               bool agent_ends) {
  SimulatedAgents agents(11, Quiet(2));
  Ledger ledger;
  ledger.agents = &agents;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  RetryPolicy policy;
  policy.max_attempts = attempts;
  policy.growth = 1;
  return agents.Run(1, [&](int) -> absl::Status {
    const Target target = agents[0].To("w1", timeout).WithRetry(policy);
    Future<int64_t> call = CallAsync(target, Read, 1);
    agents.Sleep(absl::Milliseconds(20));
    agents[0].PeerGone(agents[1].key(), "so it is said");
    agents.Sleep(policy.first_pause * 2.5);
    if (agent_ends) agents.CrashAndRestart(0);
    return call.Wait(absl::Minutes(2)).status();
  })[0];
}

TEST(Retry, AnyAttemptThatMayHaveRunMakesTheOutcomeUnknown) {
  const absl::Status ended =
      CallOneThatIsLost(absl::Minutes(1), 1000, /*agent_ends=*/true);
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kCancelled));
  EXPECT_TRUE(OutcomeUnknown(ended));
  for (const int attempts : {3, 1000}) {
    const absl::Status gone =
        CallOneThatIsLost(absl::Seconds(1), attempts, /*agent_ends=*/false);
    EXPECT_THAT(gone, StatusIs(absl::StatusCode::kUnavailable, "is gone"));
    EXPECT_TRUE(OutcomeUnknown(gone)) << attempts;
  }
}

// A call is in a pause, as its worker is down, when its agent is shut down
// within `timeout`. Returns how the Shutdown ends, and how the call does.
std::pair<absl::Status, absl::Status> ShutDownInAPause(
    absl::Duration timeout, std::vector<std::string>* cut) {
  SimulatedAgents agents(12, Quiet(3));
  Ledger ledger;
  agents.OnStart([&](int, Agent& agent) { agent.SetLocal(&ledger); });
  absl::Status shutdown;
  const auto statuses = agents.Run(2, [&](int worker) -> absl::Status {
    if (worker == 1) {
      agents.Sleep(absl::Milliseconds(150));
      agents.CrashAndRestart(2);
      return absl::OkStatus();
    }
    const Target target = agents[0].To("w2").WithRetry(RetryPolicy());
    agents[0].PeerGone(agents[2].key(), "so it is said");
    Future<int64_t> call = CallAsync(target, Post, 1, "");
    agents.Sleep(absl::Milliseconds(50));
    EXPECT_EQ(agents[0].Metrics().client_active_calls, 1);
    const std::vector<PendingCall> pending = agents[0].Pending();
    EXPECT_EQ(pending.size(), 1u);
    for (const PendingCall& paused : pending) {
      EXPECT_EQ(paused.peer, "w2");
      EXPECT_EQ(paused.phase, Phase::kQueue);
      EXPECT_EQ(paused.age, absl::Milliseconds(50));
    }
    shutdown = agents[0].Shutdown(timeout);
    *cut = agents[0].CutCalls();
    return call.Wait(absl::Seconds(1)).status();
  });
  return {shutdown, statuses[0]};
}

TEST(Retry, AShutdownWaitsForACallInItsPauseOrNamesIt) {
  std::vector<std::string> cut;
  const auto [waited, answered] = ShutDownInAPause(absl::Seconds(10), &cut);
  EXPECT_THAT(waited, IsOk());
  EXPECT_THAT(answered, IsOk());
  EXPECT_THAT(cut, ElementsAre());
  const auto [late, ended] = ShutDownInAPause(absl::ZeroDuration(), &cut);
  EXPECT_THAT(late, StatusIs(absl::StatusCode::kDeadlineExceeded, "tried"));
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kCancelled, "has shut down"));
  EXPECT_FALSE(OutcomeUnknown(ended));
  EXPECT_THAT(cut, ElementsAre("1 calls to w2 that wait to be tried again"));
}

TEST(Retry, APolicyThatMakesNoSenseIsRefused) {
  RetryPolicy never;
  never.max_attempts = 0;
  RetryPolicy back_in_time;
  back_in_time.first_pause = absl::Milliseconds(-1);
  RetryPolicy shrinking;
  shrinking.growth = 0.5;
  RetryPolicy short_pauses;
  short_pauses.longest_pause = short_pauses.first_pause / 2;
  SimulatedAgents agents(10, Quiet(2));
  const auto statuses = agents.Run(1, [&](int) -> absl::Status {
    for (const auto& [policy, says] : {std::pair(never, "found 0 attempts"),
                                       {back_in_time, "pauses -1ms to"},
                                       {shrinking, "growth 0.5"},
                                       {short_pauses, "100ms to 50ms"}}) {
      EXPECT_THAT(Call(agents[0].To("w1").WithRetry(policy), Refuse, 1),
                  StatusIs(absl::StatusCode::kInvalidArgument, says));
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, ElementsAre(IsOk()));
}

}  // namespace
}  // namespace weft::rpc
