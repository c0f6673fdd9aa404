// Random numbers: element i of a tensor is drawn at a position of its own, so
// that it is the number that the CPU draws there.
//
// Executor: see copy.h. Operands: what is drawn, contiguous. Numbers: two of
// the distribution, then the bits of seed, stream and position.

#ifndef WEFT_TENSOR_CUDA_RANDOM_H_
#define WEFT_TENSOR_CUDA_RANDOM_H_

#include "weft/tensor/cuda/element.h"
#include "weft/tensor/cuda/philox.h"
#include "weft/tensor/cuda/rows.h"

namespace weft::internal::cuda {

struct DrawsAt {
  PhiloxStream stream;
  uint64_t position;
  WEFT_HOST_DEVICE double Double(int64_t i) const {
    return stream.DoubleAt(position + 2 * static_cast<uint64_t>(i));
  }
  WEFT_HOST_DEVICE double Normal(int64_t i) const {
    return stream.NormalAt(position + 4 * static_cast<uint64_t>(i));
  }
};

inline DrawsAt DrawsOf(const Call& call) {
  const auto bits = [&](int i) {
    return __builtin_bit_cast(uint64_t, call.numbers[i]);
  };
  return {{bits(2), bits(3)}, bits(4)};
}

template <typename T>
struct UniformBody {
  DrawsAt draws;
  double low;
  double high;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const T value = static_cast<T>(low + (high - low) * draws.Double(i));
    // Rounding may reach the open end.
    out[i] = value >= static_cast<T>(high) ? static_cast<T>(low) : value;
  }
};

template <typename T>
struct NormalBody {
  DrawsAt draws;
  double mean;
  double deviation;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    out[i] = static_cast<T>(mean + deviation * draws.Normal(i));
  }
};

struct BernoulliBody {
  DrawsAt draws;
  double probability;
  bool* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    out[i] = draws.Double(i) < probability;
  }
};

// Body is UniformBody or NormalBody.
template <template <typename> typename Body>
struct Draw {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckLines(call, 1)) return lack;
    const Operand& y = call.operands[0];
    return VisitReal(y.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEach(y.numel, Body<T>{DrawsOf(call), call.numbers[0],
                                        call.numbers[1], y.data<T>()});
      return nullptr;
    });
  }
};
using Uniform = Draw<UniformBody>;
using Normal = Draw<NormalBody>;

struct Bernoulli {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckLines(call, 1)) return lack;
    const Operand& y = call.operands[0];
    if (y.element != Element::kBool) return kNoDType;
    executor.ForEach(
        y.numel, BernoulliBody{DrawsOf(call), call.numbers[0], y.data<bool>()});
    return nullptr;
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_RANDOM_H_
