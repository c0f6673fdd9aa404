#include "weft/collectives/backends/same_device/same_device_room.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/backends/same_device/same_device_work.h"

namespace weft::collectives {

absl::Status SameDeviceRoom::Enter(int rank) {
  MutexLock lock(mu_);
  if (!std::exchange(parts_[rank].has_entered, true)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", rank, " of the shared device is in a group of this ",
      "name: give each group another"));
}

bool SameDeviceRoom::is_complete() {
  MutexLock lock(mu_);
  return std::all_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.has_entered; });
}

absl::StatusOr<bool> SameDeviceRoom::ReadyLocked(int rank) const {
  if (parts_[rank].launched <= done_) return true;
  if (!closed_.ok()) return closed_;
  return false;
}

absl::StatusOr<bool> SameDeviceRoom::IsReady(int rank) {
  MutexLock lock(mu_);
  return ReadyLocked(rank);
}

absl::StatusOr<bool> SameDeviceRoom::AwaitReady(int rank,
                                                absl::Duration longest) {
  const auto until =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(longest);
  MutexLock lock(mu_);
  while (true) {
    absl::StatusOr<bool> is_ready = ReadyLocked(rank);
    if (!is_ready.ok() || *is_ready) return is_ready;
    if (!changed_.WaitUntil(mu_, until)) return ReadyLocked(rank);
  }
}

std::vector<int> SameDeviceRoom::MissingFor(int rank) {
  MutexLock lock(mu_);
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r) {
    if (parts_[r].launched < parts_[rank].launched) missing.push_back(r);
  }
  return missing;
}

void SameDeviceRoom::CloseLocked(const absl::Status& why) {
  if (closed_.ok()) closed_ = why;
  changed_.NotifyAll();
}

void SameDeviceRoom::Close(const absl::Status& why) {
  MutexLock lock(mu_);
  CloseLocked(why);
}

absl::Status SameDeviceRoom::Launch(int rank, const Operation& operation,
                                    device::Stream stream) {
  device::Runtime& runtime = stream.runtime();
  WEFT_ASSIGN_OR_RETURN(device::Event begun,
                        runtime.CreateEvent(stream.device()));
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(begun, stream));
  MutexLock lock(mu_);
  if (!closed_.ok()) return closed_;
  Part& part = parts_[rank];
  ++part.launched;
  part.operation = operation;
  part.stream = stream;
  part.begun = std::move(begun);
  const bool all_are_there = std::all_of(
      parts_.begin(), parts_.end(),
      [&](const Part& one) { return one.launched == part.launched; });
  if (!all_are_there) return absl::OkStatus();
  const absl::Status status = PutOnStreams(rank);
  if (!status.ok()) {
    CloseLocked(status);
    return status;
  }
  ++done_;
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::Status SameDeviceRoom::PutOnStreams(int last) {
  const device::Stream stream = parts_[last].stream;
  device::Runtime& runtime = stream.runtime();
  std::vector<const Operation*> operations;
  for (const Part& part : parts_) operations.push_back(&part.operation);
  WEFT_ASSIGN_OR_RETURN(device::Event ended,
                        runtime.CreateEvent(stream.device()));
  for (const Part& part : parts_) {
    if (&part == &parts_[last]) continue;
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(stream, part.begun));
  }
  const absl::Status worked = PutWorkOfAll(stream, operations);
  // Also where some of it failed: the rest uses the blocks of all.
  WEFT_RETURN_IF_ERROR(runtime.RecordEvent(ended, stream));
  for (const Part& part : parts_) {
    if (&part == &parts_[last]) continue;
    WEFT_RETURN_IF_ERROR(runtime.StreamWaitEvent(part.stream, ended));
  }
  return worked;
}

}  // namespace weft::collectives
