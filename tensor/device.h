// Device: where the elements of a tensor lie: on the CPU, or on a device of a
// device::Context.
//
//   Device cpu;                          // the CPU
//   Device gpu(*devices, 0);             // the first device of `devices`
//   Tensor y = x.To(gpu);

#ifndef WEFT_TENSOR_DEVICE_H_
#define WEFT_TENSOR_DEVICE_H_

#include <ostream>
#include <string>

#include "weft/device/device.h"

namespace weft {

namespace device {
class Context;
}  // namespace device

// Thread-safety: a value. It names its Context and does not keep it: tensors
// do.
class Device {
 public:
  using Kind = device::Device::Kind;

  constexpr Device() = default;  // the CPU
  // Throws Error with INVALID_ARGUMENT if `context` has no device `index`.
  Device(device::Context& context, int index);

  static constexpr Device Cpu() { return {}; }

  bool is_cpu() const { return context_ == nullptr; }
  Kind kind() const { return id_.kind; }
  int index() const { return id_.index; }
  // "cuda:0" without its context, as the Runtime knows it.
  device::Device id() const { return id_; }
  // Null for the CPU.
  device::Context* context() const { return context_; }

  // Two contexts have no device in common, though both may call theirs
  // "simulated:0".
  friend bool operator==(Device a, Device b) {
    return a.context_ == b.context_ && a.id_ == b.id_;
  }
  friend bool operator!=(Device a, Device b) { return !(a == b); }

 private:
  device::Context* context_ = nullptr;
  device::Device id_;
};

// "cpu", "cuda:0" or "simulated:0".
inline std::string Name(Device device) { return Name(device.id()); }

inline std::ostream& operator<<(std::ostream& out, Device device) {
  return out << Name(device);
}

}  // namespace weft

#endif  // WEFT_TENSOR_DEVICE_H_
