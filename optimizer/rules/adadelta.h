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

#ifndef WEFT_OPTIMIZER_RULES_ADADELTA_H_
#define WEFT_OPTIMIZER_RULES_ADADELTA_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Adadelta final : public OnBothTypes<Adadelta> {
 public:
  explicit Adadelta(const AdadeltaOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  bool uses_step() const override { return false; }
  bool ignores_zero_gradient() const override { return false; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const AdadeltaOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_ADADELTA_H_
