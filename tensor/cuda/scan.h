// Along one dimension: running sums, and the best elements in order.
//
// Executor: see rows.h. Sums of f32 are added up in f64.

#ifndef WEFT_TENSOR_CUDA_SCAN_H_
#define WEFT_TENSOR_CUDA_SCAN_H_

#include "weft/tensor/cuda/rows.h"

namespace weft::internal::cuda {

// The lines of two tensors along one dimension.
struct TwoLines {
  StridedIndex<2> first;  // of each line
  int64_t n;              // elements of a line of x
  int64_t x_step;
  int64_t y_step;
};

inline bool MakeTwoLines(const Operand& x, const Operand& y, int d,
                         TwoLines* lines) {
  Operand heads = x;
  Operand y_heads = y;
  heads.sizes[d] = y_heads.sizes[d] = 1;
  lines->n = x.sizes[d];
  lines->x_step = x.strides[d];
  lines->y_step = y.strides[d];
  return MakeIndex<2>(heads.dims, heads.sizes,
                      {LayoutOf(heads), LayoutOf(y_heads)}, &lines->first);
}

// Whether neighbours in memory are of different lines.
inline bool LiesAcross(const TwoLines& lines) {
  return lines.first.dims > 0 &&
         Distance(lines.first.strides[0][0]) < Distance(lines.x_step);
}

template <typename T>
struct RunningSumBody {
  TwoLines lines;
  bool is_reversed;
  const T* in;
  T* out;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const Offsets<2> at = lines.first.At(row);
    Wide<T> before = 0;
    // All threads go along: a part of the line for all of them at a time.
    for (int64_t begin = 0; begin < lines.n; begin += team.width()) {
      const int64_t j = begin + team.lane();
      const int64_t i = is_reversed ? lines.n - 1 - j : j;
      const bool is_in = j < lines.n;
      const Wide<T> term =
          is_in ? static_cast<Wide<T>>(in[at[0] + i * lines.x_step])
                : Wide<T>(0);
      const auto sums = team.Prefix(term, AddOp());
      if (is_in) {
        out[at[1] + i * lines.y_step] =
            static_cast<T>(AddOp()(before, sums.upto));
      }
      before = AddOp()(before, sums.all);
    }
  }
};

// Operands: x, result. Numbers: the dimension.
template <bool kIsReversed>
struct RunningSum {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 2) return kNoCount;
    const Operand& x = call.operands[0];
    const Operand& y = call.operands[1];
    if (x.element != y.element) return kNoDType;
    TwoLines lines;
    if (!MakeTwoLines(x, y, static_cast<int>(call.numbers[0]), &lines)) {
      return kTooManyDims;
    }
    return VisitNumber(x.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEachRow(
          lines.first.count, lines.n, LiesAcross(lines),
          RunningSumBody<T>{lines, kIsReversed, x.data<T>(), y.data<T>()});
      return nullptr;
    });
  }
};
using Cumsum = RunningSum<false>;
using CumsumBackward = RunningSum<true>;

// Which of two elements of a line comes first. NaN is larger than all numbers.
struct RankOrder {
  bool is_largest;

  template <typename T>
  WEFT_HOST_DEVICE static bool IsLarger(T a, T b) {
    const bool a_is_nan = a != a;
    const bool b_is_nan = b != b;
    if (a_is_nan || b_is_nan) return a_is_nan && !b_is_nan;
    return a > b;
  }
  template <typename T>
  WEFT_HOST_DEVICE bool IsBefore(Found<T> a, Found<T> b) const {
    if (is_largest ? IsLarger(a.value, b.value) : IsLarger(b.value, a.value)) {
      return true;
    }
    if (is_largest ? IsLarger(b.value, a.value) : IsLarger(a.value, b.value)) {
      return false;
    }
    return a.at < b.at;
  }
  // The first of the two; none where `at` is below 0.
  template <typename T>
  WEFT_HOST_DEVICE Found<T> operator()(Found<T> a, Found<T> b) const {
    if (a.at < 0) return b;
    if (b.at < 0) return a;
    return IsBefore(a, b) ? a : b;
  }
};

// One after another: the first of those that come after the last one found.
// O(k n) for a line.
template <typename T>
struct TopKBody {
  TwoLines lines;
  int64_t k;
  RankOrder order;
  const T* in;
  T* values;
  int64_t* indices;
  template <typename Team>
  WEFT_HOST_DEVICE void operator()(int64_t row, const Team& team) const {
    const Offsets<2> at = lines.first.At(row);
    Found<T> last = {T{0}, -1};
    for (int64_t rank = 0; rank < k; ++rank) {
      Found<T> best = {T{0}, -1};
      for (int64_t j = team.lane(); j < lines.n; j += team.width()) {
        const Found<T> one = {in[at[0] + j * lines.x_step], j};
        if (last.at < 0 || order.IsBefore(last, one)) best = order(best, one);
      }
      last = team.Fold(best, order);
      if (team.leads()) {
        values[at[1] + rank * lines.y_step] = last.value;
        indices[at[1] + rank * lines.y_step] = last.at;
      }
    }
  }
};

// Operands: x; values and indices, of one shape and contiguous. Numbers: the
// dimension, whether the largest are wanted.
struct TopK {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    const Operand& x = call.operands[0];
    const Operand& values = call.operands[1];
    const Operand& indices = call.operands[2];
    if (!values.is_contiguous || !indices.is_contiguous) return kNotContiguous;
    if (x.element != values.element) return kNoDType;
    const int d = static_cast<int>(call.numbers[0]);
    TwoLines lines;
    if (!MakeTwoLines(x, values, d, &lines)) return kTooManyDims;
    const RankOrder order = {call.numbers[1] != 0};
    return VisitNumber(x.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEachRow(
          lines.first.count, lines.n, LiesAcross(lines),
          TopKBody<T>{lines, values.sizes[d], order, x.data<T>(),
                      values.data<T>(), indices.data<int64_t>()});
      return nullptr;
    });
  }
};

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_SCAN_H_
