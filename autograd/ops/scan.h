// Running sums and the largest elements of variables.

#ifndef WEFT_AUTOGRAD_OPS_SCAN_H_
#define WEFT_AUTOGRAD_OPS_SCAN_H_

#include "weft/autograd/variable.h"
#include "weft/tensor/ops/scan.h"

namespace weft {

// y[i] = x[0] + ... + x[i] along `dim`.
Variable Cumsum(const Variable& x, int64_t dim);

struct TopKVariables {
  Variable values;
  Tensor indices;  // i64
};

// As that of tensors (weft/tensor/ops/scan.h).
TopKVariables TopK(const Variable& x, int64_t k, int64_t dim,
                   bool is_largest = true);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_SCAN_H_
