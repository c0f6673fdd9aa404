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

// logits [..., classes], targets i64 [...] -> [], or [...] for kNone.
Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      Reduction reduction = Reduction::kMean);
Variable CrossEntropy(const Variable& logits, const Tensor& targets,
                      const CrossEntropyOptions& options);

// Both have one shape; targets are in [0, 1]. -> [], or that shape for kNone.
Variable BceWithLogits(const Variable& logits, const Tensor& targets,
                       Reduction reduction = Reduction::kMean);
Variable MseLoss(const Variable& x, const Tensor& targets,
                 Reduction reduction = Reduction::kMean);

// As those of tensors (weft/tensor/ops/loss.h).
Variable HuberLoss(const Variable& x, const Tensor& targets, double delta = 1,
                   Reduction reduction = Reduction::kMean);
Variable KlDivLoss(const Variable& log_probs, const Tensor& targets,
                   Reduction reduction = Reduction::kMean);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_OPS_LOSS_H_
