// Runtime: the devices of one kind, their memory, and the queues of work that
// they run: streams and events, as CUDA has them.
//
// Two implementations: CUDA (device/cuda/runtime.h), and a simulated one whose
// devices are this CPU and which shows what a program forgets to order
// (device/simulated/runtime.h). One suite, runtime_test.cc, holds for both.
//
// Work is put on a Stream and runs later, in the order of that stream. Nothing
// orders two streams but an Event: there is no stream that waits for the others
// by itself, and CUDA's legacy default stream is never used.
//
// Errors. Each call that fails says on which device it failed, at what, with
// which sizes, and what the device said:
//   kInvalidArgument     a device, stream, address or size that is none
//   kResourceExhausted   there is not as much memory
//   kDeadlineExceeded    a wait ended first; the work goes on
//   kUnavailable         the device is lost (or there is no driver)
//   kInternal            work failed on the device: an illegal address, a trap
// The last two are final for a device: each later call that names the device,
// or a stream or event of it, fails with the same code and the first cause. The
// process goes on, and so do the other devices. Work fails late, so the call
// that reports it first is seldom the one that caused it.
//
// What may block: Synchronize, up to its deadline; CopyAsync where an end is
// pageable memory; Allocate, Free, AllocatePinned and FreePinned, as long as
// the driver takes.
//
// Lifetime: streams, events and memory must not be used after their Runtime.

#ifndef WEFT_DEVICE_RUNTIME_H_
#define WEFT_DEVICE_RUNTIME_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "weft/device/device.h"

namespace weft::device {

class Runtime;

struct Properties {
  Device device;
  std::string name;          // "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;  // in all
  int compute_major = 0;     // of CUDA: 9 and 0 for an H100; else 0
  int compute_minor = 0;
  int multiprocessors = 0;
  std::string pci_bus_id;  // which card of the host; "" if simulated
};

struct MemoryUse {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// Where an address lies. Pageable memory is what malloc gives: a device can
// reach it only through a copy that the host makes first.
struct Location {
  enum class Place : uint8_t { kPageable, kPinned, kDevice };

  Place place = Place::kPageable;
  Device device;  // of kDevice
};

// A queue of work of one device; a name, to be copied. A stream lives as long
// as its Runtime: memory is cached by stream, so one that ended would leave
// memory that nothing can order. Make few and use them again.
class Stream {
 public:
  Stream() = default;  // names none

  bool is_valid() const { return runtime_ != nullptr; }
  // REQUIRES: is_valid().
  Runtime& runtime() const { return *runtime_; }
  Device device() const { return device_; }
  int id() const { return id_; }  // unique in its Runtime; counts from 0
  void* native() const { return native_; }  // cudaStream_t; null if simulated

  friend bool operator==(Stream a, Stream b) {
    return a.runtime_ == b.runtime_ && a.id_ == b.id_;
  }
  friend bool operator!=(Stream a, Stream b) { return !(a == b); }

 private:
  friend class Runtime;
  Stream(Runtime* runtime, Device device, int id, void* native)
      : runtime_(runtime), native_(native), device_(device), id_(id) {}

  Runtime* runtime_ = nullptr;
  void* native_ = nullptr;
  Device device_;
  int id_ = -1;
};

// "stream 2 of cuda:0".
std::string Name(Stream stream);

// A point in a stream that other streams, and the host, can wait for. It may be
// recorded again; a wait is for the record that was last when it was asked for.
// It may be destroyed while work waits for it.
//
// Thread-safety: one thread at a time records or moves it; all may wait.
class Event {
 public:
  Event() = default;  // names none
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  bool is_valid() const { return runtime_ != nullptr; }
  Device device() const { return device_; }

 private:
  friend class Runtime;
  Event(Runtime* runtime, Device device, uint64_t handle)
      : runtime_(runtime), handle_(handle), device_(device) {}

  Runtime* runtime_ = nullptr;
  uint64_t handle_ = 0;
  Device device_;
};

// What a simulated kernel sees of memory: see EnqueueHost.
class DeviceMemory {
 public:
  // Where the kernel finds the `elements` elements of T at `address`, which is
  // device or pinned memory. kInternal, as CUDA's illegal address, if that is
  // not all in one allocation that is alive and that this device can reach.
  template <typename T>
  absl::StatusOr<T*> At(T* address, int64_t elements) const {
    constexpr auto kItem = static_cast<int64_t>(sizeof(T));
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / kItem;
    // More than that, or less than none, is in no allocation.
    const int64_t bytes = elements > kMost
                              ? std::numeric_limits<int64_t>::max()
                              : std::max(elements, int64_t{-1}) * kItem;
    const absl::StatusOr<void*> found = Reach(address, bytes);
    if (!found.ok()) return found.status();
    return static_cast<T*>(*found);
  }

 protected:
  ~DeviceMemory() = default;

 private:
  virtual absl::StatusOr<void*> Reach(const void* address,
                                      int64_t bytes) const = 0;
};

// Thread-safety: thread-safe. What two threads put on one stream is in the
// order in which they came.
class Runtime {
 public:
  // It must not call the Runtime. An error that it returns is the device's.
  using HostKernel = absl::AnyInvocable<absl::Status(const DeviceMemory&)>;
  // Gets Stream::native(), and puts its work there.
  using NativeLaunch = absl::FunctionRef<absl::Status(void* stream)>;

  enum class Priority : uint8_t { kNormal, kHigh };

  virtual ~Runtime() = default;

  virtual Device::Kind kind() const = 0;
  // Devices have the indices 0 to device_count() - 1.
  virtual int device_count() const = 0;
  virtual absl::StatusOr<Properties> GetProperties(Device device) = 0;
  virtual absl::StatusOr<MemoryUse> GetMemoryUse(Device device) = 0;
  // OK, or why the device fails. Asks nothing of it: it says what calls met.
  virtual absl::Status Health(Device device) = 0;

  // Device memory, aligned to 256 bytes, not initialised. The host must not
  // touch it. Slow: see CachingAllocator. kInvalidArgument if bytes <= 0.
  virtual absl::StatusOr<void*> Allocate(Device device, int64_t bytes) = 0;
  // The work that uses it must have ended: wait for that first. CUDA itself
  // would wait here, without a deadline; a simulated device lets work that
  // comes too late fail. kInvalidArgument if Allocate did not give `memory`.
  virtual absl::Status Free(Device device, void* memory) = 0;

  // Host memory that stays in place, so that devices read and write it by
  // themselves. As above, but the host uses it too.
  virtual absl::StatusOr<void*> AllocatePinned(int64_t bytes) = 0;
  virtual absl::Status FreePinned(void* memory) = 0;

  // An address that no Runtime knows is pageable.
  virtual absl::StatusOr<Location> Locate(const void* address) = 0;

  virtual absl::StatusOr<Stream> CreateStream(Device device,
                                              Priority priority) = 0;
  absl::StatusOr<Stream> CreateStream(Device device) {
    return CreateStream(device, Priority::kNormal);
  }
  // One stream for each device, made when first asked for. No other is ordered
  // with it but by events.
  virtual absl::StatusOr<Stream> DefaultStream(Device device) = 0;
  // Cheap: events are kept and used again.
  virtual absl::StatusOr<Event> CreateEvent(Device device) = 0;

  // `event` becomes the point after all that is on `stream` now. They must be
  // of one device.
  virtual absl::Status RecordEvent(Event& event, Stream stream) = 0;
  // What is put on `stream` from now on runs after `event`, which may be of
  // another device. No effect if it was never recorded.
  virtual absl::Status StreamWaitEvent(Stream stream, const Event& event) = 0;

  // Whether all that is on it now has run; so for an event never recorded.
  virtual absl::StatusOr<bool> Query(Stream stream) = 0;
  virtual absl::StatusOr<bool> Query(const Event& event) = 0;

  // Blocks until all that is on it now has run: of a device, all that is on the
  // streams of this Runtime. What ran is visible to this thread.
  virtual absl::Status Synchronize(Stream stream, absl::Duration timeout) = 0;
  virtual absl::Status Synchronize(const Event& event,
                                   absl::Duration timeout) = 0;
  virtual absl::Status Synchronize(Device device, absl::Duration timeout) = 0;

  // Copies on `stream`, in the direction that the addresses have; one at least
  // is device memory. Source and destination must not overlap.
  //
  // Device and pinned memory: returns at once, and reads and writes later. Both
  // ends must stay as they are until then.
  //
  // From pageable memory: `source` is read before this returns, but the bytes
  // may come to the device after that. Work on ANOTHER stream needs an event,
  // as much as for any copy. To pageable memory: returns when the bytes are
  // there. Both may wait for what is on the stream before, at most for the
  // Runtime's `pageable_copy_timeout`: kDeadlineExceeded, and nothing copied.
  virtual absl::Status CopyAsync(void* destination, const void* source,
                                 int64_t bytes, Stream stream) = 0;

  // Sets each byte of device memory on `stream`.
  virtual absl::Status MemsetAsync(void* destination, uint8_t value,
                                   int64_t bytes, Stream stream) = 0;

  // The two ways to run a kernel: Launch (device/launch.h) picks the one that
  // the stream has; the other is kFailedPrecondition. `name` is for messages.
  virtual absl::Status EnqueueHost(Stream stream, absl::string_view name,
                                   HostKernel kernel) = 0;
  virtual absl::Status LaunchNative(Stream stream, absl::string_view name,
                                    NativeLaunch launch) = 0;

 protected:
  Stream MakeStream(Device device, int id, void* native) {
    return Stream(this, device, id, native);
  }
  Event MakeEvent(Device device, uint64_t handle) {
    return Event(this, device, handle);
  }
  static uint64_t HandleOf(const Event& event) { return event.handle_; }
  // Whether it is an event of this Runtime.
  bool Owns(const Event& event) const { return event.runtime_ == this; }
  bool Owns(Stream stream) const { return stream.runtime_ == this; }

 private:
  friend class Event;
  virtual void ReleaseEvent(Device device, uint64_t handle) = 0;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_RUNTIME_H_
