#include "weft/train/saving/staged_state.h"

#include <algorithm>

#include "weft/base/failpoint.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/device.h"

namespace weft::train {

StagedState::OfDevice& StagedState::Of(Device device) {
  const auto found =
      std::find_if(devices_.begin(), devices_.end(), [&](const OfDevice& one) {
        return one.tensors.front().tensor.device() == device;
      });
  return found == devices_.end() ? devices_.emplace_back() : *found;
}

absl::StatusOr<std::shared_ptr<StagedState>> StagedState::Begin(
    std::shared_ptr<DeviceStaging> staging,
    const checkpoint::NamedTensors& tensors) {
  WEFT_RETURN_IF_ERROR(WEFT_FAILPOINT("train/stage_state"));
  std::shared_ptr<StagedState> state(new StagedState());
  for (const auto& [name, tensor] : tensors) {
    if (tensor.device().is_cpu()) {
      state->here_[name] = tensor.Clone();
      continue;
    }
    OfDevice& all = state->Of(tensor.device());
    all.names.push_back(name);
    all.tensors.push_back(
        {tensor.Contiguous(), /*is_read=*/true, /*is_written=*/false});
  }
  for (OfDevice& all : state->devices_) {
    WEFT_ASSIGN_OR_RETURN(all.call, StagedCall::Begin(staging, all.tensors));
    WEFT_RETURN_IF_ERROR(all.call->HoldCaller());
  }
  return state;
}

absl::StatusOr<checkpoint::NamedTensors> StagedState::Await(
    absl::Duration timeout) {
  checkpoint::NamedTensors found = here_;
  for (OfDevice& all : devices_) {
    WEFT_RETURN_IF_ERROR(all.call->AwaitInputs(timeout));
    for (size_t i = 0; i < all.names.size(); ++i) {
      const Tensor& tensor = all.tensors[i].tensor;
      found[all.names[i]] =
          Tensor::FromBlob(all.call->host(i), tensor.shape(), tensor.dtype(),
                           shared_from_this());
    }
  }
  return found;
}

}  // namespace weft::train
