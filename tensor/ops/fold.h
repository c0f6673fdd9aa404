// Folds: many elements into one, or many rows into one row, such that the
// rounding error of a sum stays within a few units in the last place.
//
// Elements go into 32 lanes side by side (which also vectorises), lanes into
// blocks, and blocks into a cascade: each level adds up at most 32 values of
// the level below. So no chain of additions is long: the error of a sum of n
// terms grows as log n and not as n.
//
// Source: Higham, "The accuracy of floating point summation", SIAM J. Sci.
// Comput. 14(4), 1993 (pairwise summation).

#ifndef WEFT_TENSOR_OPS_FOLD_H_
#define WEFT_TENSOR_OPS_FOLD_H_

#include <algorithm>
#include <cstdint>

#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/vectorize.h"

// What runs within a WEFT_VECTORIZE loop must become part of it.
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::internal {

// Level l passes on what it holds after kCascadeStep^(l + 1) terms; the last
// level keeps all: 32^5 terms come before its chain is longer than 32.
inline constexpr int kCascadeLevels = 5;
inline constexpr int kCascadeBits = 5;

// Calls pass_on(level) for each level that is full once `count` terms are in.
template <typename PassOn>
WEFT_INLINE void ForFullLevels(int64_t count, PassOn&& pass_on) {
  for (int level = 0; level + 1 < kCascadeLevels; ++level) {
    const int64_t full = int64_t{1} << (kCascadeBits * (level + 1));
    if ((count & (full - 1)) != 0) return;
    pass_on(level);
  }
}

// How many levels `count` terms reach.
WEFT_INLINE int LevelsFor(int64_t count) {
  int levels = 1;
  while (levels < kCascadeLevels && (count >> (kCascadeBits * levels)) > 0) {
    ++levels;
  }
  return levels;
}

// The fold of lanes side by side, each half onto the other. The width is known
// when compiled, so that each step stays in registers. The loop is not
// unrolled, so that it is still a loop when loops are vectorised.
template <int kWidth, typename T, typename Op>
WEFT_INLINE T FoldLanes(const T* lanes, Op op) {
  if constexpr (kWidth == 1) {
    return lanes[0];
  } else {
    T half[kWidth / 2];
#pragma GCC unroll 1
    for (int j = 0; j < kWidth / 2; ++j) {
      half[j] = op(lanes[j], lanes[j + kWidth / 2]);
    }
    return FoldLanes<kWidth / 2>(half, op);
  }
}

// The fold of term(0) ... term(n - 1); `start` changes nothing under `op`.
template <typename T, typename Op, typename Term>
WEFT_INLINE T FoldTerms(int64_t n, T start, Op op, Term term) {
  constexpr int kLanes = 32;
  constexpr int64_t kBlock = 128 * kLanes;
  if (n < kLanes) {
    T total = start;
    for (int64_t i = 0; i < n; ++i) total = op(total, term(i));
    return total;
  }
  T levels[kCascadeLevels];
  for (T& level : levels) level = start;
  int64_t blocks = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, n);
    T lanes[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = start;
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) lanes[j] = op(lanes[j], term(i + j));
    }
    for (int64_t j = 0; i + j < end; ++j) lanes[j] = op(lanes[j], term(i + j));
    levels[0] = op(levels[0], FoldLanes<kLanes>(lanes, op));
    ForFullLevels(++blocks, [&](int level) {
      levels[level + 1] = op(levels[level + 1], levels[level]);
      levels[level] = start;
    });
  }
  T total = levels[0];
  for (int level = 1; level < kCascadeLevels; ++level) {
    total = op(total, levels[level]);
  }
  return total;
}

// The sum of term(0) ... term(n - 1).
template <typename T, typename Term>
WEFT_INLINE T SumTerms(int64_t n, Term term) {
  return FoldTerms<T>(n, T{0}, AddOp(), term);
}

// `rows` rows of `columns` elements.
struct RowsLayout {
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  int64_t column_stride;
};

// The columns that one pass over the rows folds: their levels fit the cache.
inline constexpr int64_t kFoldedColumns = 256;

// out[j] = the fold of column j, for at most kFoldedColumns columns.
template <typename T, typename Op>
WEFT_VECTORIZE static void FoldFewColumns(const T* in, RowsLayout layout,
                                          T* out, T start, Op op) {
  const int64_t n = layout.columns;
  const int64_t step = layout.row_stride;
  T levels[kCascadeLevels][kFoldedColumns];
  const int used = LevelsFor(layout.rows);
  for (int level = 0; level < used; ++level) {
    for (int64_t j = 0; j < n; ++j) levels[level][j] = start;
  }
  T* const lowest = levels[0];
  const auto pass_on = [&](int level) {
    T* const from = levels[level];
    T* const to = levels[level + 1];
    for (int64_t j = 0; j < n; ++j) {
      to[j] = op(to[j], from[j]);
      from[j] = start;
    }
  };
  int64_t i = 0;
  int64_t count = 0;
  if (layout.column_stride == 1) {
    // Four rows at a time: `lowest` is read and written a quarter as often.
    for (; i + 4 <= layout.rows; i += 4) {
      const T* const row = in + i * step;
      for (int64_t j = 0; j < n; ++j) {
        lowest[j] = op(lowest[j], op(op(row[j], row[j + step]),
                                     op(row[j + 2 * step], row[j + 3 * step])));
      }
      ForFullLevels(++count, pass_on);
    }
  }
  for (; i < layout.rows; ++i) {
    const T* const row = in + i * step;
    for (int64_t j = 0; j < n; ++j) {
      lowest[j] = op(lowest[j], row[j * layout.column_stride]);
    }
    ForFullLevels(++count, pass_on);
  }
  for (int level = 1; level < used; ++level) {
    for (int64_t j = 0; j < n; ++j) {
      lowest[j] = op(lowest[j], levels[level][j]);
    }
  }
  for (int64_t j = 0; j < n; ++j) out[j] = lowest[j];
}

// Narrow rows without gaps: several together are one wide row.
template <typename T, typename Op>
void FoldNarrowRows(const T* in, RowsLayout layout, T* out, T start, Op op) {
  const int64_t n = layout.columns;
  int64_t together = 1;
  while (2 * together * n <= kFoldedColumns) together *= 2;
  const int64_t wide_rows = layout.rows / together;
  const int64_t wide = together * n;
  T sums[kFoldedColumns];
  FoldFewColumns(in, {wide_rows, wide, wide, 1}, sums, start, op);
  for (int64_t width = wide / 2; width >= n; width /= 2) {
    for (int64_t j = 0; j < width; ++j) {
      sums[j] = op(sums[j], sums[j + width]);
    }
  }
  const int64_t done = wide_rows * together;
  FoldFewColumns(in + done * n, {layout.rows - done, n, n, 1}, out, start, op);
  for (int64_t j = 0; j < n; ++j) out[j] = op(out[j], sums[j]);
}

// out[j] = the fold of column j.
template <typename T, typename Op>
void FoldRows(const T* in, RowsLayout layout, T* out, T start, Op op) {
  const int64_t n = layout.columns;
  if (layout.column_stride == 1 && layout.row_stride == n &&
      2 * n <= kFoldedColumns && layout.rows * n >= 2 * kFoldedColumns) {
    return FoldNarrowRows(in, layout, out, start, op);
  }
  for (int64_t begin = 0; begin < n; begin += kFoldedColumns) {
    RowsLayout part = layout;
    part.columns = std::min(kFoldedColumns, n - begin);
    FoldFewColumns(in + begin * layout.column_stride, part, out + begin, start,
                   op);
  }
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_FOLD_H_
