// Two-dimensional convolution (cross-correlation, as in all deep learning) and
// its gradients. f32 by oneDNN, f64 by im2col and MatMul.
//
// x [n, channels, h, w], weight [filters, channels, kh, kw] ->
// [n, filters, oh, ow] with oh = (h + 2 * padding - dilation * (kh - 1) - 1) /
// stride + 1, rounded down, and ow likewise.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, options or dtypes that do
// not fit.

#ifndef WEFT_TENSOR_OPS_CONV_H_
#define WEFT_TENSOR_OPS_CONV_H_

#include <array>
#include <cstdint>

#include "weft/tensor/tensor.h"

namespace weft {

struct Conv2dOptions {
  std::array<int64_t, 2> stride = {1, 1};    // [h, w], at least 1.
  std::array<int64_t, 2> padding = {0, 0};   // Zeros on each side, at least 0.
  std::array<int64_t, 2> dilation = {1, 1};  // At least 1.
};

// `bias` [filters] or undefined.
Tensor Conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options = {});

// dL/dx [as `x_shape`] from `grad` [n, filters, oh, ow].
Tensor Conv2dBackwardInput(const Tensor& grad, const Tensor& weight,
                           const Shape& x_shape,
                           const Conv2dOptions& options = {});

// dL/dweight [as `weight_shape`]. The second overwrites `out`, contiguous and
// of grad's dtype, with it.
Tensor Conv2dBackwardWeight(const Tensor& grad, const Tensor& x,
                            const Shape& weight_shape,
                            const Conv2dOptions& options = {});
void Conv2dBackwardWeightInto(const Tensor& out, const Tensor& grad,
                              const Tensor& x,
                              const Conv2dOptions& options = {});

// dL/dbias [filters].
Tensor Conv2dBackwardBias(const Tensor& grad);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_CONV_H_
