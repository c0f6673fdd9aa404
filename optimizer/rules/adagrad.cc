#include "weft/optimizer/rules/adagrad.h"

#include <cmath>

namespace weft::optimizer {

Adagrad::Adagrad(const AdagradOptions& options)
    : OnBothTypes({{"accumulator", options.initial_accumulator}}),
      options_(options) {}

template <typename T>
void Adagrad::Update(const StepContext& context, int64_t n,
                     T* __restrict weights, const T* __restrict gradient,
                     absl::Span<const absl::Span<T>> slots) const {
  const double slowed =
      1.0 + static_cast<double>(context.step - 1) * options_.lr_decay;
  const T lr = static_cast<T>(options_.lr * context.lr_scale / slowed);
  const T decay = static_cast<T>(options_.weight_decay);
  const T epsilon = static_cast<T>(options_.epsilon);
  T* __restrict accumulator = slots[0].data();
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] + decay * weights[i];
    accumulator[i] += g * g;
    weights[i] -= lr * g / (std::sqrt(accumulator[i]) + epsilon);
  }
}

template void Adagrad::Update<float>(const StepContext&, int64_t, float*,
                                     const float*,
                                     absl::Span<const absl::Span<float>>) const;
template void Adagrad::Update<double>(
    const StepContext&, int64_t, double*, const double*,
    absl::Span<const absl::Span<double>>) const;

}  // namespace weft::optimizer
