// SoftmaxRow: softmax of one row in memory, for f32 and f64.

#ifndef WEFT_TENSOR_OPS_SOFTMAX_ROW_H_
#define WEFT_TENSOR_OPS_SOFTMAX_ROW_H_

#include <cstdint>

#include "weft/tensor/ops/fold.h"
#include "weft/tensor/ops/scalar_math.h"

namespace weft::internal {

// out = softmax(x), [n]; the two may be one row. For loops that vectorise.
// REQUIRES: n > 0.
template <typename T>
WEFT_INLINE void SoftmaxRow(const T* x, T* out, int64_t n) {
  const T largest =
      FoldTerms(n, x[0], MaximumOp(), [x](int64_t i) { return x[i]; });
  for (int64_t i = 0; i < n; ++i) out[i] = Exp(x[i] - largest);
  const T share = T(1) / SumTerms<T>(n, [out](int64_t i) { return out[i]; });
  for (int64_t i = 0; i < n; ++i) out[i] *= share;
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_SOFTMAX_ROW_H_
