// Partitions, silence and crashes, between simulated agents.

#include <cstdint>
#include <functional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/function.h"
#include "weft/rpc/handle.h"
#include "weft/rpc/session/failure.h"
#include "weft/rpc/testing/simulated_agents.h"
#include "weft/rpc/testing/simulated_calls.h"
#include "weft/telemetry/telemetry.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::rpc {
namespace {

using ::testing::ElementsAre;
using ::weft::testing::IsOk;
using ::weft::testing::IsOkAndHolds;
using ::weft::testing::StatusIs;

// ------------------------------------------------------------ clocks

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

}  // namespace
}  // namespace weft::rpc
