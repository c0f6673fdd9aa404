// Silence: how long a worker bears that another is silent, and the times that
// follow from that one setting.
//
// With a silence S, a member is suspect after 0.3 S and dead after S, and calls
// to one that cannot be reached are given up after S. A member sends a
// heartbeat every S/20, at least each 500 ms, so that six are missing before it
// is suspect. A call waits for at least 2 S, and a job for its members: else it
// would end by its own time-out, and not by the death that is the reason. These
// are the ratios of the defaults, which are those of 10 s.

#ifndef WEFT_WORKER_SILENCE_H_
#define WEFT_WORKER_SILENCE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/worker/limits.h"

namespace weft::worker {

// What depends on silence. A time that is not the default was given by the user
// and stays, and so do those in limits.given.
struct SilenceTimes {
  Limits& limits;
  absl::Duration& rpc_timeout;
  absl::Duration& join_timeout;
};

// "10s", "2m" or a number of seconds, from 1 s to an hour; else
// kInvalidArgument.
absl::Status ParseSilence(const std::string& text, absl::Duration* silence);

// Sets what follows from limits.silence; nothing if that is zero.
void DeriveFromSilence(SilenceTimes times);

// kInvalidArgument for an order of the times that cannot work, with both: dead
// before suspect; suspect before a heartbeat can have been missed; where
// limits.silence is set, also a call, or the wait for members, that ends before
// a silent one is known to be dead.
absl::Status CheckSilence(const SilenceTimes& times);

}  // namespace weft::worker

#endif  // WEFT_WORKER_SILENCE_H_
