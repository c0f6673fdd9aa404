// Targets and retries, between simulated agents.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/rpc/testing/simulated_calls.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

int64_t Read(CallContext& context, int64_t id) { return Work(context, id); }
WEFT_RPC_IDEMPOTENT(Read);

absl::Status Refuse(CallContext& context, int64_t id) {
  context.Local<Ledger>()->Ran(context, id);
  return absl::UnavailableError("the function says so");
}
WEFT_RPC_IDEMPOTENT(Refuse);

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
