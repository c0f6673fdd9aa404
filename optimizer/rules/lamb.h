// Lamb: Adam's steps, scaled to the size of the weights that they change.
//
// With slots "m" and "v" and t the step:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//       + weight_decay * w
//   w -= lr * |w| / |u| * u
// The norms are Euclidean, of a whole parameter: in a sparse table of a row.
// Their ratio is 1 where one of them is 0, so that weights that begin at 0
// learn. It is not clipped (the paper's phi is the identity).
// Source: You et al., "Large batch optimization for deep learning: training
// BERT in 76 minutes", ICLR 2020, algorithm 2.

#ifndef WEFT_OPTIMIZER_RULES_LAMB_H_
#define WEFT_OPTIMIZER_RULES_LAMB_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Lamb final : public OnBothTypes<Lamb> {
 public:
  explicit Lamb(const LambOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kParameter; }
  bool uses_step() const override { return true; }
  bool ignores_zero_gradient() const override { return false; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const LambOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_LAMB_H_
