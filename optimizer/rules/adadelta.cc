// Adadelta: steps as large as those before them, divided by the root mean
// square of the gradient.
//
// With g the gradient plus weight_decay * w, and slots "square_avg" and
// "acc_delta":
//   square_avg = rho * square_avg + (1 - rho) * g^2
//   d = sqrt(acc_delta + epsilon) / sqrt(square_avg + epsilon) * g
//   acc_delta = rho * acc_delta + (1 - rho) * d^2
//   w -= lr * d
// Source: Zeiler, "ADADELTA: an adaptive learning rate method", 2012, with the
// lr that PyTorch adds.

#include <cmath>
#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {
namespace {

class Adadelta final : public OnBothTypes<Adadelta, AdadeltaOptions> {
 public:
  explicit Adadelta(const AdadeltaOptions& options)
      : OnBothTypes(options, {{"square_avg", 0.0}, {"acc_delta", 0.0}}) {}

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
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
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const AdadeltaOptions& options) {
  return std::make_unique<Adadelta>(options);
}

}  // namespace weft::optimizer
