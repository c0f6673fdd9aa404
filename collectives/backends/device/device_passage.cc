#include "weft/collectives/backends/device/device_passage.h"

#include <algorithm>
#include <cstring>

#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft::collectives {
namespace {

constexpr int64_t kAlignment = 256;  // of device memory

// Each block's place, one behind the other from `at`, which moves on.
void Lay(const Operation& operation, Blocks& blocks, std::byte* begin,
         int64_t& at) {
  for (Block& block : blocks) {
    if (begin != nullptr) block.memory = begin + at;
    at += (operation.BytesOf(block) + kAlignment - 1) / kAlignment * kAlignment;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DevicePassage>> DevicePassage::Begin(
    device::Context& context, device::Stream stream, const Operation& whole,
    int rank) {
  std::unique_ptr<DevicePassage> made(new DevicePassage(stream, whole));
  Operation& operation = made->operation_;
  Lay(operation, operation.inputs, nullptr, made->bytes_);
  Lay(operation, operation.outputs, nullptr, made->bytes_);
  made->bytes_ = std::max(made->bytes_, kAlignment);
  {
    const device::StreamScope current(stream);
    WEFT_ASSIGN_OR_RETURN(
        made->memory_,
        device::Block::Allocate(context, stream.device().index, made->bytes_));
  }
  device::Runtime& runtime = stream.runtime();
  WEFT_ASSIGN_OR_RETURN(void* const pinned,
                        runtime.AllocatePinned(made->bytes_));
  made->pinned_ = static_cast<std::byte*>(pinned);
  auto* const begin = static_cast<std::byte*>(made->memory_->address());
  int64_t at = 0;
  Lay(operation, operation.inputs, begin, at);
  Lay(operation, operation.outputs, begin, at);
  const auto upload = [&](const Block& from, const Block& to) -> absl::Status {
    if (from.elements == 0) return absl::OkStatus();
    std::byte* const passing = made->pinned_ + (to.memory - begin);
    memcpy(passing, from.memory, whole.BytesOf(from));
    return runtime.CopyAsync(to.memory, passing, whole.BytesOf(from), stream);
  };
  for (size_t i = 0; i < whole.inputs.size(); ++i) {
    WEFT_RETURN_IF_ERROR(upload(whole.inputs[i], operation.inputs[i]));
  }
  if (whole.verb == Verb::kBroadcast && rank == whole.root) {
    WEFT_RETURN_IF_ERROR(upload(whole.outputs[0], operation.outputs[0]));
  }
  return made;
}

DevicePassage::~DevicePassage() {
  if (pinned_ == nullptr || !is_over_) return;
  stream_.runtime().FreePinned(pinned_).IgnoreError();
}

absl::Status DevicePassage::CopyBack() {
  auto* const begin = static_cast<std::byte*>(memory_->address());
  for (const Block& block : operation_.outputs) {
    if (block.elements == 0) continue;
    WEFT_RETURN_IF_ERROR(stream_.runtime().CopyAsync(
        pinned_ + (block.memory - begin), block.memory,
        operation_.BytesOf(block), stream_));
  }
  return absl::OkStatus();
}

void DevicePassage::Finish() {
  is_over_ = true;
  auto* const begin = static_cast<std::byte*>(memory_->address());
  for (size_t i = 0; i < whole_.outputs.size(); ++i) {
    const Block& block = operation_.outputs[i];
    if (block.elements == 0) continue;
    memcpy(whole_.outputs[i].memory, pinned_ + (block.memory - begin),
           whole_.BytesOf(block));
  }
}

}  // namespace weft::collectives
