// Shutdown: how a worker ends: its options, its phases under one deadline, and
// its report.

#ifndef WEFT_WORKER_SHUTDOWN_H_
#define WEFT_WORKER_SHUTDOWN_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/clock.h"
#include "weft/rpc/diagnostics/leaks.h"

namespace weft::worker {

struct ShutdownOptions {
  // For all phases together. Work that is not done by then is cut off.
  absl::Duration deadline = absl::Minutes(5);
  // If false the worker does not wait: calls end with kCancelled, and other
  // workers get one message.
  bool graceful = true;
  // The workers that end together with this one, as a selector of View::Select:
  // until all of them have called Shutdown, or are gone, each serves the
  // others' calls. Unset: those of its own role in a fixed world, nobody in an
  // elastic one.
  std::optional<std::string> together;
  // Leaked objects and streams are an error of the report, not only a warning
  // in the log. The worker ends in any case.
  bool strict_leaks = false;
};

// What a Shutdown did, phase by phase:
//   quiesce  those who end together have all begun to
//   drain    the calls that they had begun have ended
//   release  passes and references have ended, those of the others who end
//            together too; the agent has ended: calls are refused
//   leave    the others see a departure (the host of the coordinator sees
//            theirs first), and the endpoint has ended
// Without grace it begins with release; where quiesce fails, there is no drain.
struct ShutdownReport {
  struct Phase {
    std::string name;
    absl::Status status;
    absl::Duration took;
  };
  std::vector<Phase> phases;
  // The calls that were cut off: "2 calls to ps0", "1 calls of trainer1".
  std::vector<std::string> pending_calls;
  // What rpc::Agent::Leaks() found: handles that nobody has released, "2
  // Embedding::new at ps0 (calls 3, 7)", objects that others have left here, "1
  // Embedding::new of trainer1 (call 5)"; and streams that were cut, whose
  // calls are among the pending ones.
  std::vector<std::string> leaked_objects;
  std::vector<std::string> leaked_streams;
  bool strict_leaks = false;  // as the options say

  void AddLeaks(const std::vector<rpc::Leak>& leaks);
  // Ok if nothing was left; else kFailedPrecondition, which lists it.
  absl::Status LeakStatus() const;
  // The first error of a phase, else that of strict_leaks, which is also told
  // by the first one's message.
  absl::Status status() const;
  std::string ToString() const;
};

// The work of each phase, which may wait as long as its argument says.
struct ShutdownSteps {
  std::function<absl::Status(absl::Duration)> quiesce;
  std::function<absl::Status(absl::Duration)> drain;
  // Fills in the fields of the report other than phases.
  std::function<absl::Status(absl::Duration, ShutdownReport*)> release;
  std::function<absl::Status(absl::Duration)> leave;
};

// Runs the phases, each with the rest of the deadline: none once a phase has
// failed. If not graceful, errors are ignored.
ShutdownReport RunShutdown(const ShutdownOptions& options, const Clock& clock,
                           const ShutdownSteps& steps);

}  // namespace weft::worker

#endif  // WEFT_WORKER_SHUTDOWN_H_
