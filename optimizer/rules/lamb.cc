// Lamb: see tensor/ops/update_rules.h. Norms are SquareSums.

#include <algorithm>
#include <cmath>
#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"
#include "weft/optimizer/rules/square_sum.h"
#include "weft/tensor/ops/update_rules.h"

namespace weft::optimizer {
namespace {

class Lamb final : public OnBothTypes<Lamb> {
 public:
  explicit Lamb(const LambOptions& options)
      : OnBothTypes(options, {{{"m"}, {"v"}},
                              /*uses_step=*/true,
                              /*ignores_zero_gradient=*/false,
                              Scope::kParameter}) {}

  template <typename T>
  void Update(const RuleNumbers& numbers, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    constexpr int64_t kBlock = 32 * SquareSum::kLanes;
    const internal::Lamb<T> formula(numbers.data());
    T* __restrict m = slots[0].data();
    T* __restrict v = slots[1].data();
    SquareSum of_weights;
    SquareSum of_steps;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      T steps[kBlock];
      for (int64_t j = 0; j < count; ++j) {
        const int64_t i = begin + j;
        formula.Average(gradient[i], m[i], v[i]);
        steps[j] = formula.Step(weights[i], m[i], v[i]);
      }
      of_weights.Add(weights + begin, count);
      of_steps.Add(steps, count);
    }
    const T size = formula.Size(std::sqrt(of_weights.total()),
                                std::sqrt(of_steps.total()));
    // Steps are worked out again: keeping them would take memory for all.
    for (int64_t i = 0; i < n; ++i) {
      weights[i] -= size * formula.Step(weights[i], m[i], v[i]);
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const LambOptions& options) {
  return std::make_unique<Lamb>(options);
}

}  // namespace weft::optimizer
