#include "weft/optimizer/rules/rmsprop.h"

#include <cmath>
#include <vector>

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

}  // namespace

Rmsprop::Rmsprop(const RmspropOptions& options)
    : OnBothTypes(SlotsFor(options)), options_(options) {}

template <typename T>
void Rmsprop::Update(const StepContext& context, int64_t n,
                     T* __restrict weights, const T* __restrict gradient,
                     absl::Span<const absl::Span<T>> slots) const {
  const bool moves = options_.momentum != 0.0;
  const auto step =
      options_.centered
          ? (moves ? &Step<true, true, T> : &Step<true, false, T>)
          : (moves ? &Step<false, true, T> : &Step<false, false, T>);
  step(options_, context.lr_scale, n, weights, gradient, slots);
}

template void Rmsprop::Update<float>(const StepContext&, int64_t, float*,
                                     const float*,
                                     absl::Span<const absl::Span<float>>) const;
template void Rmsprop::Update<double>(
    const StepContext&, int64_t, double*, const double*,
    absl::Span<const absl::Span<double>>) const;

}  // namespace weft::optimizer
