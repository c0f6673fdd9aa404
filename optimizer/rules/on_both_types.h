// OnBothTypes: makes an UpdateRule of a class that has Update<T>, once for
// float and once for double.

#ifndef WEFT_OPTIMIZER_RULES_ON_BOTH_TYPES_H_
#define WEFT_OPTIMIZER_RULES_ON_BOTH_TYPES_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "weft/base/check.h"
#include "weft/optimizer/rules/rule_numbers.h"
#include "weft/optimizer/rules/update_rule.h"

namespace weft::optimizer {

// What callers of a rule must know of it: see UpdateRule.
struct RuleTraits {
  std::vector<Slot> slots;
  bool uses_step = false;
  bool ignores_zero_gradient = false;
  Scope scope = Scope::kElement;
};

// `Rule` derives from this and has, called with n > 0,
//   template <typename T>
//   void Update(const RuleNumbers&, int64_t n, T* __restrict weights,
//               const T* __restrict gradient,
//               absl::Span<const absl::Span<T>> slots) const;
template <typename Rule>
class OnBothTypes : public UpdateRule {
 public:
  OnBothTypes(const RuleOptions& options, RuleTraits traits)
      : options_(options), traits_(std::move(traits)) {}

  RuleOptions options() const final { return options_; }
  absl::Span<const Slot> slots() const final { return traits_.slots; }
  Scope scope() const final { return traits_.scope; }
  bool uses_step() const final { return traits_.uses_step; }
  bool ignores_zero_gradient() const final {
    return traits_.ignores_zero_gradient;
  }

  void Apply(const StepContext& context, absl::Span<float> weights,
             absl::Span<const float> gradient,
             absl::Span<const absl::Span<float>> slots) const final {
    ApplyAs<float>(context, weights, gradient, slots);
  }
  void Apply(const StepContext& context, absl::Span<double> weights,
             absl::Span<const double> gradient,
             absl::Span<const absl::Span<double>> slots) const final {
    ApplyAs<double>(context, weights, gradient, slots);
  }

 private:
  template <typename T>
  void ApplyAs(const StepContext& context, absl::Span<T> weights,
               absl::Span<const T> gradient,
               absl::Span<const absl::Span<T>> slots) const {
    WEFT_CHECK_GE(context.step, 1);
    WEFT_CHECK_EQ(gradient.size(), weights.size());
    WEFT_CHECK_EQ(slots.size(), traits_.slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      WEFT_CHECK_EQ(slots[i].size(),
                    traits_.slots[i].is_per_row ? size_t{1} : weights.size());
    }
    if (weights.empty()) return;
    static_cast<const Rule*>(this)->template Update<T>(
        NumbersOf(options_, context), static_cast<int64_t>(weights.size()),
        weights.data(), gradient.data(), slots);
  }

  const RuleOptions options_;
  const RuleTraits traits_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_ON_BOTH_TYPES_H_
