// Softmax and the kernels of losses: each in one pass, without overflow.
// f32, f64, f16 and bf16.
//
// Throws weft::Error, INVALID_ARGUMENT, for shapes, dtypes or devices that do
// not fit, and for a target that is no class; on a device, such a target is
// found when the work runs, and makes the device fail.

#ifndef WEFT_TENSOR_OPS_LOSS_H_
#define WEFT_TENSOR_OPS_LOSS_H_

#include <cstdint>
#include <optional>

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

struct CrossEntropyOptions {
  // kMean: over the targets that are not ignored; NaN if all are.
  Reduction reduction = Reduction::kMean;
  // A target of this value has loss 0 and gives no gradient. None: each target
  // must be a class.
  std::optional<int64_t> ignore_index;
  // In [0, 1]: so much of the target's probability is spread over all classes.
  // Source: Szegedy et al., "Rethinking the Inception architecture", 2016, 7.
  double label_smoothing = 0;
};

// -log softmax(logits)[target] of each: logits [..., classes], targets i64
// [...]. [...] for kNone, else [].
struct CrossEntropyResult {
  Tensor loss;
  // [..., classes], for the gradient; f32 if the logits are f16 or bf16.
  Tensor log_probs;
};
CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                const CrossEntropyOptions& options);
CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets,
                                Reduction reduction = Reduction::kMean);
Tensor CrossEntropyBackward(const Tensor& grad, const Tensor& log_probs,
                            const Tensor& targets,
                            const CrossEntropyOptions& options);

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

// delta = 1: the smooth L1 loss. (x - t)^2 / 2 where |x - t| <= delta, else
// delta * (|x - t| - delta / 2); delta > 0.
Tensor HuberLoss(const Tensor& x, const Tensor& targets, double delta = 1,
                 Reduction reduction = Reduction::kMean);
Tensor HuberLossBackward(const Tensor& grad, const Tensor& x,
                         const Tensor& targets, double delta,
                         Reduction reduction = Reduction::kMean);

// targets * (log(targets) - log_probs), 0 where a target is 0: targets are
// probabilities, of the shape of log_probs. kMean is over all elements; the
// divergence of n distributions on the average is kSum divided by n.
Tensor KlDivLoss(const Tensor& log_probs, const Tensor& targets,
                 Reduction reduction = Reduction::kMean);
Tensor KlDivLossBackward(const Tensor& grad, const Tensor& targets,
                         Reduction reduction = Reduction::kMean);

}  // namespace weft

#endif  // WEFT_TENSOR_OPS_LOSS_H_
