// StartUnlessStopped: a worker whose start a signal ends.

#ifndef WEFT_TRAIN_START_UNLESS_STOPPED_H_
#define WEFT_TRAIN_START_UNLESS_STOPPED_H_

#include <memory>

#include "absl/status/statusor.h"
#include "weft/worker/options.h"
#include "weft/worker/worker.h"

namespace weft::train {

// Calls AwaitStopSignals(), then Worker::Start. A signal that comes before all
// workers have joined ends it with worker::EndedBySignal, and leaves none of
// the worker's sockets behind. Sets `options.cancel`.
absl::StatusOr<std::unique_ptr<worker::Worker>> StartUnlessStopped(
    worker::Options options);

}  // namespace weft::train

#endif  // WEFT_TRAIN_START_UNLESS_STOPPED_H_
