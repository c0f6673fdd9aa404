// Ftrl: FTRL-Proximal, which keeps weights that matter little at exactly 0.
//
// With slots "z" and "n":
//   s = (sqrt(n + g^2) - sqrt(n)) / lr;  z += g - s * w;  n += g^2
//   w = 0 if |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / lr + l2)
// The weights follow from the slots: start them at 0, since any other initial
// value fades at the first update.
// Source: McMahan et al., "Ad click prediction: a view from the trenches",
// KDD 2013, algorithm 1.

#ifndef WEFT_OPTIMIZER_RULES_FTRL_H_
#define WEFT_OPTIMIZER_RULES_FTRL_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class Ftrl final : public OnBothTypes<Ftrl> {
 public:
  explicit Ftrl(const FtrlOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kElement; }
  bool uses_step() const override { return false; }
  bool ignores_zero_gradient() const override { return true; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const FtrlOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_FTRL_H_
