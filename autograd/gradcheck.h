// CheckGradients: compares gradients with finite differences.

#ifndef WEFT_AUTOGRAD_GRADCHECK_H_
#define WEFT_AUTOGRAD_GRADCHECK_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"

namespace weft {

struct GradcheckOptions {
  // The step of the central difference. Its error is of order step^2 for the
  // curve and 1e-16 / step for the rounding of f64: 1e-10 and less for values
  // near 1.
  double step = 1e-6;
  double relative_tolerance = 1e-6;
  double absolute_tolerance = 1e-8;
};

// Calls `function` with `inputs` and compares the gradient of each input that
// requires one with finite differences, of the result's elements weighed by
// different numbers. kInvalidArgument unless those inputs are contiguous f64
// leaves; kInternal names the first element that differs. Clears gradients and
// leaves the inputs' values as they were.
absl::Status CheckGradients(
    absl::FunctionRef<Variable(absl::Span<const Variable>)> function,
    absl::Span<const Variable> inputs, const GradcheckOptions& options = {});

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRADCHECK_H_
