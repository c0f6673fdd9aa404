// Update rules of optimizers over dense gradients: sgd, adam, adamw.
//
// They compute what optimizer/rules does, step by step, so that the bits are
// the same. Their numbers are those that optimizer/kernel_numbers.h makes; the
// operands are the weights, the slots in the rule's order, the gradient, all
// contiguous, of one size and dtype: f32 or f64.
//
// Executor: see copy.h.

#ifndef WEFT_TENSOR_CUDA_UPDATE_H_
#define WEFT_TENSOR_CUDA_UPDATE_H_

#include <cmath>
#include <cstdint>

#include "weft/tensor/cuda/element.h"

namespace weft::internal::cuda {

// g = gradient + decay w; w -= lr g.
template <typename T>
struct SgdBody {
  T* weights;
  const T* gradient;
  T lr;
  T decay;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    weights[i] -= lr * (gradient[i] + decay * weights[i]);
  }
};

// g = gradient + decay w; m = kept m + taken g; w -= lr (ahead g + speed m).
template <typename T>
struct MomentumBody {
  T* weights;
  T* m;
  const T* gradient;
  T lr;
  T decay;
  T kept;
  T taken;
  T ahead;
  T speed;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const T g = gradient[i] + decay * weights[i];
    m[i] = kept * m[i] + taken * g;
    weights[i] -= lr * (ahead * g + speed * m[i]);
  }
};

// Source: as optimizer/rules/adam.cc.
template <typename T>
struct AdamBody {
  T* weights;
  T* m;
  T* v;
  T* v_max;  // null without amsgrad
  const T* gradient;
  T size;
  T root;
  T beta1;
  T beta2;
  T rest1;
  T rest2;
  T epsilon;
  T decay;
  T keep;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const T g = gradient[i] + decay * weights[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    T square = v[i];
    if (v_max != nullptr) {
      square = v_max[i] < square ? square : v_max[i];
      v_max[i] = square;
    }
    const T scale = std::sqrt(square) / root + epsilon;
    weights[i] = keep * weights[i] - size * (m[i] / scale);
  }
};

// Null if the operands are as above.
inline const char* CheckUpdate(const Call& call) {
  const Operand& first = call.operands[0];
  if (!AreAll(call, first.element)) return kNoDType;
  for (int i = 0; i < call.count; ++i) {
    if (!call.operands[i].is_contiguous) return kNotContiguous;
    if (call.operands[i].numel != first.numel) {
      return "its kernel takes weights, slots and gradient of one size";
    }
  }
  return nullptr;
}

// visit(TypeOf<T>()) for f32 and f64, else kNoDType.
template <typename Visit>
const char* VisitWeights(const Call& call, const Visit& visit) {
  if (const char* lack = CheckUpdate(call)) return lack;
  const Element element = call.operands[0].element;
  if (element == Element::kF32) return visit(TypeOf<float>());
  if (element == Element::kF64) return visit(TypeOf<double>());
  return kNoDType;
}

// Numbers: lr, decay, kept, taken, ahead, speed.
template <typename Executor>
const char* Sgd(const Call& call, Executor& executor) {
  if (call.count != 2 && call.count != 3) return kNoCount;
  return VisitWeights(call, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    const Operand* const x = call.operands;
    const double* const n = call.numbers;
    const auto as = [](double number) { return static_cast<T>(number); };
    if (call.count == 2) {
      executor.ForEach(x[0].numel, SgdBody<T>{x[0].data<T>(), x[1].data<T>(),
                                              as(n[0]), as(n[1])});
      return nullptr;
    }
    executor.ForEach(x[0].numel,
                     MomentumBody<T>{x[0].data<T>(), x[1].data<T>(),
                                     x[2].data<T>(), as(n[0]), as(n[1]),
                                     as(n[2]), as(n[3]), as(n[4]), as(n[5])});
    return nullptr;
  });
}

// Numbers: step size, root of the correction, beta1, beta2, epsilon, and the
// decay that enters the gradient (adam), or what is kept of the weights
// (adamw).
template <bool kIsDecoupled, typename Executor>
const char* Adam(const Call& call, Executor& executor) {
  if (call.count != 4 && call.count != 5) return kNoCount;
  return VisitWeights(call, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    const Operand* const x = call.operands;
    const double* const n = call.numbers;
    const auto as = [](double number) { return static_cast<T>(number); };
    const bool has_max = call.count == 5;
    executor.ForEach(
        x[0].numel,
        AdamBody<T>{x[0].data<T>(), x[1].data<T>(), x[2].data<T>(),
                    has_max ? x[3].data<T>() : nullptr,
                    x[call.count - 1].data<T>(), as(n[0]), as(n[1]), as(n[2]),
                    as(n[3]), as(1.0 - n[2]), as(1.0 - n[3]), as(n[4]),
                    kIsDecoupled ? T(0) : as(n[5]),
                    kIsDecoupled ? as(n[5]) : T(1)});
    return nullptr;
  });
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_UPDATE_H_
