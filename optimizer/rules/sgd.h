// Sgd: stochastic gradient descent, with momentum if wanted.
//
// With g the gradient plus weight_decay * w, and m the slot "momentum":
//   m = g at the first step, else momentum * m + (1 - dampening) * g
//   w -= lr * m, or for Nesterov w -= lr * (g + momentum * m)
// Source: Sutskever et al., "On the importance of initialization and momentum
// in deep learning", ICML 2013, in the form that PyTorch uses.

#ifndef WEFT_OPTIMIZER_RULES_SGD_H_
#define WEFT_OPTIMIZER_RULES_SGD_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Sgd final : public OnBothTypes<Sgd> {
 public:
  // REQUIRES: Validate(options) is OK; so for the other rules.
  explicit Sgd(const SgdOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  // The momentum starts at 0, so that only dampening knows the first step.
  bool uses_step() const override {
    return options_.momentum != 0.0 && options_.dampening != 0.0;
  }
  bool ignores_zero_gradient() const override {
    return options_.momentum == 0.0 && options_.weight_decay == 0.0;
  }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const SgdOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_SGD_H_
