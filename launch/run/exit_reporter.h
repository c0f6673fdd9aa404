// ExitReporter: tells a job's coordinator which of its workers have ended, as
// somebody who has seen it: they are gone at once, without silence.

#ifndef WEFT_LAUNCH_RUN_EXIT_REPORTER_H_
#define WEFT_LAUNCH_RUN_EXIT_REPORTER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/future.h"
#include "weft/launch/failure/exit.h"
#include "weft/launch/run/coordinator_channel.h"

namespace weft::launch {

// Thread-safety: one thread at a time.
class ExitReporter {
 public:
  // admin0 alone may report. `channel` must outlive it.
  explicit ExitReporter(CoordinatorChannel& channel) : channel_(channel) {}
  // Waits a second for reports that are under way.
  ~ExitReporter();

  // `pid` led the group of the worker's processes: another process may have the
  // name. Returns without waiting for the answer; the first report starts
  // threads. A coordinator that is not there, or is yet to be found, misses it:
  // it may be who has ended. Errors of CoordinatorChannel::Get.
  absl::Status Report(const std::string& name, pid_t pid, const Exit& exit);

 private:
  CoordinatorChannel& channel_;
  std::vector<Future<std::string>> reports_;
};

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_RUN_EXIT_REPORTER_H_
