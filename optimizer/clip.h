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

enum class Norm { kEuclidean, kLargest };

// The norm of all elements of `gradients` together: the root of the sum of
// their squares, or the largest magnitude. Summed in f64. NaN if an element is
// NaN. To join the norms of several owners: the Euclidean ones as the root of
// the sum of their squares, the largest as the largest.
double GradientNorm(absl::Span<const Gradient> gradients,
                    Norm norm = Norm::kEuclidean);

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
