// Adagrad: each weight's rate falls with the sum of its squared gradients.
//
// With g the gradient plus weight_decay * w, and slot "accumulator":
//   accumulator += g^2
//   w -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(accumulator) + epsilon)
// Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online
// learning and stochastic optimization", JMLR 12, 2011.

#include <cmath>
#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {
namespace {

class Adagrad final : public OnBothTypes<Adagrad, AdagradOptions> {
 public:
  explicit Adagrad(const AdagradOptions& options)
      : OnBothTypes(options, {{"accumulator", options.initial_accumulator}}) {}

  bool uses_step() const override { return options_.lr_decay != 0.0; }
  bool ignores_zero_gradient() const override {
    return options_.weight_decay == 0.0;
  }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
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
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const AdagradOptions& options) {
  return std::make_unique<Adagrad>(options);
}

}  // namespace weft::optimizer
