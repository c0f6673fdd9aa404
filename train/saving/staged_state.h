// StagedState: the tensors of a checkpoint on their way from a device to the
// host, while the device goes on.
//
//   stream of the training   ... step n | copies done, step n + 1 ...
//   stream of the copies                wait step n, copy to pinned memory
//   thread that writes                  Await, then write

#ifndef WEFT_TRAIN_STAGED_STATE_H_
#define WEFT_TRAIN_STAGED_STATE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/tensor/device_staging.h"
#include "weft/tensor/tensor.h"

namespace weft::train {

// Errors are those of device/runtime.h, and name the device.
//
// Thread-safety: one thread at a time.
class StagedState : public std::enable_shared_from_this<StagedState> {
 public:
  // Has the elements copied as they are behind what is on the current stream of
  // this thread, and does not wait. What is put on that stream from now on
  // comes behind the copies, so that it may write to the tensors. Tensors of
  // the CPU are copied at once. kResourceExhausted: no pinned memory.
  static absl::StatusOr<std::shared_ptr<StagedState>> Begin(
      std::shared_ptr<DeviceStaging> staging,
      const checkpoint::NamedTensors& tensors);

  // Waits for the copies: the same tensors on the CPU, which keep this.
  // kDeadlineExceeded.
  absl::StatusOr<checkpoint::NamedTensors> Await(absl::Duration timeout);

 private:
  // All of one device.
  struct OfDevice {
    std::vector<std::string> names;
    std::vector<StagedTensor> tensors;
    std::unique_ptr<StagedCall> call;
  };

  StagedState() = default;
  OfDevice& Of(Device device);

  checkpoint::NamedTensors here_;
  std::vector<OfDevice> devices_;
};

}  // namespace weft::train

#endif  // WEFT_TRAIN_STAGED_STATE_H_
