// Lamb: Adam's steps, scaled to the size of the weights that they change.
//
// With slots "m" and "v" and t the step:
//   m = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   u = m / (1 - beta1^t) / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
//       + weight_decay * w
//   w -= lr * |w| / |u| * u
// The norms are Euclidean, of a whole parameter: in a sparse table of a row.
// Their ratio is 1 where one of them is 0, so that weights that begin at 0
// learn. It is not clipped (the paper's phi is the identity).
// Source: You et al., "Large batch optimization for deep learning: training
// BERT in 76 minutes", ICLR 2020, algorithm 2.

#include <algorithm>
#include <cmath>
#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"
#include "weft/optimizer/rules/square_sum.h"

namespace weft::optimizer {
namespace {

// The numbers of one step.
template <typename T>
struct Factors {
  T correction;  // 1 - beta1^t
  T root;        // sqrt(1 - beta2^t)
  T epsilon;
  T decay;

  T Step(T weight, T m, T v) const {
    return m / correction / (std::sqrt(v) / root + epsilon) + decay * weight;
  }
};

double Ratio(const SquareSum& weights, const SquareSum& steps) {
  const double of_weights = std::sqrt(weights.total());
  const double of_steps = std::sqrt(steps.total());
  return of_weights > 0.0 && of_steps > 0.0 ? of_weights / of_steps : 1.0;
}

class Lamb final : public OnBothTypes<Lamb, LambOptions> {
 public:
  explicit Lamb(const LambOptions& options)
      : OnBothTypes(options, {{"m", 0.0}, {"v", 0.0}}) {}

  Scope scope() const override { return Scope::kParameter; }
  bool uses_step() const override { return true; }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    constexpr int64_t kBlock = 32 * SquareSum::kLanes;
    const double t = static_cast<double>(context.step);
    Factors<T> factors;
    factors.correction = static_cast<T>(1.0 - std::pow(options_.beta1, t));
    factors.root = static_cast<T>(std::sqrt(1.0 - std::pow(options_.beta2, t)));
    factors.epsilon = static_cast<T>(options_.epsilon);
    factors.decay = static_cast<T>(options_.weight_decay);
    const T beta1 = static_cast<T>(options_.beta1);
    const T beta2 = static_cast<T>(options_.beta2);
    const T rest1 = static_cast<T>(1.0 - options_.beta1);
    const T rest2 = static_cast<T>(1.0 - options_.beta2);
    T* __restrict m = slots[0].data();
    T* __restrict v = slots[1].data();
    SquareSum of_weights;
    SquareSum of_steps;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      T steps[kBlock];
      for (int64_t j = 0; j < count; ++j) {
        const int64_t i = begin + j;
        const T g = gradient[i];
        m[i] = beta1 * m[i] + rest1 * g;
        v[i] = beta2 * v[i] + rest2 * g * g;
        steps[j] = factors.Step(weights[i], m[i], v[i]);
      }
      of_weights.Add(weights + begin, count);
      of_steps.Add(steps, count);
    }
    const T size = static_cast<T>(options_.lr * context.lr_scale *
                                  Ratio(of_weights, of_steps));
    // Steps are worked out again: keeping them would take memory for all.
    for (int64_t i = 0; i < n; ++i) {
      weights[i] -= size * factors.Step(weights[i], m[i], v[i]);
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const LambOptions& options) {
  return std::make_unique<Lamb>(options);
}

}  // namespace weft::optimizer
