// Lion: steps of one size, in the direction of a running mean's sign.
//
// With slot "m":
//   w = (1 - lr * weight_decay) * w - lr * sign(beta1 * m + (1 - beta1) * g)
//   m = beta2 * m + (1 - beta2) * g
// The sign of 0 is 0. That of NaN is NaN, so that it shows.
// Source: Chen et al., "Symbolic discovery of optimization algorithms",
// NeurIPS 2023, algorithm 2.

#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {
namespace {

class Lion final : public OnBothTypes<Lion, LionOptions> {
 public:
  explicit Lion(const LionOptions& options)
      : OnBothTypes(options, {{"m", 0.0}}) {}

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    const double rate = options_.lr * context.lr_scale;
    const T lr = static_cast<T>(rate);
    const T keep = static_cast<T>(1.0 - rate * options_.weight_decay);
    const T beta1 = static_cast<T>(options_.beta1);
    const T beta2 = static_cast<T>(options_.beta2);
    const T rest1 = static_cast<T>(1.0 - options_.beta1);
    const T rest2 = static_cast<T>(1.0 - options_.beta2);
    T* __restrict m = slots[0].data();
    for (int64_t i = 0; i < n; ++i) {
      const T ahead = beta1 * m[i] + rest1 * gradient[i];
      const T sign = ahead > T{0} ? T{1} : (ahead < T{0} ? T{-1} : ahead);
      weights[i] = keep * weights[i] - lr * sign;
      m[i] = beta2 * m[i] + rest2 * gradient[i];
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const LionOptions& options) {
  return std::make_unique<Lion>(options);
}

}  // namespace weft::optimizer
