// Clipped: a rule that sees gradients within limits.
//
//   g = each element, limited to [-value, value]
//   g *= norm / |g| if |g| > norm, the Euclidean norm of what the rule sees
// NaN stays NaN. The rule's row, or parameter, is what `norm` is of.
// Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent
// neural networks", ICML 2013, algorithm 1.
//
// A call takes as much memory as a row's gradient, or a block of it where the
// scope is kElement.

#ifndef WEFT_OPTIMIZER_RULES_CLIPPED_H_
#define WEFT_OPTIMIZER_RULES_CLIPPED_H_

#include <memory>

#include "weft/optimizer/rules/update_rule.h"

namespace weft::optimizer {

class Clipped final : public UpdateRule {
 public:
  // REQUIRES: Validate(clip) is OK.
  Clipped(std::unique_ptr<UpdateRule> rule, const ClipOptions& clip);

  RuleOptions options() const override { return rule_->options(); }
  absl::Span<const Slot> slots() const override { return rule_->slots(); }
  Scope scope() const override;
  bool uses_step() const override { return rule_->uses_step(); }
  bool ignores_zero_gradient() const override {
    return rule_->ignores_zero_gradient();
  }

  void Apply(const StepContext& context, absl::Span<float> weights,
             absl::Span<const float> gradient,
             absl::Span<const absl::Span<float>> slots) const override;
  void Apply(const StepContext& context, absl::Span<double> weights,
             absl::Span<const double> gradient,
             absl::Span<const absl::Span<double>> slots) const override;

 private:
  template <typename T>
  void ApplyAs(const StepContext& context, absl::Span<T> weights,
               absl::Span<const T> gradient,
               absl::Span<const absl::Span<T>> slots) const;

  const std::unique_ptr<UpdateRule> rule_;
  const ClipOptions clip_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_CLIPPED_H_
