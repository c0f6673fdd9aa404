// Rmsprop: steps divided by a running root mean square of the gradient.
//
// With g the gradient plus weight_decay * w, and slots "square_avg", if
// centered "grad_avg", and with momentum "momentum":
//   square_avg = alpha * square_avg + (1 - alpha) * g^2
//   grad_avg = alpha * grad_avg + (1 - alpha) * g
//   s = g / (sqrt(square_avg) + epsilon), or centered
//   s = g / (sqrt(square_avg - grad_avg^2) + epsilon)
//   w -= lr * s, or momentum = momentum * momentum + s;  w -= lr * momentum
// A variance that roundings made negative is 0 here, NaN in PyTorch.
// Source: Tieleman and Hinton, "Lecture 6.5: rmsprop", COURSERA 2012; centered:
// Graves, "Generating sequences with recurrent neural networks", 2013; in the
// form that PyTorch uses.

#ifndef WEFT_OPTIMIZER_RULES_RMSPROP_H_
#define WEFT_OPTIMIZER_RULES_RMSPROP_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Rmsprop final : public OnBothTypes<Rmsprop> {
 public:
  explicit Rmsprop(const RmspropOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  bool uses_step() const override { return false; }
  bool ignores_zero_gradient() const override { return false; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const RmspropOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_RMSPROP_H_
