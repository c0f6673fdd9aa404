// Matrix products of variables.

#ifndef WEFT_AUTOGRAD_OPS_MATMUL_H_
#define WEFT_AUTOGRAD_OPS_MATMUL_H_

#include "weft/autograd/variable.h"
#include "weft/tensor/ops/matmul.h"

namespace weft {

// [..., m, k] x [..., k, n] -> [..., m, n]; leading dimensions broadcast.
Variable MatMul(const Variable& a, const Variable& b);

// x [..., in], weight [out, in], bias [out] or undefined -> [..., out]. Where a
// GradientSink names a destination, weight's gradient is made there.
Variable Linear(const Variable& x, const Variable& weight,
                const Variable& bias);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_MATMUL_H_
