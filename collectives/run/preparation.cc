#include "weft/collectives/run/preparation.h"

#include <functional>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/device/context.h"

namespace weft::collectives {
namespace {

Block BlockOf(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.address()), tensor.numel()};
}

// Whether several elements lie in one place.
bool IsExpanded(const Tensor& tensor) {
  for (int d = 0; d < tensor.dim(); ++d) {
    if (tensor.strides()[d] == 0 && tensor.shape()[d] > 1) return true;
  }
  return false;
}

}  // namespace

absl::Status Preparation::CheckDevice(const Tensor& tensor) const {
  if (held_.empty() || tensor.device() == device_) return absl::OkStatus();
  const std::string first = Name(device_);
  const std::string found = Name(tensor.device());
  return absl::InvalidArgumentError(absl::StrCat(
      "wants all tensors on one device, found ", first, " and ", found,
      first == found ? " of another context" : "", "; take To(device) of one"));
}

absl::Status Preparation::Hold(const Tensor& tensor, Access access,
                               Tensor* held) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError("a tensor is undefined");
  }
  WEFT_RETURN_IF_ERROR(CheckDevice(tensor));
  device_ = tensor.device();
  if (has_dtype_ && tensor.dtype() != operation_.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("wants all tensors of one dtype, found ",
                     Name(operation_.dtype), " and ", Name(tensor.dtype())));
  }
  has_dtype_ = true;
  operation_.dtype = tensor.dtype();
  if (access != Access::kRead && IsExpanded(tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(
        tensor.Describe(), " is expanded and cannot be written to"));
  }
  if (tensor.is_contiguous()) {
    *held = tensor;
  } else {
    *held = access == Access::kWrite ? Tensor::EmptyLike(tensor)
                                     : tensor.Contiguous();
    if (access != Access::kRead) write_back_.emplace_back(*held, tensor);
  }
  if (access != Access::kRead) written_.push_back(*held);
  held_.push_back(*held);
  if (!tensor.device().is_cpu()) {
    to_stage_.push_back(
        {*held, access != Access::kWrite, access != Access::kRead});
  }
  return absl::OkStatus();
}

absl::Status Preparation::AddInput(const Tensor& tensor) {
  Tensor held;
  WEFT_RETURN_IF_ERROR(Hold(tensor, Access::kRead, &held));
  operation_.inputs.push_back(BlockOf(held));
  return absl::OkStatus();
}

absl::Status Preparation::AddOutput(const Tensor& tensor) {
  Tensor held;
  WEFT_RETURN_IF_ERROR(Hold(tensor, Access::kWrite, &held));
  operation_.outputs.push_back(BlockOf(held));
  return absl::OkStatus();
}

absl::Status Preparation::AddInPlace(const Tensor& tensor, bool as_input) {
  Tensor held;
  WEFT_RETURN_IF_ERROR(Hold(tensor, Access::kReadWrite, &held));
  operation_.outputs.push_back(BlockOf(held));
  if (as_input) operation_.inputs.push_back(BlockOf(held));
  return absl::OkStatus();
}

absl::Status Preparation::CheckListSize(size_t found,
                                        absl::string_view what) const {
  if (found == static_cast<size_t>(size_)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "wants one ", what, " for each of ", size_, " ranks, found ", found));
}

absl::Status Preparation::AddInputs(const std::vector<Tensor>& tensors) {
  WEFT_RETURN_IF_ERROR(CheckListSize(tensors.size(), "input"));
  for (const Tensor& tensor : tensors) WEFT_RETURN_IF_ERROR(AddInput(tensor));
  return absl::OkStatus();
}

absl::Status Preparation::AddOutputs(const std::vector<Tensor>& tensors) {
  WEFT_RETURN_IF_ERROR(CheckListSize(tensors.size(), "output"));
  for (const Tensor& tensor : tensors) WEFT_RETURN_IF_ERROR(AddOutput(tensor));
  return absl::OkStatus();
}

absl::Status Preparation::AppendParts(const Tensor& held,
                                      Blocks* blocks) const {
  if (held.numel() % size_ != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        held.Describe(), " has ", held.numel(),
        " elements, which do not divide into ", size_, " equal parts"));
  }
  const int64_t part = held.numel() / size_;
  for (int i = 0; i < size_; ++i) {
    blocks->push_back({static_cast<std::byte*>(held.address()) +
                           i * part * ItemSize(held.dtype()),
                       part});
  }
  return absl::OkStatus();
}

absl::Status Preparation::AddInputParts(const Tensor& tensor) {
  Tensor held;
  WEFT_RETURN_IF_ERROR(Hold(tensor, Access::kRead, &held));
  return AppendParts(held, &operation_.inputs);
}

absl::Status Preparation::AddOutputParts(const Tensor& tensor) {
  Tensor held;
  WEFT_RETURN_IF_ERROR(Hold(tensor, Access::kWrite, &held));
  return AppendParts(held, &operation_.outputs);
}

absl::Status Preparation::SetRoot(int root) {
  if (root < 0 || root >= size_) {
    return absl::InvalidArgumentError(
        absl::StrCat("wants a root from 0 to ", size_ - 1, ", found ", root));
  }
  operation_.root = root;
  return absl::OkStatus();
}

absl::Status Preparation::SetReduction(const Reduction& reduction) {
  operation_.reduction = reduction;
  return CheckReduction(reduction, operation_.dtype);
}

absl::Status Preparation::CheckSameCount(size_t a, size_t b) const {
  const int64_t in = operation_.inputs[a].elements;
  const int64_t out = operation_.outputs[b].elements;
  if (in == out) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("input has ", in, " elements, the output for it ", out));
}

absl::Status Preparation::CheckOverlap() const {
  const std::less<const std::byte*> before;
  const auto end = [&](const Block& block) {
    return block.memory + operation_.BytesOf(block);
  };
  const auto check = [&](const Block& a, const Block& b) {
    const bool apart = a.elements == 0 || b.elements == 0 ||
                       !before(a.memory, end(b)) || !before(b.memory, end(a));
    return apart ? absl::OkStatus()
                 : absl::InvalidArgumentError(
                       "an output overlaps another tensor of the operation");
  };
  const Blocks& outputs = operation_.outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (const Block& input : operation_.inputs) {
      if (input.memory == outputs[i].memory &&
          input.elements == outputs[i].elements) {
        continue;
      }
      WEFT_RETURN_IF_ERROR(check(outputs[i], input));
    }
    for (size_t j = 0; j < i; ++j) {
      WEFT_RETURN_IF_ERROR(check(outputs[i], outputs[j]));
    }
  }
  return absl::OkStatus();
}

absl::Status Preparation::Place(const Backend& backend,
                                const std::shared_ptr<DeviceStaging>& staging) {
  if (to_stage_.empty()) return absl::OkStatus();
  const device::Stream stream = backend.StreamOf(operation_, device_);
  if (!stream.is_valid()) return Stage(staging);
  std::vector<Tensor> tensors(held_.begin(), held_.end());
  WEFT_ASSIGN_OR_RETURN(on_device_,
                        DeviceCall::Begin(std::move(tensors), stream));
  operation_.ready = &on_device_->ready();
  return absl::OkStatus();
}

device::Stream Preparation::caller() const {
  if (on_device_ != nullptr) return on_device_->caller();
  return staged_ == nullptr ? device::Stream() : staged_->caller();
}

absl::Status Preparation::Stage(const std::shared_ptr<DeviceStaging>& staging) {
  WEFT_ASSIGN_OR_RETURN(staged_,
                        StagedCall::Begin(staging, std::move(to_stage_)));
  // Blocks are in the order of the tensors that they are of. One that is read
  // may be found in another tensor that is read, and has the same elements.
  const auto move = [&](Blocks& blocks, bool StagedTensor::*is_used) {
    size_t i = 0;
    for (Block& block : blocks) {
      const int64_t bytes = operation_.BytesOf(block);
      const auto is_in = [&](const StagedTensor& staged) {
        const auto* const begin =
            static_cast<const std::byte*>(staged.tensor.address());
        return staged.*is_used && block.memory >= begin &&
               block.memory + bytes <= begin + staged.tensor.bytes();
      };
      const std::vector<StagedTensor>& tensors = staged_->tensors();
      if (bytes == 0) {
        block.memory = staged_->host(0);
        continue;
      }
      while (!is_in(tensors[i])) ++i;
      block.memory =
          staged_->host(i) + (block.memory - static_cast<const std::byte*>(
                                                 tensors[i].tensor.address()));
    }
  };
  move(operation_.inputs, &StagedTensor::is_read);
  move(operation_.outputs, &StagedTensor::is_written);
  return absl::OkStatus();
}

bool Preparation::has_failed_device() const {
  return !device_.is_cpu() &&
         !device_.context()->runtime().Health(device_.id()).ok();
}

absl::Status Preparation::Finish() {
  for (const Tensor& tensor : written_) tensor.BumpVersion();
  const auto write_back = [this] {
    for (const auto& [from, to] : write_back_) to.CopyFrom(from);
  };
  if (staged_ != nullptr) return staged_->End(write_back);
  if (on_device_ != nullptr) return on_device_->End(write_back);
  write_back();
  return absl::OkStatus();
}

}  // namespace weft::collectives
