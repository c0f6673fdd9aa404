#include "weft/rpc/testing/simulated_agents.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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
#include "weft/rpc/testing/simulated_calls.h"
#include "weft/tests/support/spawn.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

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

}  // namespace
}  // namespace weft::rpc
