// Softmax and losses of variables. Targets are tensors: they have no gradient.

#ifndef WEFT_AUTOGRAD_OPS_LOSS_H_
#define WEFT_AUTOGRAD_OPS_LOSS_H_

#include <cstdint>

#include "weft/autograd/variable.h"
#include "weft/tensor/ops/loss.h"

namespace weft {

Variable Softmax(const Variable& x, int64_t dim);
Variable LogSoftmax(const Variable& x, int64_t dim);

// log_probs [n, classes], targets i64 [n] -> [], or [n] for kNone.
Variable NllLoss(const Variable& log_probs, const Tensor& targets,
                 Reduction reduction = Reduction::kMean);

// logits [n, classes], targets i64 [n] -> [], or [n] for kNone.
Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      Reduction reduction = Reduction::kMean);

// Of one shape; targets in [0, 1]. -> [], or that shape for kNone.
Variable BceWithLogits(const Variable& logits, const Tensor& targets,
                       Reduction reduction = Reduction::kMean);
Variable MseLoss(const Variable& x, const Tensor& targets,
                 Reduction reduction = Reduction::kMean);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_LOSS_H_
