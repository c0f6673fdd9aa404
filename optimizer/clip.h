// Clipping of gradients, before an optimizer's step.
//
// Gradients are those of leaves (Variable::gradient); undefined ones stay
// undefined. A sparse gradient counts and is clipped as the sums of its equal
// rows; it stays sparse.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_OPTIMIZER_CLIP_H_
#define WEFT_OPTIMIZER_CLIP_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/variable.h"

namespace weft::optimizer {

// The norms of order 2 and infinity (the largest magnitude), and of order 1
// (the sum of magnitudes): norm_type of PyTorch's clip_grad_norm_.
enum class Norm { kEuclidean, kLargest, kSum };

// The norm of all elements of `gradients` together. Summed in f64. NaN if an
// element is NaN.
double GradientNorm(absl::Span<const Gradient> gradients,
                    Norm norm = Norm::kEuclidean);

// The norm of the elements of two owners together, from theirs.
double JoinNorms(double a, double b, Norm norm);

// Multiplies the gradients of `parameters` by largest / (norm + 1e-6) if that
// is less than 1, and returns the norm that they had. In place where the
// gradient is a tensor: in a bucket, it stays there. kInvalidArgument unless
// `largest` is positive; kFailedPrecondition, with nothing changed, if the norm
// is infinite or NaN.
absl::StatusOr<double> ClipGradNorm(absl::Span<const Variable> parameters,
                                    double largest,
                                    Norm norm = Norm::kEuclidean);

// The scaling alone, with a given norm, which may be of gradients at other
// workers too.
absl::Status ScaleGradientsTo(absl::Span<const Variable> parameters,
                              double largest, double norm);

// Limits each element to [-largest, largest]; NaN stays. kInvalidArgument
// unless `largest` is positive.
absl::Status ClipGradValue(absl::Span<const Variable> parameters,
                           double largest);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_CLIP_H_
