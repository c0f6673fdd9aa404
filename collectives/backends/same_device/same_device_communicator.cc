#include "weft/collectives/backends/same_device/same_device_communicator.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/device/current.h"

namespace weft::collectives {
namespace {

// How often a wait for other ranks looks whether to go on.
constexpr absl::Duration kLookInterval = absl::Milliseconds(2);

bool IsInPlace(const Operation& operation) {
  if (operation.verb != Verb::kAllToAll) return false;
  for (size_t r = 0; r < operation.inputs.size(); ++r) {
    const Block& in = operation.inputs[r];
    if (in.elements > 0 && in.memory == operation.outputs[r].memory) {
      return true;
    }
  }
  return false;
}

}  // namespace

SameDeviceCommunicator::~SameDeviceCommunicator() {
  const absl::StatusOr<bool> is_ready = IsReady();
  if (is_ready.ok() && !*is_ready) {
    room_->Close(absl::CancelledError(
        absl::StrCat("rank ", rank_, " of the shared device has left")));
  }
}

void SameDeviceCommunicator::Abort() {
  room_->Close(absl::CancelledError(
      absl::StrCat("rank ", rank_, " of the shared device has aborted it")));
}

absl::Status SameDeviceCommunicator::CopyInputs(Operation& operation,
                                                DeviceScratch& scratch) const {
  int64_t bytes = 0;
  for (const Block& in : operation.inputs) bytes += operation.BytesOf(in);
  // For work on this stream, behind which it is used again.
  const device::StreamScope current(stream_);
  WEFT_ASSIGN_OR_RETURN(
      std::shared_ptr<device::Block> memory,
      device::Block::Allocate(*context_, stream_.device().index, bytes));
  auto* at = static_cast<std::byte*>(memory->address());
  scratch.memory.push_back(std::move(memory));
  for (Block& in : operation.inputs) {
    if (in.elements == 0) continue;
    WEFT_RETURN_IF_ERROR(stream_.runtime().CopyAsync(
        at, in.memory, operation.BytesOf(in), stream_));
    in.memory = at;
    at += operation.BytesOf(in);
  }
  return absl::OkStatus();
}

absl::Status SameDeviceCommunicator::Launch(const Operation& operation,
                                            bool /*with_factors*/,
                                            DeviceScratch& scratch) {
  Operation own = operation;
  own.ready = nullptr;  // the stream waits for it
  own.whole = nullptr;
  if (IsInPlace(own)) WEFT_RETURN_IF_ERROR(CopyInputs(own, scratch));
  WEFT_ASSIGN_OR_RETURN(scratch.number, room_->Launch(own));
  return absl::OkStatus();
}

absl::Status SameDeviceCommunicator::Enqueue(const Operation& operation,
                                             bool with_factors,
                                             DeviceScratch& scratch,
                                             const DeviceWait& wait) {
  WEFT_RETURN_IF_ERROR(Launch(operation, with_factors, scratch));
  while (true) {
    const absl::StatusOr<bool> is_ready = room_->AwaitReady(kLookInterval);
    WEFT_RETURN_IF_ERROR(is_ready.status());
    if (*is_ready) return absl::OkStatus();
    absl::Status why = wait.check == nullptr ? absl::OkStatus() : wait.check();
    if (why.ok() && wait.clock.Now() >= wait.deadline) {
      why = absl::DeadlineExceededError(absl::StrCat(
          Describe(operation), ": all ranks have called it, and rank ",
          absl::StrJoin(room_->Missing(), ", "),
          " has not brought its tensors to the shared device in time"));
    }
    if (why.ok()) continue;
    // From here on nobody touches the blocks of this rank.
    room_->Close(why);
    return why;
  }
}

}  // namespace weft::collectives
