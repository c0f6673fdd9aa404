// Adam and AdamW: steps scaled by running moments of the gradient.
//
// With slots "m" and "v" and t the step:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// Adam adds weight_decay * w to g first; AdamW multiplies w by
// 1 - lr * weight_decay instead. With amsgrad the root is that of the slot
// "v_max", the largest v so far, as PyTorch has it (v, not v / (1 - beta2^t)).
// Source: Kingma and Ba, "Adam", ICLR 2015; Loshchilov and Hutter, "Decoupled
// weight decay regularization", ICLR 2019; Reddi, Kale and Kumar, "On the
// convergence of Adam and beyond", ICLR 2018.

#include <cmath>
#include <memory>
#include <vector>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {
namespace {

std::vector<Slot> SlotsFor(bool amsgrad) {
  std::vector<Slot> slots = {{"m", 0.0}, {"v", 0.0}};
  if (amsgrad) slots.push_back({"v_max", 0.0});
  return slots;
}

// What both share: `coupled` decay enters the gradient, `shrink` multiplies
// the weights.
template <bool kAmsgrad, typename T, typename Options>
void Step(const Options& options, const StepContext& context, double coupled,
          double shrink, int64_t n, T* __restrict weights,
          const T* __restrict gradient, absl::Span<const absl::Span<T>> slots) {
  const double t = static_cast<double>(context.step);
  const double correction1 = 1.0 - std::pow(options.beta1, t);
  const double correction2 = 1.0 - std::pow(options.beta2, t);
  const T size = static_cast<T>(options.lr * context.lr_scale / correction1);
  const T root = static_cast<T>(std::sqrt(correction2));
  const T beta1 = static_cast<T>(options.beta1);
  const T beta2 = static_cast<T>(options.beta2);
  const T rest1 = static_cast<T>(1.0 - options.beta1);
  const T rest2 = static_cast<T>(1.0 - options.beta2);
  const T epsilon = static_cast<T>(options.epsilon);
  const T decay = static_cast<T>(coupled);
  const T keep = static_cast<T>(shrink);
  T* __restrict m = slots[0].data();
  T* __restrict v = slots[1].data();
  T* __restrict v_max = kAmsgrad ? slots[2].data() : nullptr;
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] + decay * weights[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    T square = v[i];
    if (kAmsgrad) {
      square = v_max[i] < square ? square : v_max[i];
      v_max[i] = square;
    }
    const T scale = std::sqrt(square) / root + epsilon;
    weights[i] = keep * weights[i] - size * (m[i] / scale);
  }
}

template <typename T, typename Options>
void Step(const Options& options, const StepContext& context, double coupled,
          double shrink, int64_t n, T* weights, const T* gradient,
          absl::Span<const absl::Span<T>> slots) {
  const auto step =
      options.amsgrad ? &Step<true, T, Options> : &Step<false, T, Options>;
  step(options, context, coupled, shrink, n, weights, gradient, slots);
}

class Adam final : public OnBothTypes<Adam, AdamOptions> {
 public:
  explicit Adam(const AdamOptions& options)
      : OnBothTypes(options, SlotsFor(options.amsgrad)) {}

  bool uses_step() const override { return true; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    Step<T>(options_, context, /*coupled=*/options_.weight_decay,
            /*shrink=*/1.0, n, weights, gradient, slots);
  }
};

class AdamW final : public OnBothTypes<AdamW, AdamWOptions> {
 public:
  explicit AdamW(const AdamWOptions& options)
      : OnBothTypes(options, SlotsFor(options.amsgrad)) {}

  bool uses_step() const override { return true; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    const double lr = options_.lr * context.lr_scale;
    Step<T>(options_, context, /*coupled=*/0.0,
            /*shrink=*/1.0 - lr * options_.weight_decay, n, weights, gradient,
            slots);
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const AdamOptions& options) {
  return std::make_unique<Adam>(options);
}

std::unique_ptr<UpdateRule> MakeUnclipped(const AdamWOptions& options) {
  return std::make_unique<AdamW>(options);
}

}  // namespace weft::optimizer
