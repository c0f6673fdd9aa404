#include "weft/device/cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "weft/base/mutex.h"
#include "weft/base/status_macros.h"
#include "weft/base/steady_deadline.h"
#include "weft/device/cuda/current_device.h"
#include "weft/device/cuda/error.h"
#include "weft/device/first_failure.h"
#include "weft/device/sharing.h"

namespace weft::device {
namespace {

cudaStream_t Native(Stream stream) {
  return static_cast<cudaStream_t>(stream.native());
}

// Returns after a pause that grows with the number of calls.
class Backoff {
 public:
  void Pause() {
    const auto now = std::chrono::steady_clock::now();
    if (now - begin_ < std::chrono::microseconds(50)) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, std::chrono::microseconds(1000));
  }

 private:
  const std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
  std::chrono::microseconds sleep_{20};
};

class CudaRuntime final : public Runtime, public Sharing {
 public:
  CudaRuntime(int count, CudaOptions options) : options_(options) {
    for (int i = 0; i < count; ++i) devices_.push_back(std::make_unique<Gpu>());
  }
  ~CudaRuntime() override;

  Device::Kind kind() const override { return Device::Kind::kCuda; }
  int device_count() const override {
    return static_cast<int>(devices_.size());
  }
  absl::StatusOr<Properties> GetProperties(Device device) override;
  absl::StatusOr<MemoryUse> GetMemoryUse(Device device) override;
  absl::Status Health(Device device) override;
  absl::StatusOr<void*> Allocate(Device device, int64_t bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Free(Device device, void* memory) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override;
  absl::Status FreePinned(void* memory) override;
  absl::StatusOr<Location> Locate(const void* address) override;
  using Runtime::CreateStream;
  absl::StatusOr<Stream> CreateStream(Device device, Priority priority) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Stream> DefaultStream(Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Event> CreateEvent(Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RecordEvent(Event& event, Stream stream) override;
  absl::Status StreamWaitEvent(Stream stream, const Event& event) override;
  absl::StatusOr<bool> Query(Stream stream) override;
  absl::StatusOr<bool> Query(const Event& event) override;
  absl::Status Synchronize(Stream stream, absl::Duration timeout) override;
  absl::Status Synchronize(const Event& event, absl::Duration timeout) override;
  absl::Status Synchronize(Device device, absl::Duration timeout) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CopyAsync(void* destination, const void* source, int64_t bytes,
                         Stream stream) override;
  absl::Status MemsetAsync(void* destination, uint8_t value, int64_t bytes,
                           Stream stream) override;
  absl::Status EnqueueHost(Stream stream, absl::string_view name,
                           HostKernel kernel) override;
  absl::Status LaunchNative(Stream stream, absl::string_view name,
                            NativeLaunch launch) override;
  absl::StatusOr<Lent> Share(const void* address) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<void*> OpenMemory(Device device,
                                   const IpcHandle& handle) override;
  absl::Status CloseMemory(void* memory) override;
  absl::StatusOr<SharedEvent> CreateSharedEvent(Device device) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Event> OpenEvent(Device device,
                                  const IpcHandle& handle) override
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Allocation {
    Device device;
    int64_t bytes = 0;
    bool is_shared = false;
    bool is_freed = false;  // only of one that is shared
    IpcHandle handle = {};  // of one that is shared
  };
  // A device. All but `failure` is guarded by mu_.
  struct Gpu {
    FirstFailure failure;
    Stream default_stream;
    std::deque<cudaEvent_t> free_events;
  };

  // `what` is a callable that says what is done: "Allocate(64 bytes)". It is
  // called for a failure only.
  template <typename What>
  absl::Status Admit(Device device, const What& what) const {
    if (device.kind != Device::Kind::kCuda || device.index < 0 ||
        device.index >= device_count()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what(), ": no device ", Name(device), "; there are ",
                       device_count(), " CUDA devices"));
    }
    const FirstFailure& failure = devices_[device.index]->failure;
    if (!failure.has_failed()) return absl::OkStatus();
    return failure.Refuse(absl::StrCat(Name(device), ": ", what()));
  }
  template <typename What>
  absl::Status Admit(Stream stream, const What& what) const {
    if (Owns(stream)) return Admit(stream.device(), what);
    return absl::InvalidArgumentError(
        absl::StrCat(what(), ": the stream is not of this Runtime"));
  }
  template <typename What>
  absl::Status Admit(const Event& event, const What& what) const {
    if (Owns(event)) return Admit(event.device(), what);
    return absl::InvalidArgumentError(
        absl::StrCat(what(), ": the event is not of this Runtime"));
  }

  // The Status of a call to CUDA; keeps the first failure that is final.
  template <typename What>
  absl::Status Check(cudaError_t error, Device device, const What& what) {
    if (error == cudaSuccess) return absl::OkStatus();
    // It is reported here; left there it would be taken for the next launch's.
    (void)cudaGetLastError();
    const absl::Status status =
        CudaStatus(error, absl::StrCat(Name(device), ": ", what()));
    if (IsFinal(error)) devices_[device.index]->failure.Set(status);
    return status;
  }

  // Runs `call() -> cudaError_t` with `device` current.
  template <typename What, typename Call>
  absl::Status On(Device device, const What& what, const Call& call) {
    WEFT_RETURN_IF_ERROR(Admit(device, what));
    const CurrentCudaDevice current(device.index);
    WEFT_RETURN_IF_ERROR(Check(current.error(), device, what));
    return Check(call(), device, what);
  }

  // Reads what cudaStreamQuery or cudaEventQuery returned.
  template <typename What>
  absl::StatusOr<bool> IsOver(cudaError_t error, Device device,
                              const What& what) {
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    WEFT_RETURN_IF_ERROR(Check(error, device, what));
    return true;
  }

  // Polls `query() -> StatusOr<bool>` until it is true.
  template <typename What, typename Query>
  absl::Status Poll(absl::Duration timeout, Device device, const What& what,
                    const Query& query) {
    const auto deadline = SteadyDeadline(timeout);
    Backoff backoff;
    while (true) {
      WEFT_ASSIGN_OR_RETURN(const bool over, query());
      if (over) return absl::OkStatus();
      if (std::chrono::steady_clock::now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(Name(device), ": ", what(), ": not done after ",
                         absl::FormatDuration(timeout)));
      }
      backoff.Pause();
    }
  }

  static cudaEvent_t NativeOf(const Event& event) {
    return reinterpret_cast<cudaEvent_t>(HandleOf(event));
  }
  void ReleaseEvent(Device device, uint64_t handle) override
      ABSL_LOCKS_EXCLUDED(mu_);
  // Freed memory that other processes may have open, of this size; or null.
  void* TakeShared(Device device, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the memory is kept for TakeShared; else it is forgotten. An error:
  // it was freed before.
  absl::StatusOr<bool> KeepShared(Device device, void* memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  // An event that is not used again for another.
  Event MakeOwnEvent(Device device, cudaEvent_t event) ABSL_LOCKS_EXCLUDED(mu_);
  // One that was given back, or null.
  cudaEvent_t TakeFreeEvent(Device device) ABSL_LOCKS_EXCLUDED(mu_);

  const CudaOptions options_;
  std::vector<std::unique_ptr<Gpu>> devices_;  // by index
  Mutex mu_;
  std::vector<Stream> streams_ ABSL_GUARDED_BY(mu_);  // by id
  std::map<const char*, Allocation> allocations_ ABSL_GUARDED_BY(mu_);
  // Those that processes share.
  std::unordered_set<uint64_t> shared_events_ ABSL_GUARDED_BY(mu_);
};

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(IpcHandle));
static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(IpcHandle));

CudaRuntime::~CudaRuntime() {
  // A device that failed refuses, and there is nobody to tell.
  for (const Stream stream : streams_) (void)cudaStreamDestroy(Native(stream));
  for (const auto& gpu : devices_) {
    for (cudaEvent_t event : gpu->free_events) (void)cudaEventDestroy(event);
  }
  (void)cudaGetLastError();
}

absl::StatusOr<Properties> CudaRuntime::GetProperties(Device device) {
  const auto what = [] { return "GetProperties"; };
  WEFT_RETURN_IF_ERROR(Admit(device, what));
  cudaDeviceProp found;
  WEFT_RETURN_IF_ERROR(
      Check(cudaGetDeviceProperties(&found, device.index), device, what));
  char bus[32] = "";
  WEFT_RETURN_IF_ERROR(Check(
      cudaDeviceGetPCIBusId(bus, sizeof(bus), device.index), device, what));
  Properties properties;
  properties.device = device;
  properties.name = found.name;
  properties.memory_bytes = static_cast<int64_t>(found.totalGlobalMem);
  properties.compute_major = found.major;
  properties.compute_minor = found.minor;
  properties.multiprocessors = found.multiProcessorCount;
  properties.pci_bus_id = bus;
  return properties;
}

absl::StatusOr<MemoryUse> CudaRuntime::GetMemoryUse(Device device) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  WEFT_RETURN_IF_ERROR(On(
      device, [] { return "GetMemoryUse"; },
      [&] { return cudaMemGetInfo(&free_bytes, &total_bytes); }));
  return MemoryUse{static_cast<int64_t>(free_bytes),
                   static_cast<int64_t>(total_bytes)};
}

absl::Status CudaRuntime::Health(Device device) {
  return Admit(device, [] { return "Health"; });
}

absl::StatusOr<void*> CudaRuntime::Allocate(Device device, int64_t bytes) {
  const auto what = [=] { return absl::StrCat("Allocate(", bytes, " bytes)"); };
  WEFT_RETURN_IF_ERROR(Admit(device, what));
  if (bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(device), ": ", what(), ": wanted at least 1"));
  }
  void* memory = TakeShared(device, bytes);
  if (memory != nullptr) return memory;
  absl::Status status =
      On(device, what, [&] { return cudaMalloc(&memory, bytes); });
  if (status.ok()) {
    MutexLock lock(mu_);
    allocations_[static_cast<const char*>(memory)] = {device, bytes};
    return memory;
  }
  if (absl::IsResourceExhausted(status)) {
    const absl::StatusOr<MemoryUse> use = GetMemoryUse(device);
    if (use.ok()) {
      status = absl::ResourceExhaustedError(
          absl::StrCat(status.message(), "; ", use->free_bytes, " of ",
                       use->total_bytes, " bytes are free"));
    }
  }
  return status;
}

absl::Status CudaRuntime::Free(Device device, void* memory) {
  WEFT_ASSIGN_OR_RETURN(const bool is_kept, KeepShared(device, memory));
  if (is_kept) return absl::OkStatus();
  return On(
      device, [] { return "Free"; }, [=] { return cudaFree(memory); });
}

absl::StatusOr<void*> CudaRuntime::AllocatePinned(int64_t bytes) {
  const std::string what = absl::StrCat("AllocatePinned(", bytes, " bytes)");
  if (bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": wanted at least 1"));
  }
  void* memory = nullptr;
  // Portable: pinned for each device, not only for the current one.
  const cudaError_t error =
      cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  if (error == cudaSuccess) return memory;
  (void)cudaGetLastError();
  return CudaStatus(error, what);
}

absl::Status CudaRuntime::FreePinned(void* memory) {
  const cudaError_t error = cudaFreeHost(memory);
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  return CudaStatus(error, "FreePinned");
}

absl::StatusOr<Location> CudaRuntime::Locate(const void* address) {
  cudaPointerAttributes attributes;
  const cudaError_t error = cudaPointerGetAttributes(&attributes, address);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return CudaStatus(error, "Locate");
  }
  Location location;
  switch (attributes.type) {
    case cudaMemoryTypeHost:
      location.place = Location::Place::kPinned;
      break;
    case cudaMemoryTypeDevice:
    case cudaMemoryTypeManaged:
      location.place = Location::Place::kDevice;
      location.device = Device::Cuda(attributes.device);
      break;
    default:
      break;  // unregistered: pageable
  }
  return location;
}

absl::StatusOr<Stream> CudaRuntime::CreateStream(Device device,
                                                 Priority priority) {
  cudaStream_t native = nullptr;
  WEFT_RETURN_IF_ERROR(On(
      device, [] { return "CreateStream"; },
      [&]() -> cudaError_t {
        int least = 0;
        int greatest = 0;
        const cudaError_t error =
            cudaDeviceGetStreamPriorityRange(&least, &greatest);
        if (error != cudaSuccess) return error;
        return cudaStreamCreateWithPriority(
            &native, cudaStreamNonBlocking,
            priority == Priority::kHigh ? greatest : least);
      }));
  MutexLock lock(mu_);
  streams_.push_back(
      MakeStream(device, static_cast<int>(streams_.size()), native));
  return streams_.back();
}

absl::StatusOr<Stream> CudaRuntime::DefaultStream(Device device) {
  WEFT_RETURN_IF_ERROR(Admit(device, [] { return "DefaultStream"; }));
  {
    MutexLock lock(mu_);
    const Stream stream = devices_[device.index]->default_stream;
    if (stream.is_valid()) return stream;
  }
  WEFT_ASSIGN_OR_RETURN(const Stream made,
                        CreateStream(device, Priority::kNormal));
  MutexLock lock(mu_);
  Stream& stream = devices_[device.index]->default_stream;
  if (!stream.is_valid()) stream = made;  // else another thread was faster
  return stream;
}

absl::StatusOr<Event> CudaRuntime::CreateEvent(Device device) {
  const auto what = [] { return "CreateEvent"; };
  WEFT_RETURN_IF_ERROR(Admit(device, what));
  cudaEvent_t event = TakeFreeEvent(device);
  if (event != nullptr) {
    return MakeEvent(device, reinterpret_cast<uint64_t>(event));
  }
  WEFT_RETURN_IF_ERROR(On(device, what, [&] {
    return cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }));
  return MakeEvent(device, reinterpret_cast<uint64_t>(event));
}

void CudaRuntime::ReleaseEvent(Device device, uint64_t handle) {
  MutexLock lock(mu_);
  if (shared_events_.erase(handle) > 0) {
    (void)cudaEventDestroy(reinterpret_cast<cudaEvent_t>(handle));
    return;
  }
  devices_[device.index]->free_events.push_back(
      reinterpret_cast<cudaEvent_t>(handle));
}

cudaEvent_t CudaRuntime::TakeFreeEvent(Device device) {
  cudaEvent_t event = nullptr;
  {
    MutexLock lock(mu_);
    std::deque<cudaEvent_t>& events = devices_[device.index]->free_events;
    if (events.empty()) return nullptr;
    event = events.front();
    events.pop_front();
  }
  // One whose record is over is as one that was never recorded.
  if (cudaEventQuery(event) == cudaSuccess) return event;
  (void)cudaGetLastError();
  MutexLock lock(mu_);
  devices_[device.index]->free_events.push_back(event);
  return nullptr;
}

absl::Status CudaRuntime::RecordEvent(Event& event, Stream stream) {
  const auto what = [=] {
    return absl::StrCat("RecordEvent(", Name(stream), ")");
  };
  WEFT_RETURN_IF_ERROR(Admit(event, what));
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  if (event.device() != stream.device()) {
    return absl::InvalidArgumentError(absl::StrCat("RecordEvent: an event of ",
                                                   Name(event.device()), " on ",
                                                   Name(stream)));
  }
  return On(stream.device(), what,
            [&] { return cudaEventRecord(NativeOf(event), Native(stream)); });
}

absl::Status CudaRuntime::StreamWaitEvent(Stream stream, const Event& event) {
  const auto what = [=] {
    return absl::StrCat("StreamWaitEvent(", Name(stream), ")");
  };
  WEFT_RETURN_IF_ERROR(Admit(event, what));
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  return On(stream.device(), what, [&] {
    return cudaStreamWaitEvent(Native(stream), NativeOf(event), 0);
  });
}

absl::StatusOr<bool> CudaRuntime::Query(Stream stream) {
  const auto what = [=] { return absl::StrCat("Query(", Name(stream), ")"); };
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  return IsOver(cudaStreamQuery(Native(stream)), stream.device(), what);
}

absl::StatusOr<bool> CudaRuntime::Query(const Event& event) {
  const auto what = [] { return "Query(event)"; };
  WEFT_RETURN_IF_ERROR(Admit(event, what));
  return IsOver(cudaEventQuery(NativeOf(event)), event.device(), what);
}

absl::Status CudaRuntime::Synchronize(Stream stream, absl::Duration timeout) {
  const auto what = [=] {
    return absl::StrCat("Synchronize(", Name(stream), ")");
  };
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  // By an event, not by cudaStreamQuery: what other threads put on the stream
  // meanwhile must not prolong the wait. The common case is an idle stream.
  WEFT_ASSIGN_OR_RETURN(const bool idle, Query(stream));
  if (idle) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(Event event, CreateEvent(stream.device()));
  WEFT_RETURN_IF_ERROR(RecordEvent(event, stream));
  return Poll(timeout, stream.device(), what, [&] { return Query(event); });
}

absl::Status CudaRuntime::Synchronize(const Event& event,
                                      absl::Duration timeout) {
  const auto what = [] { return "Synchronize(event)"; };
  WEFT_RETURN_IF_ERROR(Admit(event, what));
  return Poll(timeout, event.device(), what, [&] { return Query(event); });
}

absl::Status CudaRuntime::Synchronize(Device device, absl::Duration timeout) {
  WEFT_RETURN_IF_ERROR(Admit(device, [] { return "Synchronize(device)"; }));
  std::vector<Stream> streams;
  {
    MutexLock lock(mu_);
    std::copy_if(streams_.begin(), streams_.end(), std::back_inserter(streams),
                 [&](Stream stream) { return stream.device() == device; });
  }
  const auto end = SteadyDeadline(timeout);
  for (const Stream stream : streams) {
    const auto left = end - std::chrono::steady_clock::now();
    WEFT_RETURN_IF_ERROR(Synchronize(stream, absl::FromChrono(left)));
  }
  return absl::OkStatus();
}

absl::Status CudaRuntime::CopyAsync(void* destination, const void* source,
                                    int64_t bytes, Stream stream) {
  const auto what = [=] {
    return absl::StrCat("CopyAsync(", bytes, " bytes, ", Name(stream), ")");
  };
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  if (bytes == 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Location to, Locate(destination));
  WEFT_ASSIGN_OR_RETURN(const Location from, Locate(source));
  if (bytes < 0 || (to.place != Location::Place::kDevice &&
                    from.place != Location::Place::kDevice)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(stream.device()), ": ", what(), ": ",
        bytes < 0 ? "a negative size" : "neither address is device memory"));
  }
  // With pageable memory CUDA waits for the stream itself, without a deadline:
  // so that it finds nothing to wait for, the wait is here.
  if (to.place == Location::Place::kPageable ||
      from.place == Location::Place::kPageable) {
    WEFT_RETURN_IF_ERROR(Synchronize(stream, options_.pageable_copy_timeout));
  }
  return On(stream.device(), what, [=] {
    return cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDefault,
                           Native(stream));
  });
}

absl::Status CudaRuntime::MemsetAsync(void* destination, uint8_t value,
                                      int64_t bytes, Stream stream) {
  const auto what = [=] {
    return absl::StrCat("MemsetAsync(", bytes, " bytes, ", Name(stream), ")");
  };
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  if (bytes == 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Location to, Locate(destination));
  if (bytes < 0 || to.place != Location::Place::kDevice) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(stream.device()), ": ", what(), ": ",
        bytes < 0 ? "a negative size" : "the address is not device memory"));
  }
  return On(stream.device(), what, [=] {
    return cudaMemsetAsync(destination, value, bytes, Native(stream));
  });
}

absl::Status CudaRuntime::EnqueueHost(Stream, absl::string_view name,
                                      HostKernel) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, ": a CUDA device runs no function of the host: use Launch"));
}

absl::Status CudaRuntime::LaunchNative(Stream stream, absl::string_view name,
                                       NativeLaunch launch) {
  const auto what = [=] { return absl::StrCat(name, " on ", Name(stream)); };
  WEFT_RETURN_IF_ERROR(Admit(stream, what));
  const CurrentCudaDevice current(stream.device().index);
  WEFT_RETURN_IF_ERROR(Check(current.error(), stream.device(), what));
  const absl::Status launched = launch(stream.native());
  // CUDA's own words first: they say more than what the launcher made of them.
  WEFT_RETURN_IF_ERROR(Check(cudaGetLastError(), stream.device(), what));
  return launched;
}

// ----- what other processes open

void* CudaRuntime::TakeShared(Device device, int64_t bytes) {
  MutexLock lock(mu_);
  for (auto& [memory, known] : allocations_) {
    if (!known.is_freed || !(known.device == device) || known.bytes != bytes) {
      continue;
    }
    known.is_freed = false;
    return const_cast<char*>(memory);
  }
  return nullptr;
}

// While another process may have it open, cudaFree of it is undefined.
absl::StatusOr<bool> CudaRuntime::KeepShared(Device device, void* memory) {
  MutexLock lock(mu_);
  const auto known = allocations_.find(static_cast<const char*>(memory));
  if (known == allocations_.end() || !(known->second.device == device)) {
    return false;
  }
  if (!known->second.is_shared) {
    allocations_.erase(known);
    return false;
  }
  if (!std::exchange(known->second.is_freed, true)) return true;
  return absl::InvalidArgumentError(
      absl::StrCat(Name(device), ": Free: it was freed before"));
}

absl::StatusOr<Sharing::Lent> CudaRuntime::Share(const void* address) {
  const auto* const at = static_cast<const char*>(address);
  const auto what = [] { return "Share"; };
  MutexLock lock(mu_);
  auto known = allocations_.upper_bound(at);
  if (known != allocations_.begin()) --known;
  if (known == allocations_.end() || known->second.is_freed ||
      std::less<>()(at, known->first) ||
      !std::less<>()(at, known->first + known->second.bytes)) {
    return absl::InvalidArgumentError(
        "Share: wanted an address of device memory that this Runtime gave");
  }
  Allocation& allocation = known->second;
  if (!allocation.is_shared) {
    cudaIpcMemHandle_t native;
    WEFT_RETURN_IF_ERROR(On(allocation.device, what, [&] {
      return cudaIpcGetMemHandle(&native, const_cast<char*>(known->first));
    }));
    std::memcpy(allocation.handle.bytes.data(), &native, sizeof native);
    allocation.is_shared = true;
  }
  return Lent{allocation.handle, at - known->first};
}

absl::StatusOr<void*> CudaRuntime::OpenMemory(Device device,
                                              const IpcHandle& handle) {
  cudaIpcMemHandle_t native;
  std::memcpy(&native, handle.bytes.data(), sizeof native);
  void* memory = nullptr;
  WEFT_RETURN_IF_ERROR(On(
      device, [] { return "OpenMemory"; },
      [&] {
        return cudaIpcOpenMemHandle(&memory, native,
                                    cudaIpcMemLazyEnablePeerAccess);
      }));
  return memory;
}

absl::Status CudaRuntime::CloseMemory(void* memory) {
  WEFT_ASSIGN_OR_RETURN(const Location location, Locate(memory));
  return On(
      location.device, [] { return "CloseMemory"; },
      [=] { return cudaIpcCloseMemHandle(memory); });
}

Event CudaRuntime::MakeOwnEvent(Device device, cudaEvent_t event) {
  const auto handle = reinterpret_cast<uint64_t>(event);
  MutexLock lock(mu_);
  shared_events_.insert(handle);
  return MakeEvent(device, handle);
}

absl::StatusOr<Sharing::SharedEvent> CudaRuntime::CreateSharedEvent(
    Device device) {
  const auto what = [] { return "CreateSharedEvent"; };
  cudaEvent_t event = nullptr;
  WEFT_RETURN_IF_ERROR(On(device, what, [&] {
    return cudaEventCreateWithFlags(
        &event, cudaEventDisableTiming | cudaEventInterprocess);
  }));
  SharedEvent made;
  made.event = MakeOwnEvent(device, event);
  cudaIpcEventHandle_t native;
  WEFT_RETURN_IF_ERROR(
      On(device, what, [&] { return cudaIpcGetEventHandle(&native, event); }));
  std::memcpy(made.handle.bytes.data(), &native, sizeof native);
  return made;
}

absl::StatusOr<Event> CudaRuntime::OpenEvent(Device device,
                                             const IpcHandle& handle) {
  cudaIpcEventHandle_t native;
  std::memcpy(&native, handle.bytes.data(), sizeof native);
  cudaEvent_t event = nullptr;
  WEFT_RETURN_IF_ERROR(On(
      device, [] { return "OpenEvent"; },
      [&] { return cudaIpcOpenEventHandle(&event, native); }));
  return MakeOwnEvent(device, event);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> CreateCudaRuntime(
    CudaOptions options) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return absl::UnavailableError(
        CudaStatus(error, "no CUDA device").message());
  }
  return std::make_unique<CudaRuntime>(count, options);
}

}  // namespace weft::device
