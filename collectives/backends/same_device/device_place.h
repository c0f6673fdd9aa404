// DevicePlaceOf: which device of which machine, for processes to compare.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_DEVICE_PLACE_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_DEVICE_PLACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "weft/device/device.h"
#include "weft/device/runtime.h"

namespace weft::collectives {

// Equal in two processes if they can share the memory of the device: the same
// GPU, or simulated device of the same number, of one machine, user and pid
// namespace. At most 127 letters, none of them a space. Errors of the Runtime;
// kUnavailable where /proc does not tell; kUnimplemented: its memory is of one
// process.
absl::StatusOr<std::string> DevicePlaceOf(device::Runtime& runtime,
                                          device::Device device);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_DEVICE_PLACE_H_
