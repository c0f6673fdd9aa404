// TraceFile: the file of --trace, to which a worker writes its spans.

#ifndef WEFT_WORKER_TRACE_FILE_H_
#define WEFT_WORKER_TRACE_FILE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/telemetry/telemetry.h"

namespace weft::worker {

// Thread-safety: thread-safe. `telemetry` must outlive it.
class TraceFile {
 public:
  // `path`, in which {name} stands for `worker`; empty: nothing is written.
  TraceFile(std::string path, absl::string_view worker,
            telemetry::Telemetry& telemetry);

  // Replaces the file; a reader finds the former or the new one, each whole.
  // kUnavailable, with an exit code, if it cannot be written.
  absl::Status Write() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteOrLog() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::string option_;
  const std::string path_;
  telemetry::Telemetry& telemetry_;
  Mutex mu_;  // of the file
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_TRACE_FILE_H_
