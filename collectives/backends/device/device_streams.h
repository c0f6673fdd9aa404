// DeviceStreams: streams of one device for a group and those made from it: a
// Runtime keeps each stream that was ever made, so they are used again.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_STREAMS_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_STREAMS_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "weft/base/mutex.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Thread-safety: thread-safe.
class DeviceStreams {
 public:
  DeviceStreams(std::shared_ptr<device::Context> context, int index)
      : context_(std::move(context)), index_(index) {}

  absl::StatusOr<device::Stream> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    MutexLock lock(mu_);
    if (free_.empty()) {
      return context_->runtime().CreateStream(context_->device(index_),
                                              device::Runtime::Priority::kHigh);
    }
    const device::Stream stream = free_.back();
    free_.pop_back();
    return stream;
  }
  void GiveBack(device::Stream stream) ABSL_LOCKS_EXCLUDED(mu_) {
    // What was aborted may still run on it.
    const absl::StatusOr<bool> is_idle = stream.runtime().Query(stream);
    if (!is_idle.ok() || !*is_idle) return;
    MutexLock lock(mu_);
    free_.push_back(stream);
  }

 private:
  const std::shared_ptr<device::Context> context_;
  const int index_;
  Mutex mu_;
  std::vector<device::Stream> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_STREAMS_H_
