// Metrics of a binary classifier: area under the ROC curve, log loss.

#ifndef WEFT_INPUT_METRICS_H_
#define WEFT_INPUT_METRICS_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace weft::input {

// The chance that a random positive scores above a random negative; ties count
// one half. Labels above 0.5 are positive. O(n log n). kInvalidArgument if
// sizes differ, a score is NaN, or either class is absent.
absl::StatusOr<double> Auc(absl::Span<const double> scores,
                           absl::Span<const float> labels);

// The mean of -log(p of what happened), p = 1 / (1 + exp(-logit)).
// kInvalidArgument if sizes differ or are 0.
absl::StatusOr<double> LogLoss(absl::Span<const double> logits,
                               absl::Span<const float> labels);

}  // namespace weft::input

#endif  // WEFT_INPUT_METRICS_H_
