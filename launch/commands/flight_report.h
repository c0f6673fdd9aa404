// FlightReport: what the flight recorders of a job's workers say together about
// their collective operations.

#ifndef WEFT_LAUNCH_COMMANDS_FLIGHT_REPORT_H_
#define WEFT_LAUNCH_COMMANDS_FLIGHT_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::launch {

// A file that a worker has written (worker/telemetry/flight_dump.h), or what it
// has sent.
struct FlightFile {
  std::string path;
  std::string text;
  std::string worker = "";  // empty: WorkerOfFile(path)
};

// Whether a text begins as a flight recorder's does.
bool IsRecording(absl::string_view text);

// For each process group, the one that was used last first: the operation that
// each worker is in, or has finished last; who is behind; calls that differ
// under one number; the first that failed; and for whom they waited how long
// (stragglers.h). Ends with "\n".
// kInvalidArgument: a text is no flight recorder's.
absl::StatusOr<std::string> FlightReport(const std::vector<FlightFile>& files);

// How many entries the recording has, and its last `count`, the newest first.
std::string NewestEvents(const FlightFile& file, int count);

// The worker of "<job>-<worker>-<pid>-<n>.flight", or the whole name.
std::string WorkerOfFile(const std::string& path);

}  // namespace weft::launch

#endif  // WEFT_LAUNCH_COMMANDS_FLIGHT_REPORT_H_
