#include "weft/device/simulated/runtime.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/check.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/device/simulated/parts.h"

namespace weft::device {
namespace {

constexpr size_t kTraceLines = 4096;

std::string Sized(absl::string_view what, int64_t bytes) {
  return absl::StrCat(what, "(", bytes, " bytes)");
}

}  // namespace

class SimulatedRuntime::KernelMemory final : public DeviceMemory {
 public:
  KernelMemory(const SimulatedRuntime& runtime, Device device)
      : runtime_(runtime), device_(device) {}

 private:
  absl::StatusOr<void*> Reach(const void* address,
                              int64_t bytes) const override {
    if (bytes == 0) return const_cast<void*>(address);
    MutexLock lock(runtime_.mu_);
    FoundMemory found = runtime_.FindMemory(address);
    if (found.memory != nullptr && found.device == device_) {
      if (found.peer != nullptr) peers_.push_back(std::move(found.peer));
      return found.memory->Reach(address, bytes);
    }
    if (found.memory != nullptr) {
      return absl::InternalError(absl::StrFormat(
          "illegal address %p: memory of %s, which %s cannot reach", address,
          Name(found.device), Name(device_)));
    }
    std::shared_ptr<PinnedBlock> pinned = runtime_.FindPinned(address);
    if (pinned == nullptr) {
      return absl::InternalError(absl::StrFormat(
          "illegal address %p: neither device memory nor pinned", address));
    }
    const int64_t room =
        pinned->memory + pinned->bytes - static_cast<const char*>(address);
    if (bytes < 0 || bytes > room) {
      return absl::InternalError(absl::StrFormat(
          "illegal address: %d bytes at %p, where a pinned block of %d bytes "
          "has %d left",
          bytes, address, pinned->bytes, room));
    }
    used_.push_back(std::move(pinned));
    return const_cast<void*>(address);
  }

  const SimulatedRuntime& runtime_;
  const Device device_;
  // Alive until the kernel ends, even if another thread gives it back.
  mutable std::vector<std::shared_ptr<PinnedBlock>> used_;
  mutable std::vector<std::shared_ptr<PeerMemory>> peers_;
};

absl::StatusOr<std::unique_ptr<SimulatedRuntime>> SimulatedRuntime::Create(
    Options options) {
  if (options.devices < 1 || options.memory_bytes < 1 ||
      options.max_pending_tasks < 0 ||
      options.pageable_copy_timeout < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SimulatedRuntime: ", options.devices, " devices of ",
        options.memory_bytes, " bytes, at most ", options.max_pending_tasks,
        " pending tasks, a pageable_copy_timeout of ",
        absl::FormatDuration(options.pageable_copy_timeout),
        ": wanted at least 1, 1, 0 and 0"));
  }
  std::unique_ptr<SimulatedRuntime> runtime(new SimulatedRuntime(options));
  for (int i = 0; i < options.devices; ++i) {
    auto device = std::make_unique<Simulated>();
    WEFT_ASSIGN_OR_RETURN(device->memory,
                          SimulatedMemory::Create(options.memory_bytes));
    runtime->devices_.push_back(std::move(device));
  }
  return runtime;
}

SimulatedRuntime::SimulatedRuntime(Options options)
    : options_(options), schedule_(options.seed) {}

SimulatedRuntime::~SimulatedRuntime() {
  for (const auto& device : devices_) device->memory->CompleteAllEvents();
}

// ----- who may call what

bool SimulatedRuntime::Knows(Device device) const {
  return device.kind == Device::Kind::kSimulated && device.index >= 0 &&
         device.index < options_.devices;
}

absl::Status SimulatedRuntime::Admit(Device device,
                                     absl::string_view what) const {
  if (!Knows(device)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": no device ", Name(device), "; there are ",
                     options_.devices, " simulated devices"));
  }
  if (runner_.load() == std::this_thread::get_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": a task of a device called its Runtime"));
  }
  const FirstFailure& failure = devices_[device.index]->failure;
  if (failure.has_failed()) {
    return failure.Refuse(absl::StrCat(Name(device), ": ", what));
  }
  return absl::OkStatus();
}

absl::Status SimulatedRuntime::Admit(Stream stream,
                                     absl::string_view what) const {
  if (!Owns(stream)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the stream is not of this Runtime"));
  }
  return Admit(stream.device(), what);
}

absl::Status SimulatedRuntime::Admit(const Event& event,
                                     absl::string_view what) const {
  if (!Owns(event)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the event is not of this Runtime"));
  }
  return Admit(event.device(), what);
}

// ----- faults

void SimulatedRuntime::FailAllocations(Device device, int count) {
  WEFT_CHECK(Knows(device)) << Name(device);
  MutexLock lock(mu_);
  devices_[device.index]->failing_allocations = count;
}

void SimulatedRuntime::FailKernel(Device device, std::string name) {
  WEFT_CHECK(Knows(device)) << Name(device);
  MutexLock lock(mu_);
  devices_[device.index]->failing_kernels.push_back(std::move(name));
}

void SimulatedRuntime::LoseDevice(Device device) {
  WEFT_CHECK(Knows(device)) << Name(device);
  MutexLock lock(mu_);
  Fail(device, absl::UnavailableError(
                   absl::StrCat(Name(device), ": the device is lost")));
}

void SimulatedRuntime::Fail(Device device, const absl::Status& cause) {
  devices_[device.index]->failure.Set(cause);
  devices_[device.index]->memory->CompleteAllEvents();
  // What hung is over, as all else on it: the tasks are dropped as they come.
  for (const Stream stream : streams_) {
    if (stream.device() == device) schedule_.SetHangs(stream.id(), false);
  }
}

void SimulatedRuntime::SetHangs(Stream stream, bool hangs) {
  WEFT_CHECK(Owns(stream));
  MutexLock lock(mu_);
  schedule_.SetHangs(stream.id(), hangs);
}

int64_t SimulatedRuntime::pending_tasks() const {
  MutexLock lock(mu_);
  return schedule_.pending_tasks();
}

int64_t SimulatedRuntime::pinned_blocks() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(pinned_.size());
}

std::vector<std::string> SimulatedRuntime::trace() const {
  MutexLock lock(mu_);
  return {trace_.begin(), trace_.end()};
}

// ----- properties and memory

absl::StatusOr<Properties> SimulatedRuntime::GetProperties(Device device) {
  WEFT_RETURN_IF_ERROR(Admit(device, "GetProperties"));
  Properties properties;
  properties.device = device;
  properties.name = "simulated device";
  properties.memory_bytes = devices_[device.index]->memory->total_bytes();
  properties.multiprocessors = 1;
  return properties;
}

absl::StatusOr<MemoryUse> SimulatedRuntime::GetMemoryUse(Device device) {
  WEFT_RETURN_IF_ERROR(Admit(device, "GetMemoryUse"));
  MutexLock lock(mu_);
  const SimulatedMemory& memory = *devices_[device.index]->memory;
  return MemoryUse{memory.total_bytes() - memory.used_bytes(),
                   memory.total_bytes()};
}

absl::Status SimulatedRuntime::Health(Device device) {
  return Admit(device, "Health");
}

absl::StatusOr<void*> SimulatedRuntime::Allocate(Device device, int64_t bytes) {
  const std::string what = Sized("Allocate", bytes);
  WEFT_RETURN_IF_ERROR(Admit(device, what));
  if (bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(device), ": ", what, ": wanted at least 1"));
  }
  MutexLock lock(mu_);
  Simulated& simulated = *devices_[device.index];
  if (simulated.failing_allocations > 0) {
    --simulated.failing_allocations;
    return absl::ResourceExhaustedError(absl::StrCat(
        Name(device), ": ", what, ": out of memory, as a test asked for"));
  }
  absl::StatusOr<void*> memory = simulated.memory->Allocate(bytes);
  if (memory.ok()) return memory;
  return absl::Status(
      memory.status().code(),
      absl::StrCat(Name(device), ": ", what, ": ", memory.status().message()));
}

absl::Status SimulatedRuntime::Free(Device device, void* memory) {
  // Also of a device that failed: what is given back must not be leaked.
  const absl::Status admitted = Admit(device, "Free");
  if (!Knows(device)) return admitted;
  MutexLock lock(mu_);
  const absl::Status freed = devices_[device.index]->memory->Free(memory);
  if (!admitted.ok() || freed.ok()) return admitted;
  return absl::Status(freed.code(),
                      absl::StrCat(Name(device), ": Free: ", freed.message()));
}

absl::StatusOr<void*> SimulatedRuntime::AllocatePinned(int64_t bytes) {
  if (bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Sized("AllocatePinned", bytes), ": wanted at least 1"));
  }
  auto block = std::make_shared<PinnedBlock>(bytes);
  if (block->memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        Sized("AllocatePinned", bytes), ": the host has not as much memory"));
  }
  std::memset(block->memory, 0xFF, bytes);
  MutexLock lock(mu_);
  pinned_[block->memory] = block;
  return block->memory;
}

absl::Status SimulatedRuntime::FreePinned(void* memory) {
  std::shared_ptr<PinnedBlock> block;  // ends after the lock
  MutexLock lock(mu_);
  const auto it = pinned_.find(static_cast<char*>(memory));
  if (it == pinned_.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "FreePinned: %p is not the address of pinned memory", memory));
  }
  block = std::move(it->second);
  pinned_.erase(it);
  return absl::OkStatus();
}

SimulatedRuntime::FoundMemory SimulatedRuntime::FindMemory(
    const void* address) const {
  for (int i = 0; i < options_.devices; ++i) {
    const SimulatedMemory& memory = *devices_[i]->memory;
    if (memory.Contains(address)) {
      return {&memory, Device::Simulated(i), nullptr};
    }
  }
  for (const OpenedMemory& opened : opened_) {
    if (!opened.memory->Contains(address)) continue;
    return {opened.memory.get(), opened.device, opened.memory};
  }
  return {};
}

std::shared_ptr<SimulatedRuntime::PinnedBlock> SimulatedRuntime::FindPinned(
    const void* address) const {
  const char* const at = static_cast<const char*>(address);
  auto it = pinned_.upper_bound(at);
  if (it == pinned_.begin()) return nullptr;
  --it;
  return std::less<>()(at, it->first + it->second->bytes) ? it->second
                                                          : nullptr;
}

absl::StatusOr<Location> SimulatedRuntime::Locate(const void* address) {
  MutexLock lock(mu_);
  const FoundMemory found = FindMemory(address);
  if (found.memory != nullptr) {
    return Location{Location::Place::kDevice, found.device};
  }
  Location location;
  if (FindPinned(address) != nullptr) {
    location.place = Location::Place::kPinned;
  }
  return location;
}

// ----- streams and events

Stream SimulatedRuntime::AddStream(Device device) {
  streams_.push_back(MakeStream(device, schedule_.AddStream(), nullptr));
  return streams_.back();
}

absl::StatusOr<Stream> SimulatedRuntime::CreateStream(Device device, Priority) {
  WEFT_RETURN_IF_ERROR(Admit(device, "CreateStream"));
  MutexLock lock(mu_);
  return AddStream(device);
}

absl::StatusOr<Stream> SimulatedRuntime::DefaultStream(Device device) {
  WEFT_RETURN_IF_ERROR(Admit(device, "DefaultStream"));
  MutexLock lock(mu_);
  Stream& stream = devices_[device.index]->default_stream;
  if (!stream.is_valid()) stream = AddStream(device);
  return stream;
}

absl::StatusOr<Event> SimulatedRuntime::CreateEvent(Device device) {
  WEFT_RETURN_IF_ERROR(Admit(device, "CreateEvent"));
  MutexLock lock(mu_);
  events_[next_event_] = absl::nullopt;
  return MakeEvent(device, next_event_++);
}

void SimulatedRuntime::ReleaseEvent(Device device, uint64_t handle) {
  MutexLock lock(mu_);
  events_.erase(handle);
  ReleaseShared(device, handle);
}

absl::Status SimulatedRuntime::RecordEvent(Event& event, Stream stream) {
  WEFT_RETURN_IF_ERROR(Admit(event, "RecordEvent"));
  WEFT_RETURN_IF_ERROR(Admit(stream, "RecordEvent"));
  if (event.device() != stream.device()) {
    return absl::InvalidArgumentError(absl::StrCat("RecordEvent: an event of ",
                                                   Name(event.device()), " on ",
                                                   Name(stream)));
  }
  MutexLock lock(mu_);
  WEFT_RETURN_IF_ERROR(RecordShared(HandleOf(event), stream));
  events_[HandleOf(event)] = schedule_.MarkOf(stream.id());
  return absl::OkStatus();
}

absl::Status SimulatedRuntime::StreamWaitEvent(Stream stream,
                                               const Event& event) {
  WEFT_RETURN_IF_ERROR(Admit(stream, "StreamWaitEvent"));
  WEFT_RETURN_IF_ERROR(Admit(event, "StreamWaitEvent"));
  MutexLock lock(mu_);
  const absl::optional<Schedule::Mark>& mark = events_.at(HandleOf(event));
  if (mark.has_value()) schedule_.Wait(stream.id(), *mark);
  WaitForPeer(stream, HandleOf(event));
  return absl::OkStatus();
}

absl::StatusOr<bool> SimulatedRuntime::QueryMark(Schedule::Mark mark,
                                                 Device device,
                                                 absl::string_view what) {
  // A task runs, so that who asks again and again sees an end.
  if (!schedule_.IsDone(mark)) RunNext();
  WEFT_RETURN_IF_ERROR(Admit(device, what));
  return schedule_.IsDone(mark);
}

absl::StatusOr<bool> SimulatedRuntime::Query(Stream stream) {
  WEFT_RETURN_IF_ERROR(Admit(stream, "Query"));
  MutexLock lock(mu_);
  return QueryMark(schedule_.MarkOf(stream.id()), stream.device(), "Query");
}

absl::StatusOr<bool> SimulatedRuntime::Query(const Event& event) {
  WEFT_RETURN_IF_ERROR(Admit(event, "Query"));
  MutexLock lock(mu_);
  const absl::optional<Schedule::Mark> mark = events_.at(HandleOf(event));
  if (!mark.has_value()) return IsOverAtPeer(HandleOf(event));
  return QueryMark(*mark, event.device(), "Query");
}

absl::Status SimulatedRuntime::Synchronize(Stream stream,
                                           absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(Admit(stream, "Synchronize"));
  MutexLock lock(mu_);
  return RunUntil({schedule_.MarkOf(stream.id())}, stream.device(), timeout,
                  absl::StrCat("Synchronize(", Name(stream), ")"));
}

absl::Status SimulatedRuntime::Synchronize(const Event& event,
                                           absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(Admit(event, "Synchronize"));
  MutexLock lock(mu_);
  const absl::optional<Schedule::Mark> mark = events_.at(HandleOf(event));
  if (!mark.has_value()) return AwaitPeer(event, timeout);
  return RunUntil({*mark}, event.device(), timeout, "Synchronize(event)");
}

absl::Status SimulatedRuntime::Synchronize(Device device,
                                           absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(Admit(device, "Synchronize"));
  MutexLock lock(mu_);
  std::vector<Schedule::Mark> marks;
  for (const Stream stream : streams_) {
    if (stream.device() == device) {
      marks.push_back(schedule_.MarkOf(stream.id()));
    }
  }
  return RunUntil(marks, device, timeout, "Synchronize(device)");
}

// ----- tasks

void SimulatedRuntime::Enqueue(Task task) {
  schedule_.Enqueue(task.stream.id(), next_task_);
  tasks_.emplace(next_task_++, std::move(task));
  if (schedule_.DrawEarly() ||
      schedule_.pending_tasks() > options_.max_pending_tasks) {
    RunNext();
  }
}

bool SimulatedRuntime::RunNext() {
  if (is_running_) return false;
  OpenGates();
  const absl::optional<Schedule::Pick> pick = schedule_.Next();
  if (!pick.has_value()) return false;
  const auto it = tasks_.find(pick->task);
  Task task = std::move(it->second);
  tasks_.erase(it);
  Simulated& simulated = *devices_[task.stream.device().index];
  const std::string name = absl::StrCat(task.name, " on ", Name(task.stream));
  if (trace_.size() == kTraceLines) trace_.pop_front();
  trace_.push_back(name);
  absl::Status status;
  auto& failing = simulated.failing_kernels;
  const auto fails = std::find(failing.begin(), failing.end(), task.name);
  if (task.is_kernel && fails != failing.end()) {
    failing.erase(fails);
    status = absl::InternalError("launch failure, as a test asked for");
  } else if (!simulated.failure.has_failed()) {
    is_running_ = true;
    runner_ = std::this_thread::get_id();
    mu_.Unlock();
    status = task.run();
    task.run = nullptr;  // what it holds ends without the lock
    mu_.Lock();
    runner_ = std::thread::id();
    is_running_ = false;
  }
  if (!status.ok()) {
    Fail(task.stream.device(),
         absl::InternalError(absl::StrCat(name, ": ", status.message())));
  }
  schedule_.Finish(*pick);
  changed_.NotifyAll();
  return true;
}

absl::Status SimulatedRuntime::RunUntil(
    const std::vector<Schedule::Mark>& marks, Device device,
    absl::Duration timeout, absl::string_view what) {
  const Deadline deadline = SteadyDeadline(timeout);
  const auto is_done =
      [this](Schedule::Mark mark)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return schedule_.IsDone(mark); };
  const auto timed_out = [&](absl::string_view why) {
    return absl::DeadlineExceededError(
        absl::StrCat(Name(device), ": ", what, ": not done after ",
                     absl::FormatDuration(timeout), why));
  };
  while (!std::all_of(marks.begin(), marks.end(), is_done)) {
    WEFT_RETURN_IF_ERROR(Admit(device, what));
    if (std::chrono::steady_clock::now() >= deadline) return timed_out("");
    if (is_running_) {
      changed_.WaitUntil(mu_, deadline);
    } else if (!RunNext()) {
      if (gates_.empty()) {
        return timed_out(", for a stream hangs (no time passed)");
      }
      changed_.WaitUntil(mu_, std::min(deadline, NextLookAtPeers()));
    }
  }
  return Admit(device, what);
}

// ----- work

absl::StatusOr<SimulatedRuntime::End> SimulatedRuntime::FindEnd(
    const void* address, int64_t bytes) const {
  End end;
  end.address = static_cast<char*>(const_cast<void*>(address));
  FoundMemory found = FindMemory(address);
  if (found.memory != nullptr) {
    end.location = {Location::Place::kDevice, found.device};
    WEFT_RETURN_IF_ERROR(found.memory->Reach(address, bytes).status());
    end.allocation = found.memory->AllocationOf(address);
    end.peer = std::move(found.peer);
    return end;
  }
  end.pinned = FindPinned(address);
  if (end.pinned == nullptr) return end;
  end.location.place = Location::Place::kPinned;
  if (end.pinned->memory + end.pinned->bytes - end.address < bytes) {
    return absl::InternalError(
        absl::StrFormat("%d bytes at %p leave their pinned block of %d bytes",
                        bytes, address, end.pinned->bytes));
  }
  return end;
}

absl::StatusOr<char*> SimulatedRuntime::ReachEnd(const End& end,
                                                 int64_t bytes) const {
  if (end.location.place == Location::Place::kPinned) {
    if (FindPinned(end.address) != end.pinned) {
      return absl::InternalError(absl::StrFormat(
          "the pinned memory at %p was given back before the copy ran",
          end.address));
    }
    return end.address;
  }
  if (end.location.place == Location::Place::kPageable) return end.address;
  const TaskMemory* const memory = FindMemory(end.address).memory;
  if (memory == nullptr ||
      memory->AllocationOf(end.address) != end.allocation) {
    return absl::InternalError(absl::StrFormat(
        "the device memory at %p was given back before the copy ran",
        end.address));
  }
  WEFT_ASSIGN_OR_RETURN(void* const found, memory->Reach(end.address, bytes));
  return static_cast<char*>(found);
}

absl::Status SimulatedRuntime::CopyAsync(void* destination, const void* source,
                                         int64_t bytes, Stream stream) {
  const std::string what = Sized("CopyAsync", bytes);
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  if (bytes == 0) return absl::OkStatus();
  const auto invalid = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(stream.device()), ": ", what, ": ", why));
  };
  if (bytes < 0) return invalid("a negative size");
  MutexLock lock(mu_);
  const absl::StatusOr<End> to = FindEnd(destination, bytes);
  if (!to.ok()) return invalid(to.status().message());
  const absl::StatusOr<End> from = FindEnd(source, bytes);
  if (!from.ok()) return invalid(from.status().message());
  if (to->location.place != Location::Place::kDevice &&
      from->location.place != Location::Place::kDevice) {
    return invalid("neither address is device memory");
  }
  if (to->location.place == Location::Place::kPageable) {
    WEFT_RETURN_IF_ERROR(RunUntil({schedule_.MarkOf(stream.id())},
                                  stream.device(),
                                  options_.pageable_copy_timeout, what));
    WEFT_ASSIGN_OR_RETURN(const char* const read, ReachEnd(*from, bytes));
    std::memcpy(destination, read, bytes);
    return absl::OkStatus();
  }
  // The driver's staging memory: the source may change once this returns, but
  // the bytes come to the device no sooner than the stream comes to the copy.
  std::string staged;
  if (from->location.place == Location::Place::kPageable) {
    staged.assign(static_cast<const char*>(source), bytes);
  }
  Enqueue({stream, what, false,
           [this, to = *to, from = *from, bytes,
            staged = std::move(staged)]() -> absl::Status {
             char* write = nullptr;
             const char* read = staged.data();
             {
               MutexLock run_lock(mu_);
               WEFT_ASSIGN_OR_RETURN(write, ReachEnd(to, bytes));
               if (staged.empty()) {
                 WEFT_ASSIGN_OR_RETURN(read, ReachEnd(from, bytes));
               }
             }
             std::memcpy(write, read, bytes);
             return absl::OkStatus();
           }});
  return absl::OkStatus();
}

absl::Status SimulatedRuntime::MemsetAsync(void* destination, uint8_t value,
                                           int64_t bytes, Stream stream) {
  const std::string what = Sized("MemsetAsync", bytes);
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  if (bytes == 0) return absl::OkStatus();
  const auto invalid = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(stream.device()), ": ", what, ": ", why));
  };
  if (bytes < 0) return invalid("a negative size");
  MutexLock lock(mu_);
  const absl::StatusOr<End> to = FindEnd(destination, bytes);
  if (!to.ok()) return invalid(to.status().message());
  if (to->location.place != Location::Place::kDevice) {
    return invalid("the address is not device memory");
  }
  Enqueue({stream, what, false, [this, to = *to, value, bytes]() {
             char* write = nullptr;
             {
               MutexLock run_lock(mu_);
               absl::StatusOr<char*> found = ReachEnd(to, bytes);
               if (!found.ok()) return found.status();
               write = *found;
             }
             std::memset(write, value, bytes);
             return absl::OkStatus();
           }});
  return absl::OkStatus();
}

absl::Status SimulatedRuntime::EnqueueHost(Stream stream,
                                           absl::string_view name,
                                           HostKernel kernel) {
  WEFT_RETURN_IF_ERROR(Admit(stream, name));
  MutexLock lock(mu_);
  Enqueue(
      {stream, std::string(name), true,
       [this, device = stream.device(), kernel = std::move(kernel)]() mutable {
         return CatchToStatus(
             [&] { return kernel(KernelMemory(*this, device)); });
       }});
  return absl::OkStatus();
}

absl::Status SimulatedRuntime::LaunchNative(Stream, absl::string_view name,
                                            NativeLaunch) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, ": a simulated device has no native stream: use Launch"));
}

}  // namespace weft::device
