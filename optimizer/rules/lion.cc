#include "weft/optimizer/rules/lion.h"

namespace weft::optimizer {
Lion::Lion(const LionOptions& options)
    : OnBothTypes({{"m", 0.0}}), options_(options) {}

template <typename T>
void Lion::Update(const StepContext& context, int64_t n, T* __restrict weights,
                  const T* __restrict gradient,
                  absl::Span<const absl::Span<T>> slots) const {
  const double rate = options_.lr * context.lr_scale;
  const T lr = static_cast<T>(rate);
  const T keep = static_cast<T>(1.0 - rate * options_.weight_decay);
  const T beta1 = static_cast<T>(options_.beta1);
  const T beta2 = static_cast<T>(options_.beta2);
  const T rest1 = static_cast<T>(1.0 - options_.beta1);
  const T rest2 = static_cast<T>(1.0 - options_.beta2);
  T* __restrict m = slots[0].data();
  for (int64_t i = 0; i < n; ++i) {
    const T ahead = beta1 * m[i] + rest1 * gradient[i];
    const T sign = ahead > T{0} ? T{1} : (ahead < T{0} ? T{-1} : ahead);
    weights[i] = keep * weights[i] - lr * sign;
    m[i] = beta2 * m[i] + rest2 * gradient[i];
  }
}

template void Lion::Update<float>(const StepContext&, int64_t, float*,
                                  const float*,
                                  absl::Span<const absl::Span<float>>) const;
template void Lion::Update<double>(const StepContext&, int64_t, double*,
                                   const double*,
                                   absl::Span<const absl::Span<double>>) const;

}  // namespace weft::optimizer
