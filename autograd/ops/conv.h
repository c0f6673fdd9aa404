// Convolution and pooling of variables, two-dimensional.

#ifndef WEFT_AUTOGRAD_OPS_CONV_H_
#define WEFT_AUTOGRAD_OPS_CONV_H_

#include "weft/autograd/variable.h"
#include "weft/tensor/ops/conv.h"
#include "weft/tensor/ops/pool.h"

namespace weft {

// x [n, channels, h, w], weight [filters, channels, kh, kw], bias [filters] or
// undefined -> [n, filters, oh, ow].
Variable Conv2d(const Variable& x, const Variable& weight, const Variable& bias,
                const Conv2dOptions& options = {});

// x [n, channels, h, w] -> [n, channels, oh, ow].
Variable MaxPool2d(const Variable& x, const Pool2dOptions& options = {});
Variable AvgPool2d(const Variable& x, const Pool2dOptions& options = {});

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_CONV_H_
