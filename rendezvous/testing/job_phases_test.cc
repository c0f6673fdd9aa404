// Tests of what a job of many workers costs: counts of messages and bytes,
// which do not depend on the machine.

#include "weft/rendezvous/testing/job_phases.h"

#include <iostream>
#include <map>
#include <string>

#include "gtest/gtest.h"

namespace weft::rendezvous {
namespace {

using Costs = std::map<std::string, PhaseCosts>;  // by phase

Costs CostsOf(int workers) {
  PhaseOptions options;
  options.workers = workers;
  options.rack = 16;
  Costs costs;
  for (const PhaseCosts& phase : RunJobPhases(options)) {
    std::cout << workers << " " << phase.phase << ": " << phase.time << ", in "
              << phase.in.messages << " of " << phase.in.bytes << " B, out "
              << phase.out.messages << " of " << phase.out.bytes
              << " B, a member " << phase.member_messages << " of "
              << phase.member_bytes << " B, log " << phase.log.messages
              << " of " << phase.log.bytes << " B\n";
    costs[phase.phase] = phase;
  }
  return costs;
}

TEST(JobPhases, PlaceHolder) {
  const Costs small = CostsOf(64);
  const Costs large = CostsOf(256);
  EXPECT_EQ(small.size(), large.size());
}

}  // namespace
}  // namespace weft::rendezvous
