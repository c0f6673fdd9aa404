// Softmax and the kernels of losses: each in one pass, without overflow.
// f32 and f64.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes or dtypes that do not fit,
// and for a target that is no class.

#ifndef WEFT_TENSOR_OPS_LOSS_H_
#define WEFT_TENSOR_OPS_LOSS_H_

#include "weft/tensor/tensor.h"

namespace weft {

enum class Reduction { kNone, kMean, kSum };

Tensor Softmax(const Tensor& x, int64_t dim);
Tensor LogSoftmax(const Tensor& x, int64_t dim);
// dL/dx from grad = dL/dy and the result y.
Tensor SoftmaxBackward(const Tensor& grad, const Tensor& y, int64_t dim);
Tensor LogSoftmaxBackward(const Tensor& grad, const Tensor& y, int64_t dim);

// -log_probs[i, targets[i]]: log_probs [n, classes], targets i64 [n].
// [n] for kNone, else []. kMean of no rows is NaN.
Tensor NllLoss(const Tensor& log_probs, const Tensor& targets,
               Reduction reduction = Reduction::kMean);
// `grad` as the result; [n, classes].
Tensor NllLossBackward(const Tensor& grad, const Tensor& targets,
                       const Shape& log_probs_shape,
                       Reduction reduction = Reduction::kMean);

// NllLoss(LogSoftmax(logits, 1), targets).
struct CrossEntropyResult {
  Tensor loss;
  Tensor log_probs;  // [n, classes], for the gradient.
};
CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                Reduction reduction = Reduction::kMean);
Tensor CrossEntropyBackward(const Tensor& grad, const Tensor& log_probs,
                            const Tensor& targets,
                            Reduction reduction = Reduction::kMean);

// -(t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x))); x and t of one shape
// and dtype, t in [0, 1]. The shape of x for kNone, else [].
Tensor BceWithLogits(const Tensor& logits, const Tensor& targets,
                     Reduction reduction = Reduction::kMean);
Tensor BceWithLogitsBackward(const Tensor& grad, const Tensor& logits,
                             const Tensor& targets,
                             Reduction reduction = Reduction::kMean);

// (x - t)^2.
Tensor MseLoss(const Tensor& x, const Tensor& targets,
               Reduction reduction = Reduction::kMean);
Tensor MseLossBackward(const Tensor& grad, const Tensor& x,
                       const Tensor& targets,
                       Reduction reduction = Reduction::kMean);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_LOSS_H_
