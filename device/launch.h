// Launch: puts a kernel on a stream, whichever kind of device the stream is of.
//
// The header of an operation declares one function for all devices. Its .cc
// says what the operation is on the CPU, and a .cu how it is launched on CUDA
// (without the toolkit, BUILD takes a .cc that returns kUnimplemented):
//
//   absl::Status Add(device::Stream stream, float* out, const float* in,
//                    int64_t n) {
//     return device::Launch(
//         stream, "Add",
//         [=](const device::DeviceMemory& memory) {
//           WEFT_ASSIGN_OR_RETURN(float* o, memory.At(out, n));
//           WEFT_ASSIGN_OR_RETURN(const float* i, memory.At(in, n));
//           for (int64_t k = 0; k < n; ++k) o[k] += i[k];
//           return absl::OkStatus();
//         },
//         [=](void* cuda) { return LaunchAdd(cuda, out, in, n); });
//   }

#ifndef WEFT_DEVICE_LAUNCH_H_
#define WEFT_DEVICE_LAUNCH_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/device/runtime.h"

namespace weft::device {

// On a simulated device `host(const DeviceMemory&) -> absl::Status` runs late,
// so it must hold by value what it uses. On CUDA `native(cudaStream_t as void*)
// -> absl::Status` runs now; the device of the stream is current there, and
// what cudaGetLastError says after it is reported: it need not ask. `name` must
// be valid until this returns.
template <typename HostFn, typename NativeFn>
absl::Status Launch(Stream stream, absl::string_view name, HostFn host,
                    const NativeFn& native) {
  if (!stream.is_valid()) {
    return absl::InvalidArgumentError("Launch: the stream names none");
  }
  if (stream.device().kind == Device::Kind::kSimulated) {
    return stream.runtime().EnqueueHost(stream, name, std::move(host));
  }
  return stream.runtime().LaunchNative(stream, name, native);
}

}  // namespace weft::device

#endif  // WEFT_DEVICE_LAUNCH_H_
