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

#include <cmath>
#include <memory>
#include <vector>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {
namespace {

std::vector<Slot> SlotsFor(const RmspropOptions& options) {
  std::vector<Slot> slots = {{"square_avg", 0.0}};
  if (options.centered) slots.push_back({"grad_avg", 0.0});
  if (options.momentum != 0.0) slots.push_back({"momentum", 0.0});
  return slots;
}

template <bool kCentered, bool kMomentum, typename T>
void Step(const RmspropOptions& options, double lr_scale, int64_t n,
          T* __restrict weights, const T* __restrict gradient,
          absl::Span<const absl::Span<T>> slots) {
  const T lr = static_cast<T>(options.lr * lr_scale);
  const T alpha = static_cast<T>(options.alpha);
  const T rest = static_cast<T>(1.0 - options.alpha);
  const T epsilon = static_cast<T>(options.epsilon);
  const T decay = static_cast<T>(options.weight_decay);
  const T momentum = static_cast<T>(options.momentum);
  T* __restrict square = slots[0].data();
  T* __restrict mean = kCentered ? slots[1].data() : nullptr;
  T* __restrict speed = kMomentum ? slots[kCentered ? 2 : 1].data() : nullptr;
  for (int64_t i = 0; i < n; ++i) {
    const T g = gradient[i] + decay * weights[i];
    square[i] = alpha * square[i] + rest * g * g;
    T size = square[i];
    if (kCentered) {
      mean[i] = alpha * mean[i] + rest * g;
      size -= mean[i] * mean[i];
      size = size < T{0} ? T{0} : size;
    }
    const T scaled = g / (std::sqrt(size) + epsilon);
    if (kMomentum) {
      speed[i] = momentum * speed[i] + scaled;
      weights[i] -= lr * speed[i];
    } else {
      weights[i] -= lr * scaled;
    }
  }
}

class Rmsprop final : public OnBothTypes<Rmsprop, RmspropOptions> {
 public:
  explicit Rmsprop(const RmspropOptions& options)
      : OnBothTypes(options, SlotsFor(options)) {}

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    const bool moves = options_.momentum != 0.0;
    const auto step =
        options_.centered
            ? (moves ? &Step<true, true, T> : &Step<true, false, T>)
            : (moves ? &Step<false, true, T> : &Step<false, false, T>);
    step(options_, context.lr_scale, n, weights, gradient, slots);
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const RmspropOptions& options) {
  return std::make_unique<Rmsprop>(options);
}

}  // namespace weft::optimizer
