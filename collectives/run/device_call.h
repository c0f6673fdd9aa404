// DeviceCall: tensors of a device in an operation that runs on the device, on a
// stream of the backend.
//
//   caller's stream    ... made | called            ended | used
//   backend's stream          wait called, operation | event
//
// Neither stream waits for the other's end: the operation ends by an event for
// which the host waits, and what the caller puts on its stream after that comes
// later in any case.

#ifndef WEFT_COLLECTIVES_RUN_DEVICE_CALL_H_
#define WEFT_COLLECTIVES_RUN_DEVICE_CALL_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/device/runtime.h"
#include "weft/tensor/tensor.h"

namespace weft::collectives {

// The tensors of one call, which it keeps. Errors are those of
// device/runtime.h.
//
// Thread-safety: one thread at a time.
class DeviceCall {
 public:
  // Whatever happens to the call, the memory of `tensors` is not handed out
  // again before what is on `stream` has run. REQUIRES: `tensors` are on the
  // device of `stream`, and not empty.
  static absl::StatusOr<std::shared_ptr<DeviceCall>> Begin(
      std::vector<Tensor> tensors, device::Stream stream);

  // After what was on the caller's stream when it was called.
  const device::Event& ready() const { return ready_; }
  device::Stream caller() const { return caller_; }

  // Once the operation has run: calls `after` with the caller's stream for the
  // current one. What it throws passes.
  absl::Status End(absl::FunctionRef<void()> after);

 private:
  DeviceCall(std::vector<Tensor> tensors, device::Stream stream)
      : tensors_(std::move(tensors)), stream_(stream) {}

  const std::vector<Tensor> tensors_;
  const device::Stream stream_;
  device::Stream caller_;
  device::Event ready_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RUN_DEVICE_CALL_H_
