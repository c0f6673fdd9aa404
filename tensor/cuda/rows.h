// Folds of rows: sums and extrema over dimensions, softmax along one,
// cross-entropy.
//
// Executor, beside what copy.h wants of it:
//   template <typename Body> void ForEachRow(int64_t rows, int64_t terms,
//                                            bool lies_across, const Body&);
//     calls body(row, team) by each thread of the Team of each row. A row has
//     `terms` elements. `lies_across`: neighbours in memory are of different
//     rows. A body writes a row by the lanes of its team only.
//   template <typename T> T* Allocate(int64_t elements); Free(void*);
//     memory for the work between the two, null if there is none.
//
// Sums of f32 are added up in f64 and rounded once. Those of f64 are chains of
// n / width terms, then a tree.

#ifndef WEFT_TENSOR_CUDA_ROWS_H_
#define WEFT_TENSOR_CUDA_ROWS_H_

#include <cmath>
#include <limits>
#include <type_traits>

#include "weft/tensor/cuda/element.h"
#include "weft/tensor/cuda/index.h"
#include "weft/tensor/cuda/team.h"
#include "weft/tensor/ops/scalar_math.h"

namespace weft::internal::cuda {

// In which sums of T are added up.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, float>, double, T>;

template <typename T>
inline constexpr T kLowest = std::numeric_limits<T>::has_infinity
                                 ? -std::numeric_limits<T>::infinity()
                                 : std::numeric_limits<T>::lowest();
template <typename T>
inline constexpr T kHighest = std::numeric_limits<T>::has_infinity
                                  ? std::numeric_limits<T>::infinity()
                                  : std::numeric_limits<T>::max();

struct SumFold {
  using Op = AddOp;
  template <typename T>
  using Total = Wide<T>;
  template <typename T>
  WEFT_HOST_DEVICE static T Start() {
    return T{0};
  }
};
struct MaxFold {
  using Op = MaximumOp;
  template <typename T>
  using Total = T;
  template <typename T>
  WEFT_HOST_DEVICE static T Start() {
    return kLowest<T>;
  }
};
struct MinFold {
  using Op = MinimumOp;
  template <typename T>
  using Total = T;
  template <typename T>
  WEFT_HOST_DEVICE static T Start() {
    return kHighest<T>;
  }
};

template <typename Fn, typename T>
struct FoldBody {
  FoldIndex index;
  const T* in;
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    using Total = typename Fn::template Total<T>;
    const typename Fn::Op op;
    const Offsets<2> at = index.results.At(row);
    Total total = Fn::template Start<Total>();
    for (int64_t j = team.lane(); j < index.terms.count; j += team.width()) {
      total = op(total, static_cast<Total>(in[at[0] + index.terms.At(j)[0]]));
    }
    total = team.Fold(total, op);
    if (team.leads()) out[at[1]] = static_cast<T>(total);
  }
};

inline int64_t Distance(int64_t stride) {
  return stride < 0 ? -stride : stride;
}

// Whether results lie closer together in x than the terms of one.
inline bool LiesAcross(const FoldIndex& index) {
  return index.results.dims > 0 && index.terms.dims > 0 &&
         Distance(index.results.strides[0][0]) <
             Distance(index.terms.strides[0][0]);
}

// visit(TypeOf<T>()) for f32, f64, i64 and u8, else kNoDType.
template <typename Visit>
const char* VisitNumber(Element element, const Visit& visit) {
  if (element == Element::kF32) return visit(TypeOf<float>());
  if (element == Element::kF64) return visit(TypeOf<double>());
  if (element == Element::kI64) return visit(TypeOf<int64_t>());
  if (element == Element::kU8) return visit(TypeOf<uint8_t>());
  return kNoDType;
}

template <typename Visit>
const char* VisitReal(Element element, const Visit& visit) {
  if (element == Element::kF32) return visit(TypeOf<float>());
  if (element == Element::kF64) return visit(TypeOf<double>());
  return kNoDType;
}

// Operands: x; the result, with a size of 1 where x is folded.
template <typename Fn, typename Executor>
const char* FoldDims(const Call& call, Executor& executor) {
  if (call.count != 2) return kNoCount;
  const Operand& x = call.operands[0];
  const Operand& y = call.operands[1];
  if (x.element != y.element || x.dims != y.dims) return kNoDType;
  return VisitNumber(x.element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    FoldIndex index;
    if (!MakeFoldIndex(x, y, &index)) return kTooManyDims;
    executor.ForEachRow(index.results.count, index.terms.count,
                        LiesAcross(index),
                        FoldBody<Fn, T>{index, x.data<T>(), y.data<T>()});
    return nullptr;
  });
}

// One row.
template <typename T>
struct SquaredNormBody {
  int64_t n;
  const T* in;
  double* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t /*row*/, const Team& team) const {
    double total = 0;
    for (int64_t j = team.lane(); j < n; j += team.width()) {
      total += static_cast<double>(in[j]) * static_cast<double>(in[j]);
    }
    total = team.Fold(total, AddOp());
    if (team.leads()) *out = total;
  }
};

// Operands: x, contiguous; the sum of the squares, f64.
template <typename Executor>
const char* SquaredNorm(const Call& call, Executor& executor) {
  if (call.count != 2) return kNoCount;
  const Operand& x = call.operands[0];
  const Operand& y = call.operands[1];
  if (y.element != Element::kF64) return kNoDType;
  if (!x.is_contiguous) return kNotContiguous;
  return VisitReal(x.element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    executor.ForEachRow(
        1, x.numel, false,
        SquaredNormBody<T>{x.numel, x.data<T>(), y.data<double>()});
    return nullptr;
  });
}

// A value and where it lies in its row.
template <typename T>
struct Found {
  T value;
  int64_t at;
};

// The first NaN, else the first of the values that beat all others.
template <typename Beats>
struct FirstBest {
  template <typename T>
  WEFT_HOST_DEVICE Found<T> operator()(Found<T> a, Found<T> b) const {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    const bool a_is_nan = a.value != a.value;
    const bool b_is_nan = b.value != b.value;
    if (a_is_nan != b_is_nan) return a_is_nan ? a : b;
    if (!a_is_nan) {
      if (Beats()(a.value, b.value)) return a;
      if (Beats()(b.value, a.value)) return b;
    }
    return a.at < b.at ? a : b;
  }
};

struct IsGreater {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a > b;
  }
};
struct IsLess {
  template <typename T>
  WEFT_HOST_DEVICE bool operator()(T a, T b) const {
    return a < b;
  }
};

template <typename Beats, typename T>
struct ArgBestBody {
  FoldIndex index;
  const T* in;
  int64_t* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const FirstBest<Beats> better;
    const Offsets<2> at = index.results.At(row);
    Found<T> best = {T{0}, -1};  // None.
    for (int64_t j = team.lane(); j < index.terms.count; j += team.width()) {
      best = better(best, Found<T>{in[at[0] + index.terms.At(j)[0]], j});
    }
    best = team.Fold(best, better);
    if (team.leads()) out[at[1]] = best.at;
  }
};

// Operands: x; the result, i64, with a size of 1 along the one dimension that
// is chosen from.
template <typename Beats, typename Executor>
const char* ArgBest(const Call& call, Executor& executor) {
  if (call.count != 2) return kNoCount;
  const Operand& x = call.operands[0];
  const Operand& y = call.operands[1];
  if (y.element != Element::kI64 || x.dims != y.dims) return kNoDType;
  return VisitNumber(x.element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    FoldIndex index;
    if (!MakeFoldIndex(x, y, &index)) return kTooManyDims;
    executor.ForEachRow(
        index.results.count, index.terms.count, LiesAcross(index),
        ArgBestBody<Beats, T>{index, x.data<T>(), y.data<int64_t>()});
    return nullptr;
  });
}

// Lines along one dimension of contiguous tensors: element j of line i is
// First(i) + j * stride.
struct Lines {
  int64_t count;
  int64_t n;
  int64_t stride;
  WEFT_HOST_DEVICE int64_t First(int64_t i) const {
    return stride == 1 ? i * n : (i / stride) * n * stride + i % stride;
  }
};

// Reads the numbers of a call: {outer, n, stride}.
inline Lines LinesOf(const Call& call) {
  const int64_t outer = static_cast<int64_t>(call.numbers[0]);
  const int64_t stride = static_cast<int64_t>(call.numbers[2]);
  return {outer * stride, static_cast<int64_t>(call.numbers[1]), stride};
}

template <typename T>
struct LineStatistics {
  T largest;
  T sum;  // of exp(x - largest)
};

template <typename T, typename Team>
WEFT_HOST_DEVICE LineStatistics<T> StatisticsOf(const T* in, const Lines& lines,
                                                const Team& team) {
  T largest = kLowest<T>;
  for (int64_t j = team.lane(); j < lines.n; j += team.width()) {
    largest = MaximumOp()(largest, in[j * lines.stride]);
  }
  largest = team.Fold(largest, MaximumOp());
  Wide<T> sum = 0;
  for (int64_t j = team.lane(); j < lines.n; j += team.width()) {
    sum += Exp(in[j * lines.stride] - largest);
  }
  return {largest, static_cast<T>(team.Fold(sum, AddOp()))};
}

template <typename T, bool kIsLog>
struct SoftmaxBody {
  Lines lines;
  const T* in;
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const T* const x = in + lines.First(row);
    T* const y = out + lines.First(row);
    const LineStatistics<T> line = StatisticsOf(x, lines, team);
    const T end = kIsLog ? std::log(line.sum) : T(1) / line.sum;
    for (int64_t j = team.lane(); j < lines.n; j += team.width()) {
      const T above = x[j * lines.stride] - line.largest;
      y[j * lines.stride] = kIsLog ? above - end : Exp(above) * end;
    }
  }
};

// From grad and the result y.
template <typename T, bool kIsLog>
struct SoftmaxBackwardBody {
  Lines lines;
  const T* grad;
  const T* result;
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const int64_t first = lines.First(row);
    Wide<T> total = 0;
    for (int64_t j = team.lane(); j < lines.n; j += team.width()) {
      const int64_t at = first + j * lines.stride;
      total += kIsLog ? grad[at] : grad[at] * result[at];
    }
    const T sum = static_cast<T>(team.Fold(total, AddOp()));
    for (int64_t j = team.lane(); j < lines.n; j += team.width()) {
      const int64_t at = first + j * lines.stride;
      out[at] = kIsLog ? grad[at] - Exp(result[at]) * sum
                       : result[at] * (grad[at] - sum);
    }
  }
};

// All operands of one dtype and contiguous, as Lines are.
inline const char* CheckLines(const Call& call, int count) {
  if (call.count != count) return kNoCount;
  if (!AreAll(call, call.operands[0].element)) return kNoDType;
  for (int i = 0; i < count; ++i) {
    if (!call.operands[i].is_contiguous) return kNotContiguous;
  }
  return nullptr;
}

// Operands: x, result. Numbers: see LinesOf.
template <bool kIsLog, typename Executor>
const char* Softmax(const Call& call, Executor& executor) {
  if (const char* lack = CheckLines(call, 2)) return lack;
  const Lines lines = LinesOf(call);
  return VisitReal(call.operands[0].element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    executor.ForEachRow(
        lines.count, lines.n, lines.stride > 1,
        SoftmaxBody<T, kIsLog>{lines, call.operands[0].data<T>(),
                               call.operands[1].data<T>()});
    return nullptr;
  });
}

// Operands: grad, y, result. Numbers: see LinesOf.
template <bool kIsLog, typename Executor>
const char* SoftmaxBackward(const Call& call, Executor& executor) {
  if (const char* lack = CheckLines(call, 3)) return lack;
  const Lines lines = LinesOf(call);
  return VisitReal(call.operands[0].element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    executor.ForEachRow(
        lines.count, lines.n, lines.stride > 1,
        SoftmaxBackwardBody<T, kIsLog>{lines, call.operands[0].data<T>(),
                                       call.operands[1].data<T>(),
                                       call.operands[2].data<T>()});
    return nullptr;
  });
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_ROWS_H_
