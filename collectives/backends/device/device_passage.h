// DevicePassage: blocks on the host in an operation of a device: they pass
// through pinned memory and memory of the device. For a rank whose tensors are
// on the CPU where those of others are not.

#ifndef WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_PASSAGE_H_
#define WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_PASSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/collectives/operation.h"
#include "weft/device/context.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Thread-safety: one thread at a time.
class DevicePassage {
 public:
  // Has the elements that `whole` reads on `rank` copied to the device of
  // `stream`, on that stream. Does not wait. kResourceExhausted; errors of the
  // Runtime. `whole` must outlive it.
  static absl::StatusOr<std::unique_ptr<DevicePassage>> Begin(
      device::Context& context, device::Stream stream, const Operation& whole,
      int rank);
  // What the stream may still use is left to the Runtime, unless Finish was
  // called.
  ~DevicePassage();
  DevicePassage(const DevicePassage&) = delete;
  DevicePassage& operator=(const DevicePassage&) = delete;

  // `whole`, of blocks on the device.
  const Operation& operation() const { return operation_; }
  // Has what was written copied to pinned memory, on the stream.
  absl::Status CopyBack();
  // Once the stream has run all that: writes the blocks of `whole`.
  void Finish();

 private:
  DevicePassage(device::Stream stream, const Operation& whole)
      : stream_(stream), whole_(whole), operation_(whole) {}

  const device::Stream stream_;
  const Operation& whole_;
  Operation operation_;
  std::shared_ptr<device::Block> memory_;
  int64_t bytes_ = 0;
  std::byte* pinned_ = nullptr;
  bool is_over_ = false;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_DEVICE_DEVICE_PASSAGE_H_
