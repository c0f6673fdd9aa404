// Kernels for the tests of devices: an operation's header as device/launch.h
// has it, with what runs on each kind of device behind it.

#ifndef WEFT_DEVICE_TESTING_KERNELS_H_
#define WEFT_DEVICE_TESTING_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/device/runtime.h"

namespace weft::device::testing {

// out[i] = value.
absl::Status Fill(Stream stream, float* out, float value, int64_t elements);
// out[i] += in[i].
absl::Status Add(Stream stream, float* out, const float* in, int64_t elements);
// Keeps the stream of a real device busy for that long; nothing on a simulated
// one, where no time passes.
absl::Status Spin(Stream stream, absl::Duration duration);
// Fails on the device, which is of no use to this process after it.
absl::Status Trap(Stream stream);

}  // namespace weft::device::testing

#endif  // WEFT_DEVICE_TESTING_KERNELS_H_
