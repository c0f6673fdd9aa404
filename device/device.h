// Device: where the elements of a tensor lie.

#ifndef WEFT_DEVICE_DEVICE_H_
#define WEFT_DEVICE_DEVICE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::device {

// Thread-safety: a value.
struct Device {
  // kSimulated is a device whose memory and streams a test owns: its code runs
  // on the CPU, late, and finds what a GPU would hide. See
  // device/simulated/simulated_runtime.h.
  enum class Kind : uint8_t { kCpu, kCuda, kSimulated };

  Kind kind = Kind::kCpu;
  int index = 0;

  static constexpr Device Cpu() { return {}; }
  static constexpr Device Cuda(int index) { return {Kind::kCuda, index}; }
  static constexpr Device Simulated(int index) {
    return {Kind::kSimulated, index};
  }

  bool is_cpu() const { return kind == Kind::kCpu; }

  friend bool operator==(Device a, Device b) {
    return a.kind == b.kind && a.index == b.index;
  }
  friend bool operator!=(Device a, Device b) { return !(a == b); }
};

// "cpu", "cuda:0" or "simulated:0".
std::string Name(Device device);

// The device that `text` names: "cpu", "cuda", "cuda:N", "simulated" or
// "simulated:N", where no number means 0. kInvalidArgument for all else, with
// what is accepted. Whether there is such a device is for the Runtime to say.
absl::StatusOr<Device> ParseDevice(absl::string_view text);

std::ostream& operator<<(std::ostream& out, Device device);

}  // namespace weft::device

#endif  // WEFT_DEVICE_DEVICE_H_
