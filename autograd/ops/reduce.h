// Reductions of variables over dimensions.
//
// As those of tensors (weft/tensor/ops/reduce.h): empty `dims` means all.

#ifndef WEFT_AUTOGRAD_OPS_REDUCE_H_
#define WEFT_AUTOGRAD_OPS_REDUCE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/ops/reduce.h"

namespace weft {

Variable Sum(const Variable& x, absl::Span<const int64_t> dims = {},
             bool keep_dims = false);
Variable Mean(const Variable& x, absl::Span<const int64_t> dims = {},
              bool keep_dims = false);

// The gradient goes to the largest (smallest); equals share it equally.
Variable Max(const Variable& x, absl::Span<const int64_t> dims = {},
             bool keep_dims = false);
Variable Min(const Variable& x, absl::Span<const int64_t> dims = {},
             bool keep_dims = false);

Variable Var(const Variable& x, absl::Span<const int64_t> dims = {},
             int64_t correction = 1, bool keep_dims = false);
// Gradient 0 where the result is 0.
Variable Std(const Variable& x, absl::Span<const int64_t> dims = {},
             int64_t correction = 1, bool keep_dims = false);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_REDUCE_H_
