// JobPhases: what the parts of a job's life cost its coordinator and its
// members, counted in a simulation.

#ifndef WEFT_RENDEZVOUS_TESTING_JOB_PHASES_H_
#define WEFT_RENDEZVOUS_TESTING_JOB_PHASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "weft/rendezvous/testing/simulated_job.h"

namespace weft::rendezvous {

struct PhaseCosts {
  std::string phase;
  // Virtual, from its cause until all that run have the same view of its end.
  absl::Duration time;
  // The coordinator's requests and answers, without heartbeats.
  Traffic in;
  Traffic out;
  Traffic heartbeats;  // both
  // What the member that has most sends and receives, without heartbeats.
  int64_t member_messages = 0;
  int64_t member_bytes = 0;
  Traffic log;
  // Processor time of the coordinator's core: informative, not simulated.
  absl::Duration cpu;
  int64_t events = 0;
};

struct PhaseOptions {
  int workers = 100;
  int rack = 32;  // workers of a rack, one of which fails as a whole
  uint64_t seed = 1;
  // All join, and all leave, within this.
  absl::Duration spread = absl::Seconds(1);
};

// One job after another: all join, idle for 10 s, meet at a barrier, meet at
// one to which a member comes 12 s late; one fails in silence, one is seen to
// fail, a rack fails in silence, the coordinator is away for 2 s, all leave.
// And a second job, whose coordinator is away for 1 s while its members join.
// Workers have addresses and processes as real ones; links have 100 to 500 us
// and no limit of bandwidth. REQUIRES: more than two racks of workers.
std::vector<PhaseCosts> RunJobPhases(const PhaseOptions& options);

}  // namespace weft::rendezvous

#endif  // WEFT_RENDEZVOUS_TESTING_JOB_PHASES_H_
