// Weft for tests: what the tests of a user's program include. Target
// //:testing.
//
//   weft::worker::TestWorkers    real workers, in this process
//   weft::rpc::SimulatedAgents   agents under seeded faults, in virtual time

#ifndef WEFT_TESTING_H_
#define WEFT_TESTING_H_

#include "weft/rpc/testing/simulated_agents.h"
#include "weft/sim/fault_plan.h"
#include "weft/worker/test_workers.h"

#endif  // WEFT_TESTING_H_
