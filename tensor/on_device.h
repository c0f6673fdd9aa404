// OnDevice: runs an operation where its tensors lie.
//
// An operation of tensor/ops checks its arguments, makes its result on their
// device, and hands the loop over the elements to OnDevice:
//
//   Tensor Relu(const Tensor& x) {
//     const Tensor y = Tensor::Empty(x.shape(), x.dtype(), x.device());
//     internal::OnDevice(
//         "Relu",
//         [](const Tensor& x, const Tensor& y) { ...loop over data<T>()... },
//         x, y);
//     return y;
//   }
//
// CPU: the function is called at once with the tensors themselves; after
// inlining nothing is left but the test of the device.
// Simulated: the function runs late, as a task of the thread's current stream,
// with tensors of the CPU in place of those of the device.
// CUDA: the kernel that tensor/cuda has under the operation's name is launched
// on the thread's current stream.
//
// Each argument's memory is told of the stream (device::Block::UsedOn), so a
// tensor may end before its work has run.

#ifndef WEFT_TENSOR_ON_DEVICE_H_
#define WEFT_TENSOR_ON_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "weft/tensor/storage.h"
#include "weft/tensor/tensor.h"

namespace weft::internal {

// The name under which a device finds the operation, and the numbers that its
// kernel needs beside the tensors.
struct Operation {
  static constexpr size_t kMaxNumbers = 10;

  // NOLINTNEXTLINE(google-explicit-constructor): a name alone is enough.
  constexpr Operation(const char* operation_name) : name(operation_name) {}
  // REQUIRES: given.size() <= kMaxNumbers.
  constexpr Operation(const char* operation_name,
                      std::initializer_list<double> given)
      : name(operation_name) {
    size_t i = 0;
    for (const double number : given) numbers[i++] = number;
  }

  const char* name;
  std::array<double, kMaxNumbers> numbers = {};
};

// Throws INVALID_ARGUMENT that names both, if they lie on two devices.
void CheckSameDevice(const Tensor& a, const Tensor& b, const char* where);

// Sees the operations that a thread puts on devices.
class OperationObserver {
 public:
  using HostFunction = absl::AnyInvocable<void(const Tensor*)>;

  virtual ~OperationObserver() = default;
  // Returns what a simulated device is to run in place of `host`, or `host`.
  // What `operation.name` points to ends with the call.
  virtual HostFunction OnEnqueue(const Operation& operation,
                                 absl::Span<const Tensor* const> tensors,
                                 HostFunction host) = 0;

  // Sets the observer of this thread; null: none. It is borrowed. Returns the
  // one before.
  static OperationObserver* Set(OperationObserver* observer) {
    return std::exchange(current_, observer);
  }
  static OperationObserver* current() { return current_; }

 private:
  static inline thread_local OperationObserver* current_ = nullptr;
};

// The part of OnDevice for tensors that are not on the CPU: `host` gets as many
// tensors as there are in `tensors`. Throws the errors of the Runtime, and
// UNIMPLEMENTED if the device lacks the operation.
void EnqueueOnDevice(const Operation& operation,
                     absl::Span<const Tensor* const> tensors,
                     absl::AnyInvocable<void(const Tensor*)> host);

template <typename Fn, size_t... kIndices>
void CallWithTensors(Fn& function, const Tensor* tensors,
                     std::index_sequence<kIndices...> /*indices*/) {
  function(tensors[kIndices]...);
}

// `function` gets `first, rest...`, in this order. It must hold what it uses by
// value, check nothing that depends on shapes (the caller has), and use no
// other tensor. Data that makes it throw, such as an index that is too large,
// makes a device fail.
//
// The device is that of `first`; of two devices: INVALID_ARGUMENT.
template <typename Fn, typename... Rest>
void OnDevice(const Operation& operation, Fn function, const Tensor& first,
              const Rest&... rest) {
  if (first.device().is_cpu()) {
    function(first, rest...);
    return;
  }
  const Tensor* const tensors[] = {&first, &rest...};
  EnqueueOnDevice(
      operation, tensors,
      [function = std::move(function)](const Tensor* on_host) mutable {
        CallWithTensors(function, on_host,
                        std::make_index_sequence<1 + sizeof...(Rest)>());
      });
}

// Copies bytes between two places of `destination` and `source`, each on the
// CPU or a device, on the current streams of the devices. They must not
// overlap. Throws the errors of Runtime::CopyAsync.
void CopyBytes(const Storage& destination, void* to, const Storage& source,
               const void* from, int64_t bytes);

}  // namespace weft::internal

#endif  // WEFT_TENSOR_ON_DEVICE_H_
