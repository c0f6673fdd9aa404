// Reduction: how the elements of several ranks become one.

#ifndef WEFT_COLLECTIVES_REDUCTION_H_
#define WEFT_COLLECTIVES_REDUCTION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "weft/tensor/dtype.h"

namespace weft::collectives {

// Which operation takes which dtype (anything else is kInvalidArgument, on the
// rank that asks, before any communication):
//   kSum, kProduct     all. Integers wrap; bool: or, and.
//   kMin, kMax         all. NaN wins, whichever rank has it. bool: and, or.
//   kAverage           all but bool. The sum divided by the number of ranks;
//                      integers: rounded towards zero.
//   kAnd, kOr, kXor    integers and bool, bit by bit.
enum class ReduceOp : uint8_t {
  kSum,
  kProduct,
  kMin,
  kMax,
  kAverage,
  kAnd,
  kOr,
  kXor,
};

// "sum", "product", "min", "max", "average", "and", "or", "xor".
absl::string_view Name(ReduceOp op);

// A ReduceOp, and a factor by which each rank's own elements are multiplied
// first (PyTorch's PREMUL_SUM). The factor may differ from rank to rank. A
// factor other than 1 is for floating dtypes only.
struct Reduction {
  Reduction(ReduceOp reduce_op = ReduceOp::kSum,  // NOLINT: converts.
            double own_factor = 1)
      : op(reduce_op), factor(own_factor) {}

  ReduceOp op;
  double factor;
};

// OK if elements of `dtype` can be so reduced; else kInvalidArgument.
absl::Status CheckReduction(const Reduction& reduction, DType dtype);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_REDUCTION_H_
