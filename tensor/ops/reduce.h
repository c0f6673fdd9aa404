// Reductions over dimensions.
//
// `dims` may be negative (from the end) and names each dimension once; empty
// means all. With `keep_dims` the reduced dimensions stay, with size 1. Float
// sums run in the dtype itself, over any dimensions in lanes, blocks and a
// cascade of blocks: the error of a sum of n numbers of one sign grows as log n
// (that of 2^20 is a few units in the last place).
//
// Throws weft::Error, INVALID_ARGUMENT, for a dim that is not there or named
// twice, for a dtype that does not fit, and for Max, Min, ArgMax or ArgMin of
// nothing.

#ifndef WEFT_TENSOR_OPS_REDUCE_H_
#define WEFT_TENSOR_OPS_REDUCE_H_

#include "absl/types/span.h"
#include "weft/tensor/tensor.h"

namespace weft {

// f32, f64, i64 in their dtype; f16 and bf16 in f32, rounded once; u8 and bool
// as i64. The sum of nothing is 0.
Tensor Sum(const Tensor& x, absl::Span<const int64_t> dims = {},
           bool keep_dims = false);

// Real numbers, as Sum. The mean of nothing is NaN.
Tensor Mean(const Tensor& x, absl::Span<const int64_t> dims = {},
            bool keep_dims = false);

// x - Mean(x, dims) for x of real numbers: [as x] in f64. The mean is exact to
// rounding of the distances, not of x: they are right where it is far above
// them, and exactly 0 where all elements are equal.
Tensor Centered(const Tensor& x, absl::Span<const int64_t> dims = {});

// Real numbers: the mean square distance from the mean, as sum / (count -
// correction): 1 for that of a sample, 0 for that of the population. NaN if
// count <= correction. Std is its root. Computed in f64: right to one rounding
// of f32 however far the mean is above the deviation, and exactly 0 if all
// elements are equal.
Tensor Var(const Tensor& x, absl::Span<const int64_t> dims = {},
           int64_t correction = 1, bool keep_dims = false);
Tensor Std(const Tensor& x, absl::Span<const int64_t> dims = {},
           int64_t correction = 1, bool keep_dims = false);

// Numbers; NaN if one is NaN.
Tensor Max(const Tensor& x, absl::Span<const int64_t> dims = {},
           bool keep_dims = false);
Tensor Min(const Tensor& x, absl::Span<const int64_t> dims = {},
           bool keep_dims = false);

// Numbers; i64: where along `dim` the first largest lies (the first NaN, if
// any).
Tensor ArgMax(const Tensor& x, int64_t dim, bool keep_dims = false);
// The first smallest.
Tensor ArgMin(const Tensor& x, int64_t dim, bool keep_dims = false);

// Sums `x` over what broadcasting `shape` to x's shape stretched: the gradient
// of Expand. `x` itself if the shapes are equal.
Tensor SumTo(const Tensor& x, const Shape& shape);

// The gradient of Max and Min over `dims`: `grad` [as y] where x equals y,
// shared equally among equals. `y` is the result with keep_dims.
Tensor ExtremumBackward(const Tensor& grad, const Tensor& x, const Tensor& y,
                        absl::Span<const int64_t> dims = {});

// Whether all are real numbers: no NaN and no infinity. Waits for a tensor on a
// device, as To.
bool AllFinite(const Tensor& x);

// The sum of x * x, in f64, of real numbers. Waits for a tensor on a device, as
// To.
double SquaredNorm(const Tensor& x);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_REDUCE_H_
