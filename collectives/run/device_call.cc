#include "weft/collectives/run/device_call.h"

#include "weft/base/status_macros.h"
#include "weft/device/context.h"
#include "weft/device/current.h"

namespace weft::collectives {

absl::StatusOr<std::shared_ptr<DeviceCall>> DeviceCall::Begin(
    std::vector<Tensor> tensors, device::Stream stream) {
  std::shared_ptr<DeviceCall> call(new DeviceCall(std::move(tensors), stream));
  const Device device = call->tensors_.front().device();
  device::Runtime& runtime = stream.runtime();
  WEFT_ASSIGN_OR_RETURN(call->caller_,
                        device.context()->CurrentStream(device.index()));
  WEFT_ASSIGN_OR_RETURN(call->ready_, runtime.CreateEvent(device.id()));
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(call->ready_, call->caller_));
  for (const Tensor& tensor : call->tensors_) {
    device::Block* const block = tensor.storage()->block();
    if (block != nullptr) block->UsedOn(stream);
  }
  return call;
}

absl::Status DeviceCall::End(absl::FunctionRef<void()> after) {
  const device::StreamScope scope(caller_);
  after();
  return stream_.runtime().Health(stream_.device());
}

}  // namespace weft::collectives
