// The last save of a training, after which nothing saves what was trained.

#ifndef WEFT_TRAIN_LAST_SAVE_H_
#define WEFT_TRAIN_LAST_SAVE_H_

#include <functional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/telemetry/logger.h"

namespace weft::train {

struct LastSaveOptions {
  std::string directory;  // of the checkpoints, for messages
  // How long after the first failure another attempt may begin. Pauses between
  // attempts begin with `first_pause` and double.
  absl::Duration retry_for = absl::Seconds(20);
  absl::Duration first_pause = absl::Seconds(1);
  // Asked after an attempt that failed: if true, it was the last.
  std::function<bool()> asked_to_stop = nullptr;
  // Another takes the place of a server that is lost (worker::Options::replicas
  // of 2): its loss, kUnavailable, may pass too.
  bool outlives_servers = false;
};

// Runs `save` again after `failure`, as long as that may pass: a full disk, a
// device that does not answer. OK once it has succeeded; else the last error,
// as NotSaved makes it.
absl::Status RetryLastSave(const absl::Status& failure,
                           absl::FunctionRef<absl::Status()> save,
                           const LastSaveOptions& options,
                           telemetry::Logger& logger);

// The error of a training that is complete and was not saved in `directory`.
// Starting the program again would train the same once more and most likely
// fail in the same way: WithoutRestart, and where a resource or a right is
// missing with ExitCode kInternal and what to do next. A peer that is lost, or
// late, is for a restart to mend: that stays as it is.
absl::Status NotSaved(const absl::Status& why, const std::string& directory);

}  // namespace weft::train

#endif  // WEFT_TRAIN_LAST_SAVE_H_
