// A counter on one worker, counted up by two others while everything that can
// fail does: how to test functions of your own.

#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "weft/rpc/simulated_agents.h"
#include "weft/weft.h"

namespace {

namespace rpc = weft::rpc;

// ------------------------------------------------- what is to be tested

struct Counter {
  int64_t value = 0;
};

int64_t Increment(rpc::CallContext& context, int64_t by) {
  return context.Local<Counter>()->value += by;
}
WEFT_RPC(Increment);

// --------------------------------------------------------------- the test

struct Result {
  int64_t counted = 0;
  int64_t certain = 0;  // increments that were told to have been made
  int64_t perhaps = 0;  // and those that may have been
  uint64_t trace_hash = 0;
};

Result RunSeed(uint64_t seed, weft::sim::FaultPlan* all_faults) {
  rpc::SimulatedAgents::Options options;
  options.workers = 3;
  options.faults = rpc::SimulatedAgents::AllFaults(0.05);
  rpc::SimulatedAgents agents(seed, options);
  Counter counter;  // outlives the crashes of w2, as a disk would
  agents.OnStart([&](int, rpc::Agent& agent) { agent.SetLocal(&counter); });
  Result result;
  agents.Run(2, [&](int worker) -> absl::Status {
    for (int i = 0; i < 10; ++i) {
      const absl::Status status =
          rpc::Call(agents[worker].To("w2"), Increment, 1).status();
      if (status.ok()) ++result.certain;
      if (rpc::OutcomeUnknown(status)) ++result.perhaps;
      agents.Sleep(absl::Milliseconds(10));
    }
    return absl::OkStatus();
  });
  result.counted = counter.value;
  result.trace_hash = agents.trace_hash();
  all_faults->Absorb(agents.faults());
  return result;
}

TEST(Counter, CountsEachIncrementOnce) {
  weft::sim::FaultPlan faults(0, rpc::SimulatedAgents::AllFaults(0.05));
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Result result = RunSeed(seed, &faults);
    ASSERT_GE(result.counted, result.certain) << "seed " << seed;
    ASSERT_LE(result.counted, result.certain + result.perhaps)
        << "seed " << seed;
  }
  // Each kind of fault has struck: else the test would show nothing of it.
  EXPECT_TRUE(faults.CheckHits().ok()) << faults.CheckHits();
}

TEST(Counter, ASeedThatFailsCanBeRunAgain) {
  weft::sim::FaultPlan faults(0);
  EXPECT_EQ(RunSeed(7, &faults).trace_hash, RunSeed(7, &faults).trace_hash);
}

}  // namespace
