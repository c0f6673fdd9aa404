// ReduceCall: a reduction of the tensors of several ranks that lie on one
// device, as a kernel takes it; and what the kernel does with one element. No
// Abseil here, which nvcc would have to read. Tests run it on the CPU.

#ifndef WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_CALL_H_
#define WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_CALL_H_

#include <cstdint>
#include <type_traits>

#include "weft/collectives/reduce_functions.h"
#include "weft/tensor/cuda/element.h"

namespace weft::collectives::internal {

// The ranks of a group on one device: their addresses are arguments of a
// kernel, of which there are 4 KiB.
inline constexpr int kMostSharers = 64;

// The values of ReduceOp.
enum class KernelOp : uint8_t {
  kSum,
  kProduct,
  kMin,
  kMax,
  kAverage,
  kAnd,
  kOr,
  kXor,
};

// outputs[k][i] = the reduction of factors[r] * inputs[r][i] over all r, in
// their order. An output may be an input.
struct ReduceCall {
  const void* inputs[kMostSharers];
  double factors[kMostSharers];
  void* outputs[kMostSharers];
  int input_count;
  int output_count;
  int64_t elements;
  weft::internal::cuda::Element element;
  KernelOp op;
};

// Element `i` of it, with T its elements' type and `function` that of its op:
// as ReduceContributions (accumulate.h), to the bit.
template <typename T, typename Function>
WEFT_HOST_DEVICE void ReduceElement(const ReduceCall& call, Function function,
                                    int64_t i) {
  using weft::internal::cuda::Cast;
  using A = std::conditional_t<weft::internal::cuda::kIsHalf<T>, float, T>;
  A sum = A();
  for (int r = 0; r < call.input_count; ++r) {
    A value = Cast<A>(static_cast<const T*>(call.inputs[r])[i]);
    if constexpr (std::is_floating_point_v<A>) {
      if (call.factors[r] != 1) value = static_cast<A>(call.factors[r]) * value;
    }
    sum = r == 0 ? value : function(sum, value);
  }
  if constexpr (!std::is_same_v<A, bool>) {
    if (call.op == KernelOp::kAverage) {
      sum = static_cast<A>(sum / static_cast<A>(call.input_count));
    }
  }
  const T result = Cast<T>(sum);
  for (int k = 0; k < call.output_count; ++k) {
    static_cast<T*>(call.outputs[k])[i] = result;
  }
}

// Calls run(TypeOf<T>(), function) for the types of `call`.
template <typename Run>
void VisitReduceCall(const ReduceCall& call, const Run& run) {
  weft::internal::cuda::VisitElement(call.element, [&](auto type) {
    using T = typename decltype(type)::Type;
    using A = std::conditional_t<weft::internal::cuda::kIsHalf<T>, float, T>;
    WithFunction<A>(call.op, [&](auto function) { run(type, function); });
  });
}

}  // namespace weft::collectives::internal

#endif  // WEFT_COLLECTIVES_BACKENDS_SAME_DEVICE_REDUCE_CALL_H_
