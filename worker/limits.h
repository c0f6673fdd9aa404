// Limits: how much others may ask of one rank, and for how long it waits for
// those who are silent. docs/security.md has the table.

#ifndef WEFT_WORKER_LIMITS_H_
#define WEFT_WORKER_LIMITS_H_

#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/net/endpoint.h"
#include "weft/net/loop/loop.h"
#include "weft/rpc/session/limits.h"

namespace weft::worker {

struct Limits {
  // What it has besides limits, the Worker sets.
  net::LoopOptions loop;
  net::AdmissionLimits admission;
  rpc::Limits rpc;
  // See rpc::AgentOptions.
  absl::Duration give_up_after = absl::Seconds(10);
  // A member that is silent for so long is shown as suspect, and then declared
  // gone: settings of the coordinator, for the whole job. A coordinator of its
  // own that has none takes those of the first worker to join, if they are not
  // the default, between 100 ms and an hour.
  absl::Duration suspect_after = absl::Seconds(3);
  absl::Duration dead_after = absl::Seconds(10);
  // How often a member tells the coordinator that it lives.
  absl::Duration heartbeat_interval = absl::Milliseconds(500);

  // How long silence is borne, from which the times above follow (silence.h).
  // Zero: as each of them says. --silence, WEFT_SILENCE
  absl::Duration silence = absl::ZeroDuration();
  // The names that SetLimits has set: those do not follow from it.
  std::set<std::string> given = {};
};

// Sets those that `text` names: NAME=VALUE,... with names as above, those of
// rpc::Limits after "rpc_". kInvalidArgument, and nothing is set, if a name is
// unknown (it says which are known) or a value is none: integers from 1 on, and
// durations above 0.
absl::Status SetLimits(const std::string& text, Limits* limits);

}  // namespace weft::worker

#endif  // WEFT_WORKER_LIMITS_H_
