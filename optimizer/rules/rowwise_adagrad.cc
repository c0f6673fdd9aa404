// RowwiseAdagrad: see tensor/ops/update_rules.h. Norms are SquareSums.

#include <algorithm>
#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"
#include "weft/optimizer/rules/square_sum.h"
#include "weft/tensor/ops/update_rules.h"

namespace weft::optimizer {
namespace {

class RowwiseAdagrad final : public OnBothTypes<RowwiseAdagrad> {
 public:
  explicit RowwiseAdagrad(const RowwiseAdagradOptions& options)
      : OnBothTypes(options,
                    {{{"accumulator", options.initial_accumulator,
                       /*is_per_row=*/true}},
                     /*uses_step=*/false,
                     /*ignores_zero_gradient=*/options.weight_decay == 0.0,
                     Scope::kRow}) {}

  template <typename T>
  void Update(const RuleNumbers& numbers, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    constexpr int64_t kBlock = 32 * SquareSum::kLanes;
    const internal::RowwiseAdagrad<T> formula(numbers.data());
    SquareSum sum;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      T g[kBlock];
      for (int64_t j = 0; j < count; ++j) {
        g[j] = formula.Decayed(gradient[begin + j], weights[begin + j]);
      }
      sum.Add(g, count);
    }
    T& accumulator = slots[0][0];
    accumulator += static_cast<T>(sum.total() / static_cast<double>(n));
    const T size = formula.Size(accumulator);
    for (int64_t i = 0; i < n; ++i) {
      weights[i] -= size * formula.Decayed(gradient[i], weights[i]);
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(
    const RowwiseAdagradOptions& options) {
  return std::make_unique<RowwiseAdagrad>(options);
}

}  // namespace weft::optimizer
