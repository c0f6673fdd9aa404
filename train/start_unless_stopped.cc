#include "weft/train/start_unless_stopped.h"

#include <utility>

#include "weft/base/cancel.h"
#include "weft/train/stop_signal.h"
#include "weft/worker/exit_code.h"

namespace weft::train {

absl::StatusOr<std::unique_ptr<worker::Worker>> StartUnlessStopped(
    worker::Options options) {
  AwaitStopSignals();
  CancelSource stop;
  options.cancel = stop.token();
  const OnStopSignal on_stop([&] {
    stop.Cancel(worker::EndedBySignal(
        StopSignal(), "asked to stop before all workers had joined"));
  });
  return worker::Worker::Start(std::move(options));
}

}  // namespace weft::train
