// Adam and AdamW: steps scaled by running moments of the gradient.
//
// With slots "m" and "v" and t the step:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// Adam adds weight_decay * w to g first; AdamW multiplies w by
// 1 - lr * weight_decay instead. With amsgrad the root is that of the slot
// "v_max", the largest v so far, as PyTorch has it (v, not v / (1 - beta2^t)).
// Source: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled
// weight decay regularization", ICLR 2019; Reddi, Kale and Kumar, "On the
// convergence of Adam and beyond", ICLR 2018.

#ifndef WEFT_OPTIMIZER_RULES_ADAM_H_
#define WEFT_OPTIMIZER_RULES_ADAM_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Adam final : public OnBothTypes<Adam> {
 public:
  explicit Adam(const AdamOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  bool uses_step() const override { return true; }
  bool ignores_zero_gradient() const override { return false; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const AdamOptions options_;
};

class AdamW final : public OnBothTypes<AdamW> {
 public:
  explicit AdamW(const AdamWOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  bool uses_step() const override { return true; }
  bool ignores_zero_gradient() const override { return false; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const AdamWOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_ADAM_H_
