// A counter on one worker, counted up by two others while everything that can
// fail does: how to test functions of your own.

#include <cstdint>
#include <iostream>
#include <string>

#include "gtest/gtest.h"
#include "weft/rpc/testing/simulated_agents.h"
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
  int64_t certain = 0;  // increments that were acknowledged
  int64_t perhaps = 0;  // and those that may have been
  uint64_t trace_hash = 0;
};

// What happened in all seeds.
struct Sums {
  weft::sim::FaultPlan faults{0, rpc::SimulatedAgents::AllFaults(0.05)};
  rpc::SessionCoverage transitions;
};

Result RunSeed(uint64_t seed, Sums* sums,
               rpc::PlantedBug planted = rpc::PlantedBug::kNone) {
  rpc::SimulatedAgents::Options options;
  options.workers = 3;
  options.faults = rpc::SimulatedAgents::AllFaults(0.05);
  options.planted = planted;
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
  sums->faults.Absorb(agents.faults());
  sums->transitions.Absorb(agents.transitions());
  return result;
}

bool IsRight(const Result& result) {
  return result.counted >= result.certain &&
         result.counted <= result.certain + result.perhaps;
}

TEST(Counter, CountsEachIncrementOnce) {
  Sums sums;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    ASSERT_TRUE(IsRight(RunSeed(seed, &sums))) << "seed " << seed;
  }
  std::cout << sums.faults.Report()
            << sums.transitions.Report(rpc::SessionCoverage::Where::kCalls);
  // Each kind of fault has struck, and calls went through all that it brings:
  // else the test would show nothing of it.
  const absl::Status faults = sums.faults.CheckHits();
  EXPECT_TRUE(faults.ok()) << faults;
  const absl::Status transitions =
      sums.transitions.CheckHits(rpc::SessionCoverage::Where::kCalls);
  EXPECT_TRUE(transitions.ok()) << transitions;
}

TEST(Counter, WouldFindAWeftThatCountsTwice) {
  Sums sums;
  uint64_t seed = 1;
  while (seed <= 100 &&
         IsRight(RunSeed(seed, &sums, rpc::PlantedBug::kNoDedupe))) {
    ++seed;
  }
  EXPECT_LE(seed, 100u);
}

TEST(Counter, ASeedThatFailsCanBeRunAgain) {
  Sums sums;
  EXPECT_EQ(RunSeed(7, &sums).trace_hash, RunSeed(7, &sums).trace_hash);
}

}  // namespace
