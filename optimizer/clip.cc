#include "weft/optimizer/clip.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/wide.h"

namespace weft::optimizer {
namespace {

// The elements that count.
Tensor ValuesOf(const Gradient& gradient) {
  return gradient.is_sparse() ? Coalesce(gradient.sparse()).values
                              : gradient.dense();
}

// Calls change(values) on memory that is the gradient's, and gives it back to
// the parameter.
template <typename Change>
void ChangeGradient(const Variable& parameter, Change change) {
  const Gradient gradient = parameter.gradient();
  if (!gradient.defined()) return;
  if (!gradient.is_sparse()) return change(gradient.dense());
  SparseRows rows = Coalesce(gradient.sparse());
  // Coalesce may return what it was given, which others may hold.
  rows.values = rows.values.Clone();
  change(rows.values);
  parameter.SetGradient(std::move(rows));
}

absl::Status CheckLargest(double largest) {
  if (largest > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("gradients cannot be clipped to ", largest,
                   "; wanted a positive number"));
}

}  // namespace

double GradientNorm(absl::Span<const Gradient> gradients, Norm norm) {
  double squares = 0, largest = 0, magnitudes = 0;
  for (const Gradient& gradient : gradients) {
    if (!gradient.defined()) continue;
    const Tensor values =
        internal::Wide(ValuesOf(gradient).To(Device::Cpu())).Contiguous();
    VisitFloating(values.dtype(), "GradientNorm", [&](auto type) {
      using T = typename decltype(type)::Type;
      for (const T element : values.span<T>()) {
        const double x = std::abs(static_cast<double>(element));
        squares += x * x;
        magnitudes += x;
        if (!(x <= largest)) largest = std::isnan(largest) ? largest : x;
      }
    });
  }
  switch (norm) {
    case Norm::kLargest:
      return largest;
    case Norm::kSum:
      return magnitudes;
    case Norm::kEuclidean:
      break;
  }
  return std::sqrt(squares);
}

double JoinNorms(double a, double b, Norm norm) {
  switch (norm) {
    case Norm::kLargest:
      return std::max(a, b);
    case Norm::kSum:
      return a + b;
    case Norm::kEuclidean:
      break;
  }
  return std::hypot(a, b);
}

absl::StatusOr<double> ClipGradNorm(absl::Span<const Variable> parameters,
                                    double largest, Norm norm) {
  std::vector<Gradient> gradients;
  for (const Variable& parameter : parameters) {
    gradients.push_back(parameter.gradient());
  }
  WEFT_ASSIGN_OR_RETURN(const double found, CatchToStatus([&] {
                          return GradientNorm(gradients, norm);
                        }));
  // Sole hold again, for what is changed in place.
  gradients.clear();
  WEFT_RETURN_IF_ERROR(ScaleGradientsTo(parameters, largest, found));
  return found;
}

absl::Status ScaleGradientsTo(absl::Span<const Variable> parameters,
                              double largest, double norm) {
  return CatchToStatus([&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(CheckLargest(largest));
    if (!std::isfinite(norm)) {
      return absl::FailedPreconditionError(
          absl::StrCat("ClipGradNorm: the norm of the gradients is ", norm,
                       "; skip this step, or look for what made it so"));
    }
    const double factor = largest / (norm + 1e-6);
    if (factor >= 1) return absl::OkStatus();
    for (const Variable& parameter : parameters) {
      ChangeGradient(parameter,
                     [factor](const Tensor& values) { Mul_(values, factor); });
    }
    return absl::OkStatus();
  });
}

absl::Status ClipGradValue(absl::Span<const Variable> parameters,
                           double largest) {
  return CatchToStatus([&]() -> absl::Status {
    WEFT_RETURN_IF_ERROR(CheckLargest(largest));
    for (const Variable& parameter : parameters) {
      ChangeGradient(parameter, [largest](const Tensor& values) {
        values.CopyFrom(Clamp(values, -largest, largest));
      });
    }
    return absl::OkStatus();
  });
}

}  // namespace weft::optimizer
