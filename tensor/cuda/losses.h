// Losses of pairs of elements and of chosen classes, reduced, and their
// gradients. They compute what tensor/ops/loss.cc does.
//
// Executor: see rows.h. A target that is no class makes the device fail.

#ifndef WEFT_TENSOR_CUDA_LOSSES_H_
#define WEFT_TENSOR_CUDA_LOSSES_H_

#include <cmath>

#include "weft/tensor/cuda/cross_entropy.h"

namespace weft::internal::cuda {

// A loss: of x and the target t, and its slope by x. `p` is its parameter.
struct BceOfLogits {
  template <typename T>
  WEFT_HOST_DEVICE static T Loss(T x, T t, T /*p*/) {
    return (x < T(0) ? T(0) : x) - x * t + std::log1p(Exp(-std::fabs(x)));
  }
  template <typename T>
  WEFT_HOST_DEVICE static T Slope(T x, T t, T /*p*/) {
    return Sigmoid(x) - t;
  }
};

struct SquaredError {
  template <typename T>
  WEFT_HOST_DEVICE static T Loss(T x, T t, T /*p*/) {
    return (x - t) * (x - t);
  }
  template <typename T>
  WEFT_HOST_DEVICE static T Slope(T x, T t, T /*p*/) {
    return (x - t) + (x - t);
  }
};

struct Huber {
  template <typename T>
  WEFT_HOST_DEVICE static T Loss(T x, T t, T p) {
    const T distance = std::fabs(x - t);
    return distance <= p ? T(0.5) * distance * distance
                         : p * (distance - T(0.5) * p);
  }
  template <typename T>
  WEFT_HOST_DEVICE static T Slope(T x, T t, T p) {
    const T distance = x - t;
    return distance < -p ? -p : (distance > p ? p : distance);
  }
};

struct KlDivergence {
  template <typename T>
  WEFT_HOST_DEVICE static T Loss(T x, T t, T /*p*/) {
    return t > T(0) ? t * (std::log(t) - x) : T(0);
  }
  template <typename T>
  WEFT_HOST_DEVICE static T Slope(T /*x*/, T t, T /*p*/) {
    return t < T(0) ? T(0) : -t;
  }
};

// One row: all losses.
template <typename T>
struct SumLossesBody {
  int64_t n;
  T share;  // what the sum is multiplied by
  const T* losses;
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t /*row*/, const Team& team) const {
    Wide<T> total = 0;
    for (int64_t i = team.lane(); i < n; i += team.width()) total += losses[i];
    const T sum = static_cast<T>(team.Fold(total, AddOp()));
    if (team.leads()) *out = sum * share;
  }
};

inline LossReduction ReductionOf(const Call& call) {
  return static_cast<LossReduction>(static_cast<int>(call.numbers[0]));
}

// `losses` into `out`, which is it if they are not reduced.
template <typename T, typename Executor>
void ReduceLosses(const Call& call, const Operand& losses, const Operand& out,
                  Executor& executor) {
  const LossReduction reduction = ReductionOf(call);
  if (reduction == LossReduction::kNone) return;
  const double n = static_cast<double>(losses.numel);
  const T share =
      reduction == LossReduction::kMean ? static_cast<T>(1 / n) : T(1);
  executor.ForEachRow(
      1, losses.numel, false,
      SumLossesBody<T>{losses.numel, share, losses.data<T>(), out.data<T>()});
}

template <typename Fn, typename T>
struct PairLossBody {
  T parameter;
  const T* x;
  const T* t;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    out[i] = Fn::Loss(x[i], t[i], parameter);
  }
};

// Operands: x, targets, losses, loss; contiguous. Numbers: the reduction, the
// parameter.
template <typename Fn>
struct PairLoss {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckLines(call, 4)) return lack;
    const Operand* const x = call.operands;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEach(
          x[0].numel,
          PairLossBody<Fn, T>{static_cast<T>(call.numbers[1]), x[0].data<T>(),
                              x[1].data<T>(), x[2].data<T>()});
      ReduceLosses<T>(call, x[2], x[3], executor);
      return nullptr;
    });
  }
};

// Where the gradient of each loss lies.
template <typename T>
struct EachGrad {
  StridedIndex<1> index;
  const T* grad;
  T count;  // what it is divided by
  WEFT_HOST_DEVICE T operator()(int64_t i) const {
    return grad[index.At(i)[0]] / count;
  }
};

template <typename T>
bool MakeEachGrad(const Call& call, const Operand& grad, const Operand& losses,
                  EachGrad<T>* each) {
  each->grad = grad.data<T>();
  each->count = ReductionOf(call) == LossReduction::kMean
                    ? static_cast<T>(losses.numel)
                    : T(1);
  return MakeIndex<1>(losses.dims, losses.sizes, {LayoutOf(grad)},
                      &each->index);
}

template <typename Fn, typename T>
struct PairBackwardBody {
  EachGrad<T> each;
  T parameter;
  const T* x;
  const T* t;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    out[i] = Fn::Slope(x[i], t[i], parameter) * each(i);
  }
};

// Operands: grad, of each or one; x, targets, result, contiguous. Numbers: the
// reduction, the parameter.
template <typename Fn>
struct PairBackward {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 4) return kNoCount;
    const Operand* const x = call.operands;
    if (!AreAll(call, x[0].element)) return kNoDType;
    for (int i = 1; i < 4; ++i) {
      if (!x[i].is_contiguous) return kNotContiguous;
    }
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      EachGrad<T> each;
      if (!MakeEachGrad(call, x[0], x[1], &each)) return kTooManyDims;
      executor.ForEach(
          x[1].numel, PairBackwardBody<Fn, T>{
                          each, static_cast<T>(call.numbers[1]), x[1].data<T>(),
                          x[2].data<T>(), x[3].data<T>()});
      return nullptr;
    });
  }
};

template <typename T>
struct NllLossBody {
  int64_t classes;
  int64_t row_step;
  int64_t class_step;
  const T* log_probs;
  const int64_t* labels;
  T* losses;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t label = labels[i];
    CheckClass(label, classes);
    losses[i] = -log_probs[i * row_step + label * class_step];
  }
};

// Operands: log_probs [n, classes]; labels, losses, loss, contiguous. Numbers:
// the reduction.
struct NllLoss {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 4) return kNoCount;
    const Operand* const x = call.operands;
    if (x[2].element != x[0].element || x[3].element != x[0].element) {
      return kNoDType;
    }
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEach(
          x[1].numel,
          NllLossBody<T>{x[0].sizes[1], x[0].strides[0], x[0].strides[1],
                         x[0].data<T>(), x[1].data<int64_t>(), x[2].data<T>()});
      ReduceLosses<T>(call, x[2], x[3], executor);
      return nullptr;
    });
  }
};

template <typename T>
struct NllLossBackwardBody {
  EachGrad<T> each;
  int64_t classes;
  const int64_t* labels;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    CheckClass(labels[i], classes);
    out[i * classes + labels[i]] = -each(i);
  }
};

// Operands: grad, of each or one; labels; the result [n, classes], which is 0;
// contiguous. Numbers: the reduction.
struct NllLossBackward {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    const Operand* const x = call.operands;
    if (x[2].element != x[0].element) return kNoDType;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      EachGrad<T> each;
      if (!MakeEachGrad(call, x[0], x[1], &each)) return kTooManyDims;
      executor.ForEach(x[1].numel, NllLossBackwardBody<T>{each, x[2].sizes[1],
                                                          x[1].data<int64_t>(),
                                                          x[2].data<T>()});
      return nullptr;
    });
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_LOSSES_H_
