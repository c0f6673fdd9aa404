// AskFlightRecording: what a worker's flight recorder holds, asked over the
// network.

#ifndef WEFT_WORKER_TELEMETRY_FLIGHT_RECORDING_H_
#define WEFT_WORKER_TELEMETRY_FLIGHT_RECORDING_H_

#include <cstddef>
#include <string>

#include "weft/base/executor.h"
#include "weft/base/future.h"
#include "weft/rpc/call.h"
#include "weft/telemetry/flight_recorder.h"

namespace weft::worker {

// No recording is longer: 4096 entries of less than 1 KiB each.
inline constexpr size_t kMostRecordingBytes = size_t{4} << 20;

// FlightRecorder::DumpText of the worker. It changes nothing there but that it
// is recorded itself, so it may be asked again. Answered also where all threads
// of the worker's handlers are stuck. For members of the job. UNIMPLEMENTED by
// an agent that is no Worker's.
Future<std::string> AskFlightRecording(const rpc::Target& target);

// What a worker answers it by: Agent::SetLocal. Both must outlive the agent.
struct RecordingSource {
  const telemetry::FlightRecorder* recorder;
  Executor* executor;
};

}  // namespace weft::worker

#endif  // WEFT_WORKER_TELEMETRY_FLIGHT_RECORDING_H_
