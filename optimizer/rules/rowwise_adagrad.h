// RowwiseAdagrad: Adagrad with one sum of squares for a row.
//
// With g the gradient plus weight_decay * w, D the row's elements, and slot
// "accumulator", one value:
//   accumulator += |g|^2 / D
//   w -= lr / (sqrt(accumulator) + epsilon) * g
// A row of D weights takes D + 1 numbers, with Adagrad 2 * D.
// Source: rowwise_adagrad of FBGEMM's embedding tables (fbgemm_gpu/codegen,
// with its weight decay of mode L2).

#ifndef WEFT_OPTIMIZER_RULES_ROWWISE_ADAGRAD_H_
#define WEFT_OPTIMIZER_RULES_ROWWISE_ADAGRAD_H_

#include "weft/optimizer/rules/on_both_types.h"

namespace weft::optimizer {

class RowwiseAdagrad final : public OnBothTypes<RowwiseAdagrad> {
 public:
  explicit RowwiseAdagrad(const RowwiseAdagradOptions& options);

  RuleOptions options() const override { return options_; }
  Scope scope() const override { return Scope::kRow; }
  bool uses_step() const override { return false; }
  bool ignores_zero_gradient() const override {
    return options_.weight_decay == 0.0;
  }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const;

 private:
  const RowwiseAdagradOptions options_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_ROWWISE_ADAGRAD_H_
