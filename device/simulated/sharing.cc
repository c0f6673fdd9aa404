// Sharing of a SimulatedRuntime: memory and events of other processes.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/device/simulated/parts.h"
#include "weft/device/simulated/runtime.h"

namespace weft::device {
namespace {

using Kind = SimulatedHandle::Kind;

// How long a wait sleeps where only another process can end it.
constexpr auto kLookInterval = std::chrono::microseconds(50);

}  // namespace

SimulatedRuntime::Deadline SimulatedRuntime::NextLookAtPeers() {
  return std::chrono::steady_clock::now() + kLookInterval;
}

// ----- memory

absl::StatusOr<Sharing::Lent> SimulatedRuntime::Share(const void* address) {
  MutexLock lock(mu_);
  const FoundMemory found = FindMemory(address);
  if (found.memory == nullptr || found.peer != nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Share: wanted an address of device memory of this process, found %p",
        address));
  }
  WEFT_RETURN_IF_ERROR(Admit(found.device, "Share"));
  const SimulatedMemory& memory = *devices_[found.device.index]->memory;
  const absl::StatusOr<SimulatedHandle> handle = memory.HandleOf(address);
  if (!handle.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(found.device), ": Share: ", handle.status().message()));
  }
  return Lent{handle->Encode(), memory.OffsetOf(address) - handle->offset};
}

absl::StatusOr<std::shared_ptr<PeerMemory>> SimulatedRuntime::OpenPeer(
    Device device, const SimulatedHandle& handle) {
  for (const OpenedMemory& opened : opened_) {
    if (opened.device == device && opened.memory->nonce() == handle.nonce) {
      return opened.memory;
    }
  }
  return PeerMemory::Open(handle);
}

absl::StatusOr<void*> SimulatedRuntime::OpenMemory(Device device,
                                                   const IpcHandle& handle) {
  WEFT_RETURN_IF_ERROR(Admit(device, "OpenMemory"));
  WEFT_ASSIGN_OR_RETURN(const SimulatedHandle read,
                        SimulatedHandle::Decode(handle, Kind::kMemory));
  MutexLock lock(mu_);
  WEFT_ASSIGN_OR_RETURN(const std::shared_ptr<PeerMemory> memory,
                        OpenPeer(device, read));
  void* const address = memory->AddressOf(read.offset);
  if (memory->AllocationOf(address) != read.allocation) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(device), ": OpenMemory: process ", read.pid,
                     " has freed that memory"));
  }
  const auto known = std::find_if(
      opened_.begin(), opened_.end(),
      [&](const OpenedMemory& one) { return one.memory == memory; });
  if (known != opened_.end()) {
    ++known->uses;
  } else {
    opened_.push_back({memory, device, 1});
  }
  return address;
}

absl::Status SimulatedRuntime::CloseMemory(void* memory) {
  std::shared_ptr<PeerMemory> last;  // ends after the lock
  MutexLock lock(mu_);
  const auto known = std::find_if(
      opened_.begin(), opened_.end(),
      [&](const OpenedMemory& one) { return one.memory->Contains(memory); });
  if (known == opened_.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "CloseMemory: wanted an address that OpenMemory gave, found %p",
        memory));
  }
  if (--known->uses > 0) return absl::OkStatus();
  last = std::move(known->memory);
  opened_.erase(known);
  return absl::OkStatus();
}

// ----- events

absl::StatusOr<Sharing::SharedEvent> SimulatedRuntime::CreateSharedEvent(
    Device device) {
  WEFT_RETURN_IF_ERROR(Admit(device, "CreateSharedEvent"));
  MutexLock lock(mu_);
  SimulatedMemory& memory = *devices_[device.index]->memory;
  WEFT_ASSIGN_OR_RETURN(const SimulatedHandle handle, memory.TakeEvent());
  events_[next_event_] = absl::nullopt;
  SharedRecord& record = shared_events_[next_event_];
  record.slot = &memory.EventAt(handle.slot);
  record.number = handle.slot;
  return SharedEvent{MakeEvent(device, next_event_++), handle.Encode()};
}

absl::StatusOr<Event> SimulatedRuntime::OpenEvent(Device device,
                                                  const IpcHandle& handle) {
  WEFT_RETURN_IF_ERROR(Admit(device, "OpenEvent"));
  WEFT_ASSIGN_OR_RETURN(const SimulatedHandle read,
                        SimulatedHandle::Decode(handle, Kind::kEvent));
  MutexLock lock(mu_);
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<PeerMemory> peer,
                        OpenPeer(device, read));
  events_[next_event_] = absl::nullopt;
  SharedRecord& record = shared_events_[next_event_];
  record.slot = &peer->EventAt(read.slot);
  record.peer = std::move(peer);
  return MakeEvent(device, next_event_++);
}

absl::Status SimulatedRuntime::RecordShared(uint64_t handle, Stream stream) {
  const auto found = shared_events_.find(handle);
  if (found == shared_events_.end()) return absl::OkStatus();
  SharedRecord& record = found->second;
  if (record.peer != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "RecordEvent(", Name(stream), "): the event is of another process"));
  }
  if (record.stream >= 0 && record.stream != stream.id()) {
    return absl::InvalidArgumentError(
        absl::StrCat("RecordEvent(", Name(stream),
                     "): an event that processes share is "
                     "recorded on one stream, and this one was on stream ",
                     record.stream));
  }
  record.stream = stream.id();
  SharedEventSlot& slot = *record.slot;
  const uint64_t number = slot.recorded.fetch_add(1) + 1;
  Enqueue({stream, "RecordEvent", false, [&slot, number] {
             slot.Complete(number);
             return absl::OkStatus();
           }});
  return absl::OkStatus();
}

void SimulatedRuntime::ReleaseShared(Device device, uint64_t handle) {
  const auto found = shared_events_.find(handle);
  if (found == shared_events_.end()) return;
  const int number = found->second.number;
  if (number >= 0) devices_[device.index]->memory->GiveBackEvent(number);
  shared_events_.erase(found);
  OpenGates();  // those that are passed hold the memory of their process
}

void SimulatedRuntime::WaitForPeer(Stream stream, uint64_t handle) {
  if (IsOverAtPeer(handle)) return;
  const SharedRecord& record = shared_events_.at(handle);
  Gate gate;
  if (free_gates_.empty()) {
    gate.stream = schedule_.AddStream();
  } else {
    gate.stream = free_gates_.back();
    free_gates_.pop_back();
  }
  gate.device = stream.device();
  gate.peer = record.peer;
  gate.slot = record.slot;
  gate.record = record.slot->recorded.load();
  schedule_.SetHangs(gate.stream, true);
  schedule_.Enqueue(gate.stream, next_task_);
  tasks_.emplace(next_task_++, Task{stream, "a wait for another process", false,
                                    [] { return absl::OkStatus(); }});
  gate.mark = schedule_.MarkOf(gate.stream);
  schedule_.Wait(stream.id(), gate.mark);
  gates_.push_back(std::move(gate));
}

void SimulatedRuntime::OpenGates() {
  for (auto gate = gates_.begin(); gate != gates_.end();) {
    if (schedule_.IsDone(gate->mark)) {
      free_gates_.push_back(gate->stream);
      gate = gates_.erase(gate);
      continue;
    }
    if (!gate->is_open &&
        (gate->slot->completed.load() >= gate->record ||
         gate->peer->has_ended() ||
         devices_[gate->device.index]->failure.has_failed())) {
      gate->is_open = true;
      schedule_.SetHangs(gate->stream, false);
    }
    ++gate;
  }
}

bool SimulatedRuntime::IsOverAtPeer(uint64_t handle) {
  const auto found = shared_events_.find(handle);
  if (found == shared_events_.end() || found->second.peer == nullptr) {
    return true;
  }
  const SharedEventSlot& slot = *found->second.slot;
  const uint64_t wanted = slot.recorded.load();
  return slot.completed.load() >= wanted || found->second.peer->has_ended();
}

absl::Status SimulatedRuntime::AwaitPeer(const Event& event,
                                         absl::Duration timeout) {
  const Deadline deadline = SteadyDeadline(timeout);
  const uint64_t handle = HandleOf(event);
  while (!IsOverAtPeer(handle)) {
    WEFT_RETURN_IF_ERROR(Admit(event.device(), "Synchronize(event)"));
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          Name(event.device()), ": Synchronize(event): not done after ",
          absl::FormatDuration(timeout), " by another process"));
    }
    changed_.WaitUntil(mu_, std::min(deadline, NextLookAtPeers()));
  }
  return absl::OkStatus();
}

}  // namespace weft::device
