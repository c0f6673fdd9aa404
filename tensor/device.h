// Device: where the elements of a tensor lie.

#ifndef WEFT_TENSOR_DEVICE_H_
#define WEFT_TENSOR_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };

  Kind kind = Kind::kCpu;
  int index = 0;

  static constexpr Device Cpu() { return {}; }
  static constexpr Device Cuda(int index) { return {Kind::kCuda, index}; }

  bool is_cpu() const { return kind == Kind::kCpu; }

  friend bool operator==(Device a, Device b) {
    return a.kind == b.kind && a.index == b.index;
  }
  friend bool operator!=(Device a, Device b) { return !(a == b); }
};

// "cpu" or "cuda:0".
inline std::string Name(Device device) {
  return device.is_cpu() ? "cpu" : absl::StrCat("cuda:", device.index);
}

}  // namespace weft

#endif  // WEFT_TENSOR_DEVICE_H_
