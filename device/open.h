// OpenDevice: the device that the user of a program names.

#ifndef WEFT_DEVICE_OPEN_H_
#define WEFT_DEVICE_OPEN_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "weft/device/context.h"

namespace weft::device {

struct OpenedDevice {
  std::shared_ptr<Context> context;  // null: the CPU
  int index = 0;
};

// `text` is
//   cpu           the CPU
//   cuda:N        device N of those that this process sees
//   cuda          device `local_rank` modulo their number, so that the ranks of
//                 a host share its devices evenly
//   simulated:N   as above, of N + 1 simulated devices of 1 GiB (device/
//   simulated     simulated/runtime.h): for tests, slower than the CPU
//   auto          as cuda, or the CPU if there is no CUDA device or no toolkit
// kInvalidArgument for another text, for a device that is not there, with how
// many are, or for a negative `local_rank`. With cuda also the errors of
// CreateCudaRuntime.
absl::StatusOr<OpenedDevice> OpenDevice(absl::string_view text,
                                        int local_rank = 0);

// kInvalidArgument if `text` is none of these; asks no device.
absl::Status CheckDeviceText(absl::string_view text);

}  // namespace weft::device

#endif  // WEFT_DEVICE_OPEN_H_
