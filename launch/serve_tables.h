// ServeTables: what the parameter_server program does once it has joined.

#ifndef WEFT_LAUNCH_SERVE_TABLES_H_
#define WEFT_LAUNCH_SERVE_TABLES_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/ps/server.h"
#include "weft/worker/worker.h"

namespace weft::launch {

// Serves the tables of `server`, which must outlive `worker`, to the trainers
// of `worker`'s job until all of them have gone. Returns how the job ended
// (JobOutcome::Of): OK if it was completed. `stop_signal()` is called from this
// thread about ten times a second. Once it is not 0, the server serves for
// `grace` at most, so that trainers can save what they have, and returns
// worker::EndedBySignal.
absl::Status ServeTables(worker::Worker& worker, ps::Server& server,
                         absl::FunctionRef<int()> stop_signal,
                         absl::Duration grace);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_SERVE_TABLES_H_
