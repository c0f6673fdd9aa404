// Along one dimension: running sums and the largest elements.
//
// Throws weft::Error, INVALID_ARGUMENT, for a dim that is not there, a dtype
// that does not fit, and more elements wanted than there are.

#ifndef WEFT_TENSOR_OPS_SCAN_H_
#define WEFT_TENSOR_OPS_SCAN_H_

#include "weft/tensor/tensor.h"

namespace weft {

// y[i] = x[0] + ... + x[i] along `dim`. Numbers; u8 and bool as i64, whose sums
// wrap. f32 is summed in f64.
Tensor Cumsum(const Tensor& x, int64_t dim);
// dL/dx: y[i] = grad[i] + ... + grad[n - 1].
Tensor CumsumBackward(const Tensor& grad, int64_t dim);

struct TopKResult {
  Tensor values;   // As x, but k along dim.
  Tensor indices;  // i64, of the same shape: where along dim they lie.
};

// The k largest (or smallest) along `dim`, best first, equals in the order of
// x. NaN counts as the largest. Numbers. O(n log k) for each line.
TopKResult TopK(const Tensor& x, int64_t k, int64_t dim,
                bool is_largest = true);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_SCAN_H_
