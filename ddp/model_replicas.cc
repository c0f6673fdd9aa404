#include "weft/ddp/model_replicas.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/autograd/leaf.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/future.h"
#include "weft/base/reworded.h"
#include "weft/base/status_macros.h"
#include "weft/ddp/agreement.h"
#include "weft/ddp/longest_wait.h"

namespace weft::ddp {
namespace {

// What is equal on all ranks: not the device.
std::string KindOf(const Tensor& tensor) {
  return absl::StrCat(Name(tensor.dtype()), ShapeText(tensor.shape()));
}

// Hashes the elements.
uint64_t HashOf(const Tensor& tensor) {
  const Tensor flat = tensor.To(Device::Cpu()).Contiguous();
  return XXH3_64bits(flat.raw(), static_cast<size_t>(flat.bytes()));
}

}  // namespace

bool ModelReplicas::IsIgnored(absl::string_view name) const {
  return std::find(ignored_.begin(), ignored_.end(), name) != ignored_.end();
}

std::vector<nn::NamedParameter> ModelReplicas::TrainedParameters() const {
  std::vector<nn::NamedParameter> trained;
  for (nn::NamedParameter& parameter : module_.TrainedParameters()) {
    if (!IsIgnored(parameter.name)) trained.push_back(std::move(parameter));
  }
  return trained;
}

// The parameters that are frozen now, but may be trained later.
std::vector<nn::NamedParameter> ModelReplicas::FrozenLeaves() const {
  std::vector<nn::NamedParameter> frozen;
  for (nn::NamedParameter& parameter : module_.NamedParameters()) {
    const Leaf* const leaf = parameter.variable.leaf();
    if (leaf != nullptr && !leaf->requires_grad() &&
        !IsIgnored(parameter.name)) {
      frozen.push_back(std::move(parameter));
    }
  }
  return frozen;
}

std::vector<nn::NamedBuffer> ModelReplicas::Buffers() const {
  std::vector<nn::NamedBuffer> buffers;
  for (nn::NamedBuffer& buffer : module_.NamedBuffers()) {
    if (!IsIgnored(buffer.name)) buffers.push_back(std::move(buffer));
  }
  return buffers;
}

absl::Status ModelReplicas::CheckIgnored() const {
  std::vector<std::string> unknown = ignored_;
  const auto is_known = [&](const std::string& name) {
    for (const nn::NamedParameter& parameter : module_.NamedParameters()) {
      if (parameter.name == name) return true;
    }
    for (const nn::NamedBuffer& buffer : module_.NamedBuffers()) {
      if (buffer.name == name) return true;
    }
    return false;
  };
  unknown.erase(std::remove_if(unknown.begin(), unknown.end(), is_known),
                unknown.end());
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("DistributedDataParallelOptions::ignored has ",
                   absl::StrJoin(unknown, ", "),
                   "; wanted names of parameters or buffers of the model"));
}

absl::Status ModelReplicas::CheckOthersAgree(
    std::vector<std::string> lines) const {
  for (const nn::NamedBuffer& buffer : Buffers()) {
    lines.push_back(
        absl::StrCat("buffer ", buffer.name, " ", KindOf(buffer.tensor)));
  }
  for (const nn::NamedParameter& parameter : module_.NamedParameters()) {
    if (parameter.variable.requires_grad() || IsIgnored(parameter.name)) {
      continue;
    }
    lines.push_back(absl::StrCat("frozen parameter ", parameter.name, " ",
                                 KindOf(parameter.variable.value())));
  }
  return CheckAgreement(group_, CheckIgnored(), lines, timeout_);
}

absl::Status ModelReplicas::BroadcastAll(const std::vector<Tensor>& tensors,
                                         int root) const {
  collectives::CallOptions call;
  call.timeout = timeout_;
  std::vector<Future<void>> broadcasts;
  for (const Tensor& tensor : tensors) {
    broadcasts.push_back(group_.BroadcastAsync(tensor, root, call));
  }
  const absl::Status status =
      WaitAll(std::move(broadcasts), LongestWait(group_, call.timeout));
  if (status.ok()) return status;
  // The code of the reason for which the group broke is the same on all ranks.
  const absl::Status health = group_.health();
  return Reworded(status, health.ok() ? status.code() : health.code(),
                  status.message());
}

absl::Status ModelReplicas::BroadcastFrom(int root) const {
  std::vector<Tensor> values;
  for (const nn::NamedParameter& parameter : module_.NamedParameters()) {
    if (IsIgnored(parameter.name)) continue;
    values.push_back(parameter.variable.value());
  }
  WEFT_RETURN_IF_ERROR(BroadcastAll(values, root));
  return BroadcastBuffersFrom(root);
}

absl::Status ModelReplicas::BroadcastBuffersFrom(int root) const {
  std::vector<Tensor> buffers;
  for (const nn::NamedBuffer& buffer : Buffers()) {
    buffers.push_back(buffer.tensor);
  }
  if (buffers.empty()) return absl::OkStatus();
  return BroadcastAll(buffers, root);
}

absl::Status ModelReplicas::CheckInSync() const {
  std::vector<std::string> lines = {"parameters:"};
  // The parameters may not be readable from a device that has failed.
  const absl::Status hashed = CatchToStatus([&] {
    for (const nn::NamedParameter& parameter : module_.NamedParameters()) {
      if (IsIgnored(parameter.name)) continue;
      lines.push_back(absl::StrCat(
          "parameter ", parameter.name, " with bits of hash ",
          absl::Hex(HashOf(parameter.variable.value()), absl::kZeroPad16)));
    }
  });
  const absl::Status agreed = CheckAgreement(group_, hashed, lines, timeout_);
  if (!hashed.ok()) return hashed;
  if (!absl::IsInvalidArgument(agreed)) return agreed;
  return Reworded(agreed, absl::StatusCode::kDataLoss, agreed.message());
}

}  // namespace weft::ddp
