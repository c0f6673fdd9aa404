// Sgd: stochastic gradient descent, with momentum if wanted.
//
// With g the gradient plus weight_decay * w, and m the slot "momentum":
//   m = g at the first step, else momentum * m + (1 - dampening) * g
//   w -= lr * m, or for Nesterov w -= lr * (g + momentum * m)
// Source: Sutskever et al., "On the importance of initialization and momentum
// in deep learning", ICML 2013, in the form that PyTorch uses.

#include <memory>
#include <vector>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {
namespace {

std::vector<Slot> SlotsFor(const SgdOptions& options) {
  if (options.momentum == 0.0) return {};
  return {{"momentum", 0.0}};
}

class Sgd final : public OnBothTypes<Sgd, SgdOptions> {
 public:
  explicit Sgd(const SgdOptions& options)
      : OnBothTypes(options, SlotsFor(options)) {}

  // The momentum starts at 0, so that only dampening knows the first step.
  bool uses_step() const override {
    return options_.momentum != 0.0 && options_.dampening != 0.0;
  }
  bool ignores_zero_gradient() const override {
    return options_.momentum == 0.0 && options_.weight_decay == 0.0;
  }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    const T lr = static_cast<T>(options_.lr * context.lr_scale);
    const T decay = static_cast<T>(options_.weight_decay);
    if (slots.empty()) {
      for (int64_t i = 0; i < n; ++i) {
        weights[i] -= lr * (gradient[i] + decay * weights[i]);
      }
      return;
    }
    // The first gradient enters the momentum whole, without dampening.
    const bool first = context.step == 1;
    const T momentum = static_cast<T>(options_.momentum);
    const T kept = first ? T{0} : momentum;
    const T taken = first ? T{1} : static_cast<T>(1.0 - options_.dampening);
    const T ahead = options_.nesterov ? T{1} : T{0};
    const T speed = options_.nesterov ? momentum : T{1};
    T* __restrict m = slots[0].data();
    for (int64_t i = 0; i < n; ++i) {
      const T g = gradient[i] + decay * weights[i];
      m[i] = kept * m[i] + taken * g;
      weights[i] -= lr * (ahead * g + speed * m[i]);
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const SgdOptions& options) {
  return std::make_unique<Sgd>(options);
}

}  // namespace weft::optimizer
