#include "weft/worker/telemetry/flight_recording.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "weft/rpc/call_context.h"
#include "weft/rpc/function.h"

namespace weft::worker {

// Inline, as the handlers' threads may be what the reader wants to know about.
Future<std::string> ReadFlightRecording(rpc::CallContext& context) {
  const RecordingSource* const source = context.Local<RecordingSource>();
  if (source == nullptr) {
    return MakeReady<std::string>(absl::UnimplementedError(
        "an agent that is no Worker's has no flight recording"));
  }
  Promise<std::string> promise;
  Future<std::string> recording = promise.future();
  source->executor->Schedule(
      [recorder = source->recorder,
       promise = std::make_shared<Promise<std::string>>(std::move(promise))] {
        promise->Set(recorder->DumpText());
      });
  return recording;
}
WEFT_RPC_INLINE(ReadFlightRecording);

Future<std::string> AskFlightRecording(const rpc::Target& target) {
  return rpc::CallAsync(target, ReadFlightRecording);
}

}  // namespace weft::worker
