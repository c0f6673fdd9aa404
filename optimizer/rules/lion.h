// Lion: steps of one size, in the direction of a running mean's sign.
//
// With slot "m":
//   w = (1 - lr * weight_decay) * w - lr * sign(beta1 * m + (1 - beta1) * g)
//   m = beta2 * m + (1 - beta2) * g
// The sign of 0 is 0. That of NaN is NaN, so that it shows.
// Source: Chen et al., "Symbolic discovery of optimization algorithms",
// NeurIPS 2023, algorithm 2.

#ifndef WEFT_OPTIMIZER_RULES_LION_H_
#define WEFT_OPTIMIZER_RULES_LION_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Lion final : public OnBothTypes<Lion> {
 public:
  explicit Lion(const LionOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  bool uses_step() const override { return false; }
  bool ignores_zero_gradient() const override { return false; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const LionOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_LION_H_
