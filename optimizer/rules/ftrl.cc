#include "weft/optimizer/rules/ftrl.h"

#include <cmath>

namespace weft::optimizer {

Ftrl::Ftrl(const FtrlOptions& options)
    : OnBothTypes({{"z", 0.0}, {"n", options.initial_accumulator}}),
      options_(options) {}

template <typename T>
void Ftrl::Update(const StepContext& context, int64_t n, T* __restrict weights,
                  const T* __restrict gradient,
                  absl::Span<const absl::Span<T>> slots) const {
  const double lr = options_.lr * context.lr_scale;
  if (lr == 0.0) return;  // a schedule at 0: every rule stands still then
  const T per_lr = static_cast<T>(1.0 / lr);
  const T beta = static_cast<T>(options_.beta);
  const T l1 = static_cast<T>(options_.l1);
  const T l2 = static_cast<T>(options_.l2);
  T* __restrict z = slots[0].data();
  T* __restrict squares = slots[1].data();
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i];
    const T root = std::sqrt(squares[i]);
    squares[i] += g * g;
    const T new_root = std::sqrt(squares[i]);
    z[i] += g - (new_root - root) * per_lr * weights[i];
    const T beyond = std::abs(z[i]) - l1;
    const T curvature = (beta + new_root) * per_lr + l2;
    // Without the branch a weight whose gradients were all 0 would be 0 / 0.
    weights[i] =
        beyond > T{0} ? -std::copysign(beyond, z[i]) / curvature : T{0};
  }
}

template void Ftrl::Update<float>(const StepContext&, int64_t, float*,
                                  const float*,
                                  absl::Span<const absl::Span<float>>) const;
template void Ftrl::Update<double>(const StepContext&, int64_t, double*,
                                   const double*,
                                   absl::Span<const absl::Span<double>>) const;

}  // namespace weft::optimizer
