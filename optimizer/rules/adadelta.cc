#include "weft/optimizer/rules/adadelta.h"

#include <cmath>

namespace weft::optimizer {
Adadelta::Adadelta(const AdadeltaOptions& options)
    : OnBothTypes({{"square_avg", 0.0}, {"acc_delta", 0.0}}),
      options_(options) {}

template <typename T>
void Adadelta::Update(const StepContext& context, int64_t n,
                      T* __restrict weights, const T* __restrict gradient,
                      absl::Span<const absl::Span<T>> slots) const {
  const T lr = static_cast<T>(options_.lr * context.lr_scale);
  const T rho = static_cast<T>(options_.rho);
  const T rest = static_cast<T>(1.0 - options_.rho);
  const T epsilon = static_cast<T>(options_.epsilon);
  const T decay = static_cast<T>(options_.weight_decay);
  T* __restrict square = slots[0].data();
  T* __restrict moved = slots[1].data();
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] + decay * weights[i];
    square[i] = rho * square[i] + rest * g * g;
    const T delta =
        std::sqrt(moved[i] + epsilon) / std::sqrt(square[i] + epsilon) * g;
    moved[i] = rho * moved[i] + rest * delta * delta;
    weights[i] -= lr * delta;
  }
}

template void Adadelta::Update<float>(
    const StepContext&, int64_t, float*, const float*,
    absl::Span<const absl::Span<float>>) const;
template void Adadelta::Update<double>(
    const StepContext&, int64_t, double*, const double*,
    absl::Span<const absl::Span<double>>) const;

}  // namespace weft::optimizer
