// Cross-entropy of rows of logits with their classes, and its gradient.
//
// Executor: see rows.h. A target that is no class makes the device fail.

#ifndef WEFT_TENSOR_CUDA_CROSS_ENTROPY_H_
#define WEFT_TENSOR_CUDA_CROSS_ENTROPY_H_

#include "weft/tensor/cuda/rows.h"

namespace weft::internal::cuda {

// The values of Reduction of tensor/ops/loss.h.
enum class LossReduction { kNone, kMean, kSum };

// The numbers of a call: {reduction, label_smoothing, whether a target is
// ignored, which}.
struct CrossEntropyNumbers {
  LossReduction reduction;
  double smoothing;
  bool has_ignored;
  int64_t ignored;

  WEFT_HOST_DEVICE bool IsIgnored(int64_t label) const {
    return has_ignored && label == ignored;
  }
};

inline CrossEntropyNumbers CrossEntropyNumbersOf(const Call& call) {
  return {static_cast<LossReduction>(static_cast<int>(call.numbers[0])),
          call.numbers[1], call.numbers[2] != 0,
          static_cast<int64_t>(call.numbers[3])};
}

WEFT_HOST_DEVICE inline void CheckClass(int64_t label, int64_t classes) {
  if (label < 0 || label >= classes) WEFT_TRAP();
}

template <typename T>
struct CrossEntropyBody {
  CrossEntropyNumbers numbers;
  int64_t classes;
  const T* logits;
  const int64_t* targets;
  T* log_probs;
  T* losses;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const int64_t label = targets[row];
    const bool is_ignored = numbers.IsIgnored(label);
    if (!is_ignored) CheckClass(label, classes);
    const T* const x = logits + row * classes;
    const LineStatistics<T> line = StatisticsOf(x, Lines{1, classes, 1}, team);
    const T shift = std::log(line.sum);
    Wide<T> sum = 0;
    for (int64_t j = team.lane(); j < classes; j += team.width()) {
      const T y = (x[j] - line.largest) - shift;
      log_probs[row * classes + j] = y;
      sum += y;
    }
    const T mean = static_cast<T>(team.Fold(sum, AddOp())) / T(classes);
    if (!team.leads()) return;
    if (is_ignored) {
      losses[row] = T(0);
      return;
    }
    const T loss = -((x[label] - line.largest) - shift);
    losses[row] = numbers.smoothing == 0
                      ? loss
                      : static_cast<T>(1 - numbers.smoothing) * loss -
                            static_cast<T>(numbers.smoothing) * mean;
  }
};

// How many targets count.
template <typename Team>
WEFT_HOST_DEVICE int64_t CountKept(const CrossEntropyNumbers& numbers,
                                   const int64_t* targets, int64_t rows,
                                   const Team& team) {
  int64_t kept = 0;
  for (int64_t i = team.lane(); i < rows; i += team.width()) {
    kept += numbers.IsIgnored(targets[i]) ? 0 : 1;
  }
  return team.Fold(kept, AddOp());
}

// One row: all losses.
template <typename T>
struct ReduceLossesBody {
  CrossEntropyNumbers numbers;
  int64_t rows;
  const int64_t* targets;
  const T* losses;
  T* loss;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t /*row*/, const Team& team) const {
    Wide<T> total = 0;
    for (int64_t i = team.lane(); i < rows; i += team.width()) {
      total += losses[i];
    }
    const T sum = static_cast<T>(team.Fold(total, AddOp()));
    const int64_t kept = CountKept(numbers, targets, rows, team);
    if (!team.leads()) return;
    *loss = numbers.reduction == LossReduction::kMean
                ? sum / static_cast<T>(kept)
                : sum;
  }
};

// Operands: logits [..., classes], targets i64 [...], log_probs, losses, loss;
// of no reduction the last two are one. All contiguous.
template <typename Executor>
const char* CrossEntropy(const Call& call, Executor& executor) {
  if (call.count != 5) return kNoCount;
  const Operand* const x = call.operands;
  for (int i = 0; i < 5; ++i) {
    if (!x[i].is_contiguous) return kNotContiguous;
    const Element wanted = i == 1 ? Element::kI64 : x[0].element;
    if (x[i].element != wanted) return kNoDType;
  }
  const CrossEntropyNumbers numbers = CrossEntropyNumbersOf(call);
  const int64_t rows = x[1].numel;
  const int64_t classes = x[0].sizes[x[0].dims - 1];
  return VisitReal(x[0].element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    executor.ForEachRow(rows, classes, false,
                        CrossEntropyBody<T>{numbers, classes, x[0].data<T>(),
                                            x[1].data<int64_t>(),
                                            x[2].data<T>(), x[3].data<T>()});
    if (numbers.reduction == LossReduction::kNone) return nullptr;
    executor.ForEachRow(1, rows, false,
                        ReduceLossesBody<T>{numbers, rows, x[1].data<int64_t>(),
                                            x[3].data<T>(), x[4].data<T>()});
    return nullptr;
  });
}

struct CountKeptBody {
  CrossEntropyNumbers numbers;
  int64_t rows;
  const int64_t* targets;
  int64_t* kept;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t /*row*/, const Team& team) const {
    const int64_t count = CountKept(numbers, targets, rows, team);
    if (team.leads()) *kept = count;
  }
};

template <typename T>
struct CrossEntropyBackwardBody {
  CrossEntropyNumbers numbers;
  int64_t rows;
  int64_t classes;
  StridedIndex<1> each;  // of the losses in grad
  const T* grad;
  const T* log_probs;
  const int64_t* targets;
  const int64_t* kept;  // null: all rows
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const int64_t label = targets[row];
    const bool is_ignored = numbers.IsIgnored(label);
    if (!is_ignored) CheckClass(label, classes);
    const double count = static_cast<double>(kept == nullptr ? rows : *kept);
    const double share =
        numbers.reduction == LossReduction::kMean ? 1 / count : 1.0;
    const T scale = grad[each.At(row)[0]] * static_cast<T>(share);
    const T spread =
        static_cast<T>(numbers.smoothing / static_cast<double>(classes));
    const T wanted = static_cast<T>(1 - numbers.smoothing);
    for (int64_t j = team.lane(); j < classes; j += team.width()) {
      const int64_t at = row * classes + j;
      const T probability = Exp(log_probs[at]);
      const T less =
          j == label ? (probability - wanted) - spread : probability - spread;
      out[at] = is_ignored ? T(0) : less * scale;
    }
  }
};

// Operands: grad [...] or [], log_probs [..., classes], targets i64 [...],
// result; all but grad contiguous.
template <typename Executor>
const char* CrossEntropyBackward(const Call& call, Executor& executor) {
  if (call.count != 4) return kNoCount;
  const Operand* const x = call.operands;
  for (int i = 0; i < 4; ++i) {
    if (i > 0 && !x[i].is_contiguous) return kNotContiguous;
    const Element wanted = i == 2 ? Element::kI64 : x[0].element;
    if (x[i].element != wanted) return kNoDType;
  }
  const CrossEntropyNumbers numbers = CrossEntropyNumbersOf(call);
  const int64_t rows = x[2].numel;
  const int64_t classes = x[1].sizes[x[1].dims - 1];
  StridedIndex<1> each;
  if (!MakeIndex<1>(x[2].dims, x[2].sizes, {LayoutOf(x[0])}, &each)) {
    return kTooManyDims;
  }
  return VisitReal(x[0].element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    int64_t* kept = nullptr;
    if (numbers.has_ignored && numbers.reduction == LossReduction::kMean) {
      kept = executor.template Allocate<int64_t>(1);
      if (kept == nullptr) return kNoMemory;
      executor.ForEachRow(
          1, rows, false,
          CountKeptBody{numbers, rows, x[2].data<int64_t>(), kept});
    }
    executor.ForEachRow(
        rows, classes, false,
        CrossEntropyBackwardBody<T>{
            numbers, rows, classes, each, x[0].data<T>(), x[1].data<T>(),
            x[2].data<int64_t>(), kept, x[3].data<T>()});
    if (kept != nullptr) executor.Free(kept);
    return nullptr;
  });
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_CROSS_ENTROPY_H_
