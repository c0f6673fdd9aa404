// Two-dimensional convolution (cross-correlation, as in all deep learning) and
// its gradients. f32 by oneDNN, f64 by im2col and MatMul, f16 and bf16 by way
// of f32.
//
// x [n, channels, h, w], weight [filters, channels, kh, kw] ->
// [n, filters, oh, ow] with oh = (h + 2 * padding - dilation * (kh - 1) - 1) /
// stride + 1, rounded down, and ow likewise.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, options, dtypes or devices
// that do not fit.

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

// Where gradients are written: tensors of the shapes and dtype of x, weight and
// bias [filters], contiguous, whose versions are bumped; undefined: not wanted.
struct Conv2dGradients {
  Tensor x;
  Tensor weight;
  Tensor bias;
};

// From `grad` [n, filters, oh, ow] = dL/dy.
void Conv2dBackwardInto(const Conv2dGradients& out, const Tensor& grad,
                        const Tensor& x, const Tensor& weight,
                        const Conv2dOptions& options = {});

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_CONV_H_
