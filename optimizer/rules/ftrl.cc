// Ftrl: FTRL-Proximal, which keeps weights that matter little at exactly 0.
//
// With slots "z" and "n":
//   s = (sqrt(n + g^2) - sqrt(n)) / lr;  z += g - s * w;  n += g^2
//   w = 0 if |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / lr + l2)
// The weights follow from the slots: start them at 0, since any other initial
// value fades at the first update.
// Source: McMahan et al., "Ad click prediction: a view from the trenches",
// KDD 2013, algorithm 1.

#include <cmath>
#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {
namespace {

class Ftrl final : public OnBothTypes<Ftrl, FtrlOptions> {
 public:
  explicit Ftrl(const FtrlOptions& options)
      : OnBothTypes(options, {{"z", 0.0}, {"n", options.initial_accumulator}}) {
  }

  bool ignores_zero_gradient() const override { return true; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    const double lr = options_.lr * context.lr_scale;
    if (lr == 0.0) return;  // a schedule at 0: every rule stands still then
    const T per_lr = static_cast<T>(1.0 / lr);
    const T beta = static_cast<T>(options_.beta);
    const T l1 = static_cast<T>(options_.l1);
    const T l2 = static_cast<T>(options_.l2);
    T* __restrict z = slots[0].data();
    T* __restrict squares = slots[1].data();
    for (int64_t i = 0; i < n; ++i) {
      const T g = gradient[i];
      const T root = std::sqrt(squares[i]);
      squares[i] += g * g;
      const T new_root = std::sqrt(squares[i]);
      z[i] += g - (new_root - root) * per_lr * weights[i];
      const T beyond = std::abs(z[i]) - l1;
      const T curvature = (beta + new_root) * per_lr + l2;
      // Without the branch a weight whose gradients were all 0 would be 0 / 0.
      weights[i] =
          beyond > T{0} ? -std::copysign(beyond, z[i]) / curvature : T{0};
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const FtrlOptions& options) {
  return std::make_unique<Ftrl>(options);
}

}  // namespace weft::optimizer
