#include "weft/device/testing/kernels.h"

#include <algorithm>

#include "weft/base/status_macros.h"
#include "weft/device/launch.h"
#include "weft/device/testing/kernels_cuda.h"

namespace weft::device::testing {

absl::Status Fill(Stream stream, float* out, float value, int64_t elements) {
  return Launch(
      stream, "Fill",
      [=](const DeviceMemory& memory) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(float* const to, memory.At(out, elements));
        std::fill(to, to + elements, value);
        return absl::OkStatus();
      },
      [=](void* native) {
        LaunchFill(native, out, value, elements);
        return absl::OkStatus();
      });
}

absl::Status Add(Stream stream, float* out, const float* in, int64_t elements) {
  return Launch(
      stream, "Add",
      [=](const DeviceMemory& memory) -> absl::Status {
        WEFT_ASSIGN_OR_RETURN(float* const to, memory.At(out, elements));
        WEFT_ASSIGN_OR_RETURN(const float* const from, memory.At(in, elements));
        for (int64_t i = 0; i < elements; ++i) to[i] += from[i];
        return absl::OkStatus();
      },
      [=](void* native) {
        LaunchAdd(native, out, in, elements);
        return absl::OkStatus();
      });
}

absl::Status Spin(Stream stream, absl::Duration duration) {
  return Launch(
      stream, "Spin", [](const DeviceMemory&) { return absl::OkStatus(); },
      [=](void* native) {
        LaunchSpin(native, absl::ToInt64Nanoseconds(duration));
        return absl::OkStatus();
      });
}

absl::Status Trap(Stream stream) {
  return Launch(
      stream, "Trap",
      [](const DeviceMemory&) { return absl::InternalError("trap"); },
      [](void* native) {
        LaunchTrap(native);
        return absl::OkStatus();
      });
}

}  // namespace weft::device::testing
