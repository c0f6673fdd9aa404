#include "weft/input/device_batches.h"

#include <cstring>
#include <utility>
#include <vector>

#include "weft/base/status_macros.h"
#include "weft/device/current.h"
#include "weft/tensor/storage.h"

namespace weft::input {

absl::StatusOr<std::shared_ptr<DeviceBatches>> DeviceBatches::Create(
    Device device) {
  if (device.is_cpu()) {
    return absl::InvalidArgumentError(
        "DeviceBatches: wanted a device, found the CPU, where batches are");
  }
  auto context = device.context()->shared_from_this();
  WEFT_ASSIGN_OR_RETURN(const device::Stream stream,
                        context->runtime().CreateStream(device.id()));
  return std::shared_ptr<DeviceBatches>(
      new DeviceBatches(std::move(context), device, stream));
}

absl::StatusOr<DeviceBatches::Batch> DeviceBatches::Copy(const Example& batch) {
  Batch copied;
  if (batch.empty()) return copied;
  // The memory is this stream's: the copy waits for nothing but the copies
  // before it, and for whoever used the memory last.
  const device::StreamScope scope(stream_);
  std::vector<StagedTensor> staged;
  for (const Tensor& tensor : batch) {
    copied.tensors.push_back(
        Tensor::Empty(tensor.shape(), tensor.dtype(), device_));
    staged.push_back(
        {copied.tensors.back(), /*is_read=*/false, /*is_written=*/true});
  }
  WEFT_ASSIGN_OR_RETURN(const auto call,
                        StagedCall::Begin(staging_, std::move(staged)));
  for (size_t i = 0; i < batch.size(); ++i) {
    const Tensor here = batch[i].Contiguous();
    if (here.numel() == 0) continue;
    std::memcpy(call->host(i), here.raw(), static_cast<size_t>(here.bytes()));
  }
  WEFT_RETURN_IF_ERROR(call->End([] {}));
  device::Runtime& runtime = context_->runtime();
  WEFT_ASSIGN_OR_RETURN(device::Event event, runtime.CreateEvent(device_.id()));
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(event, stream_));
  copied.copied = std::make_shared<const device::Event>(std::move(event));
  return copied;
}

absl::StatusOr<Example> DeviceBatches::Use(Batch batch) {
  if (batch.copied == nullptr) return std::move(batch.tensors);
  WEFT_ASSIGN_OR_RETURN(const device::Stream user,
                        context_->CurrentStream(device_.index()));
  WEFT_RETURN_IF_ERROR(
      context_->runtime().StreamWaitEvent(user, *batch.copied));
  for (const Tensor& tensor : batch.tensors) {
    device::Block* const block = tensor.storage()->block();
    if (block != nullptr) block->UsedOn(user);
  }
  return std::move(batch.tensors);
}

}  // namespace weft::input
