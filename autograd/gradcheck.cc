#include "weft/autograd/gradcheck.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/autograd/grad_mode.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/error.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace {

using Function = absl::FunctionRef<Variable(absl::Span<const Variable>)>;

// A weight for element `i` of the result: no two alike, none near 0.
double Weight(int64_t i) {
  return 0.5 + std::fmod(0.6180339887 * static_cast<double>(i), 1.0);
}

Tensor Weights(const Shape& shape) {
  const Tensor weights = Tensor::Empty(shape, DType::kF64);
  double* out = weights.data<double>();
  for (int64_t i = 0; i < weights.numel(); ++i) out[i] = Weight(i);
  return weights;
}

double Weighed(Function function, absl::Span<const Variable> inputs) {
  NoGradScope no_grad;
  const std::vector<double> y = function(inputs).value().ToVector<double>();
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += Weight(i) * y[i];
  return sum;
}

double Difference(Function function, absl::Span<const Variable> inputs,
                  const Tensor& x, int64_t i, double step) {
  double& element = x.data<double>()[i];
  const double before = element;
  element = before + step;
  const double above = Weighed(function, inputs);
  element = before - step;
  const double below = Weighed(function, inputs);
  element = before;
  return (above - below) / (2 * step);
}

void CheckInput(Function function, absl::Span<const Variable> inputs,
                size_t which, const GradcheckOptions& options) {
  const Tensor& x = inputs[which].value();
  const Tensor grad = inputs[which].grad();
  const std::vector<double> got = grad.defined()
                                      ? grad.ToVector<double>()
                                      : std::vector<double>(x.numel(), 0.0);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double wanted = Difference(function, inputs, x, i, options.step);
    const double allowed = options.absolute_tolerance +
                           options.relative_tolerance * std::abs(wanted);
    if (std::abs(got[i] - wanted) <= allowed) continue;
    throw Error(absl::InternalError(absl::StrCat(
        "CheckGradients: input ", which, ", element ", i, ": the gradient is ",
        got[i], ", finite differences say ", wanted)));
  }
}

}  // namespace

absl::Status CheckGradients(Function function,
                            absl::Span<const Variable> inputs,
                            const GradcheckOptions& options) {
  return CatchToStatus([&] {
    for (const Variable& input : inputs) {
      if (!input.requires_grad()) continue;
      if (!input.is_leaf() || input.dtype() != DType::kF64 ||
          !input.value().is_contiguous()) {
        ThrowInvalidArgument(
            "CheckGradients: wanted contiguous f64 leaves, found ",
            input.value().Describe());
      }
      input.ClearGradient();
    }
    const Variable y = function(inputs);
    y.Backward(Weights(y.shape()));
    for (size_t which = 0; which < inputs.size(); ++which) {
      if (!inputs[which].requires_grad()) continue;
      CheckInput(function, inputs, which, options);
      inputs[which].ClearGradient();
    }
  });
}

}  // namespace weft
