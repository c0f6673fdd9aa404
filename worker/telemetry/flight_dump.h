// WriteDump: what a flight recorder holds, in a file.

#ifndef WEFT_WORKER_TELEMETRY_FLIGHT_DUMP_H_
#define WEFT_WORKER_TELEMETRY_FLIGHT_DUMP_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/telemetry/flight_recorder.h"

namespace weft::worker {

// Writes <directory>/<job>-<name>-<pid>-<n>.flight, mode 0600, where no file is
// yet, and returns its path. An empty `directory` is this user's for the job.
// kResourceExhausted: the directory holds kMaxDumps.
inline constexpr int kMaxDumps = 64;
// Ok if `directory` is empty or one to write in.
absl::Status CheckDumpDirectory(const std::string& directory);
absl::StatusOr<std::string> WriteDump(const telemetry::FlightRecorder& recorder,
                                      std::string directory,
                                      absl::string_view job,
                                      absl::string_view name);

}  // namespace weft::worker

#endif  // WEFT_WORKER_TELEMETRY_FLIGHT_DUMP_H_
