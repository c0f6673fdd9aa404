// RowwiseAdagrad: Adagrad with one sum of squares for a row.
//
// With g the gradient plus weight_decay * w, D the row's elements, and slot
// "accumulator", one value:
//   accumulator += |g|^2 / D
//   w -= lr / (sqrt(accumulator) + epsilon) * g
// A row of D weights takes D + 1 numbers, with Adagrad 2 * D.
// Source: rowwise_adagrad of FBGEMM's embedding tables (fbgemm_gpu/codegen,
// with its weight decay of mode L2).

#include <algorithm>
#include <cmath>
#include <memory>

#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"
#include "weft/optimizer/rules/square_sum.h"

namespace weft::optimizer {
namespace {

class RowwiseAdagrad final
    : public OnBothTypes<RowwiseAdagrad, RowwiseAdagradOptions> {
 public:
  explicit RowwiseAdagrad(const RowwiseAdagradOptions& options)
      : OnBothTypes(options, {{"accumulator", options.initial_accumulator,
                               /*is_per_row=*/true}}) {}

  Scope scope() const override { return Scope::kRow; }
  bool ignores_zero_gradient() const override {
    return options_.weight_decay == 0.0;
  }

  template <typename T>
  void Update(const StepContext& context, int64_t n, T* __restrict weights,
              const T* __restrict gradient,
              absl::Span<const absl::Span<T>> slots) const {
    constexpr int64_t kBlock = 32 * SquareSum::kLanes;
    const T decay = static_cast<T>(options_.weight_decay);
    SquareSum sum;
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t count = std::min(kBlock, n - begin);
      T g[kBlock];
      for (int64_t j = 0; j < count; ++j) {
        g[j] = gradient[begin + j] + decay * weights[begin + j];
      }
      sum.Add(g, count);
    }
    T& accumulator = slots[0][0];
    accumulator += static_cast<T>(sum.total() / static_cast<double>(n));
    const T lr = static_cast<T>(options_.lr * context.lr_scale);
    const T epsilon = static_cast<T>(options_.epsilon);
    const T size = lr / (std::sqrt(accumulator) + epsilon);
    for (int64_t i = 0; i < n; ++i) {
      weights[i] -= size * (gradient[i] + decay * weights[i]);
    }
  }
};

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(
    const RowwiseAdagradOptions& options) {
  return std::make_unique<RowwiseAdagrad>(options);
}

}  // namespace weft::optimizer
