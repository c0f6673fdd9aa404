// DeviceScope, StreamScope: the current device and stream of a thread.
//
//   device::StreamScope scope(copies);      // of cuda:1
//   device::CurrentDevice()                 // cuda:1
//   device::CurrentStream(runtime, device)  // copies
//
// A thread-local, against the rule: a model's operations have no argument for
// it, as PyTorch's have none. It carries nothing to other threads: what hands
// work over (an executor, a backward pass) hands the stream over by name.

#ifndef WEFT_DEVICE_CURRENT_H_
#define WEFT_DEVICE_CURRENT_H_

#include "absl/status/statusor.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"

namespace weft::device {

namespace internal {

// The scopes of a thread are a list, innermost first, on its stack.
class Scope {
 protected:
  Scope(Device device, Stream stream);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  friend struct ScopeAccess;
  const Device device_;
  const Stream stream_;  // names none in a DeviceScope
  Scope* const outer_;
};

}  // namespace internal

// Until its end `device` is current on this thread.
// Thread-safety: lives on the thread that made it, and scopes end in the
// reverse order: a local variable.
class DeviceScope : internal::Scope {
 public:
  explicit DeviceScope(Device device) : Scope(device, Stream()) {}
};

// Until its end `stream` is current for its device on this thread, and its
// device is the current one. REQUIRES: stream.is_valid().
// Thread-safety: as DeviceScope.
class StreamScope : internal::Scope {
 public:
  explicit StreamScope(Stream stream);
};

// The device of the innermost scope of this thread; the CPU where there is
// none.
Device CurrentDevice();

// The stream of the innermost StreamScope of this thread for `device` and
// `runtime`; without one the default stream, with its errors.
absl::StatusOr<Stream> CurrentStream(Runtime& runtime, Device device);

}  // namespace weft::device

#endif  // WEFT_DEVICE_CURRENT_H_
