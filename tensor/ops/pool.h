// Two-dimensional pooling and its gradients. f32, f64, f16 and bf16.
//
// x [n, channels, h, w] -> [n, channels, oh, ow] with oh = (h + 2 * padding -
// kernel) / stride + 1, rounded down, and ow likewise.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, options, dtypes or devices
// that do not fit, and for planes without elements. An index outside of x's
// plane that MaxPool2dBackward is given throws too; on a device it is found
// when the work runs, and makes the device fail.

#ifndef WEFT_TENSOR_OPS_POOL_H_
#define WEFT_TENSOR_OPS_POOL_H_

#include <array>
#include <cstdint>

#include "weft/tensor/tensor.h"

namespace weft {

struct Pool2dOptions {
  std::array<int64_t, 2> kernel = {2, 2};   // [h, w], at least 1.
  std::array<int64_t, 2> stride = {0, 0};   // 0: as the kernel.
  std::array<int64_t, 2> padding = {0, 0};  // At most half the kernel.
};

struct MaxPool2dResult {
  Tensor values;   // [n, channels, oh, ow]
  Tensor indices;  // i64, as values: h * w's index of the one taken, in x.
};

// Padding is below every number. The first of equals is taken, and NaN before
// all.
MaxPool2dResult MaxPool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor MaxPool2dBackward(const Tensor& grad, const Tensor& indices,
                         const Shape& x_shape);

// Padding is 0 and counts in the mean.
Tensor AvgPool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor AvgPool2dBackward(const Tensor& grad, const Shape& x_shape,
                         const Pool2dOptions& options = {});

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_POOL_H_
