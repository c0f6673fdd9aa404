// Sharing: device memory and events of a Runtime that other processes of this
// host open: CUDA's IPC handles, and the same of the simulated device. A
// Runtime that has it is one (Sharing::Of).
//
//   exporting process                         opening process
//   auto lent = sharing->Share(address);
//         ... lent.handle, lent.offset ...>   char* base = OpenMemory(device,
//                                                            handle);
//                                             ... base + offset ...
//   auto made = sharing->CreateSharedEvent(device);
//         ... made.handle ...>                Event e = OpenEvent(device,
//                                                                 handle);
//   RecordEvent(made.event, stream);
//         ... "recorded" ...>                 StreamWaitEvent(stream, e);
//
// What CUDA asks for, the simulated device too:
//   - a handle is of a whole allocation: memory of an allocator lies at an
//     offset in it
//   - a process says to the other that it has recorded an event: who waits
//     before finds no record, and does not wait
//   - a shared event is recorded on one stream, and by the process that made it
//   - memory is closed once the work that uses it has run
//
// A process that ends takes its memory and its work along: what waits for its
// events goes on (on CUDA nobody has tried that: docs/cuda_notes.md).
//
// Errors are those of runtime.h. kUnavailable, besides: the exporting process
// has ended, or is of another user or pid namespace.

#ifndef WEFT_DEVICE_SHARING_H_
#define WEFT_DEVICE_SHARING_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"

namespace weft::device {

// To be sent to another process as it is: it means nothing but to a Runtime of
// the same kind there.
struct IpcHandle {
  std::array<unsigned char, 64> bytes = {};

  friend bool operator==(const IpcHandle& a, const IpcHandle& b) {
    return a.bytes == b.bytes;
  }
  friend bool operator<(const IpcHandle& a, const IpcHandle& b) {
    return a.bytes < b.bytes;
  }
};

// Thread-safety: thread-safe.
class Sharing {
 public:
  struct Lent {
    IpcHandle handle;    // the same for all addresses of an allocation
    int64_t offset = 0;  // of the address, in the allocation
  };
  struct SharedEvent {
    Event event;
    IpcHandle handle;
  };

  virtual ~Sharing() = default;

  // Null: this Runtime has none.
  static Sharing* Of(Runtime& runtime) {
    return dynamic_cast<Sharing*>(&runtime);
  }

  // Of device memory that Runtime::Allocate gave. From then on CUDA keeps it
  // for allocations of the same size when it is freed: others may have it open.
  virtual absl::StatusOr<Lent> Share(const void* address) = 0;
  // Where the allocation begins for work of `device` here, which may read and
  // write it while the other process has it. Each is to be closed.
  virtual absl::StatusOr<void*> OpenMemory(Device device,
                                           const IpcHandle& handle) = 0;
  // `memory`: what OpenMemory gave. Work that uses it must have run.
  virtual absl::Status CloseMemory(void* memory) = 0;

  // Not cheap: keep it, and record it again.
  virtual absl::StatusOr<SharedEvent> CreateSharedEvent(Device device) = 0;
  // It can be waited for by streams, and asked for; not recorded.
  virtual absl::StatusOr<Event> OpenEvent(Device device,
                                          const IpcHandle& handle) = 0;
};

}  // namespace weft::device

#endif  // WEFT_DEVICE_SHARING_H_
