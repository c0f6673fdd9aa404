// Adagrad: each weight's rate falls with the sum of its squared gradients.
//
// With g the gradient plus weight_decay * w, and slot "accumulator":
//   accumulator += g^2
//   w -= lr / (1 + (step - 1) * lr_decay) * g / (sqrt(accumulator) + epsilon)
// Source: Duchi, Hazan and Singer, "Adaptive subgradient methods for online
// learning and stochastic optimization", JMLR 12, 2011.

#ifndef WEFT_OPTIMIZER_RULES_ADAGRAD_H_
#define WEFT_OPTIMIZER_RULES_ADAGRAD_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Adagrad final : public OnBothTypes<Adagrad> {
 public:
  explicit Adagrad(const AdagradOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  bool uses_step() const override { return options_.lr_decay != 0.0; }
  bool ignores_zero_gradient() const override {
    return options_.weight_decay == 0.0;
  }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const AdagradOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_ADAGRAD_H_
