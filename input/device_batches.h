// DeviceBatches: brings batches of the host to a device while it computes.
//
//   thread that makes batches   pinned memory, copy enqueued
//   stream of the batches                       copy, event
//   stream of the training      ... steps ...          wait event, next step
//
// Neither the host nor the stream of the training waits for a copy before the
// batch is used: from pageable memory both the copy and the call for it would
// wait (device/runtime.h).

#ifndef WEFT_INPUT_DEVICE_BATCHES_H_
#define WEFT_INPUT_DEVICE_BATCHES_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"
#include "weft/input/dataset.h"
#include "weft/tensor/device.h"
#include "weft/tensor/device_staging.h"

namespace weft::input {

// A stream for the copies, and pinned memory, as much as batches were under way
// at one time: for all loaders of one device. Errors are those of
// device/runtime.h, and name the device.
//
// Thread-safety: thread-safe.
class DeviceBatches {
 public:
  // A batch whose tensors lie on the device once `copied` is done.
  struct Batch {
    Example tensors;
    // Null: they may be used at once.
    std::shared_ptr<const device::Event> copied = nullptr;
  };

  // Keeps the device's context. kInvalidArgument for the CPU.
  static absl::StatusOr<std::shared_ptr<DeviceBatches>> Create(Device device);

  // Has the tensors of `batch`, which are on the CPU, copied to tensors of the
  // device, and does not wait for that. `batch` may be dropped at once.
  // kResourceExhausted: no memory, of the device or pinned. Throws as
  // Tensor::Empty of a device does.
  absl::StatusOr<Batch> Copy(const Example& batch);

  // What is put on the current stream of this thread from now on comes behind
  // the copy. Work on another stream needs an event.
  absl::StatusOr<Example> Use(Batch batch);

  device::Stream stream() const { return stream_; }  // of the copies
  // Pinned memory that it has, in use or not.
  int64_t pinned_bytes() const { return staging_->pinned_bytes(); }

 private:
  DeviceBatches(std::shared_ptr<device::Context> context, Device device,
                device::Stream stream)
      : context_(std::move(context)), device_(device), stream_(stream) {}

  const std::shared_ptr<device::Context> context_;
  const Device device_;
  const device::Stream stream_;
  const std::shared_ptr<DeviceStaging> staging_ =
      std::make_shared<DeviceStaging>();
};

}  // namespace weft::input

#endif  // WEFT_INPUT_DEVICE_BATCHES_H_
