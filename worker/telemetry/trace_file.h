// TraceFile: the output of --trace, to which a worker writes its spans.

#ifndef WEFT_WORKER_TELEMETRY_TRACE_FILE_H_
#define WEFT_WORKER_TELEMETRY_TRACE_FILE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/base/mutex.h"
#include "weft/net/edge/descriptor.h"
#include "weft/telemetry/telemetry.h"
#include "weft/worker/exit_code.h"

namespace weft::worker {

// A regular file is replaced if it is empty or a trace, also behind a symbolic
// link: a reader finds the former or the new one, each whole. To a pipe, a
// device, or a path in /dev or /proc (/dev/stdout), which stay what they are,
// the spans are appended, with up to ten seconds for whoever reads.
// Thread-safety: thread-safe. `telemetry` must outlive it.
class TraceFile {
 public:
  // `path`, in which {name} stands for `worker`; empty: nothing is written.
  TraceFile(std::string path, absl::string_view worker,
            telemetry::Telemetry& telemetry);

  // Call it once, before the work: writes an empty trace to a file, nothing to
  // another output. kUnavailable, with an exit code, if it cannot be written,
  // or if a file is there that is no trace; kPermissionDenied if it may not be
  // read, so that nobody knows what it is, or may not be written.
  absl::Status Open() ABSL_LOCKS_EXCLUDED(mu_);
  // The spans so far; errors as above.
  absl::Status Write() ABSL_LOCKS_EXCLUDED(mu_);
  void WriteOrLog() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Replace(const std::string& file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Append() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `file` is path_, or what stands in the way of it.
  absl::Status Failed(const std::string& file, int error) const;
  std::string Spans() const;

  const std::string option_;
  const std::string path_;
  telemetry::Telemetry& telemetry_;
  Mutex mu_;  // of the file
  // A pipe or a device; it is held open, for its reader ends with its last
  // writer.
  net::Descriptor output_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_TELEMETRY_TRACE_FILE_H_
