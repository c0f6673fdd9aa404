#include "weft/optimizer/rules/rowwise_adagrad.h"

#include <algorithm>
#include <cmath>

#include "weft/optimizer/rules/square_sum.h"

namespace weft::optimizer {
RowwiseAdagrad::RowwiseAdagrad(const RowwiseAdagradOptions& options)
    : OnBothTypes({{"accumulator", options.initial_accumulator,
                    /*is_per_row=*/true}}),
      options_(options) {}

template <typename T>
void RowwiseAdagrad::Update(const StepContext& context, int64_t n,
                            T* __restrict weights, const T* __restrict gradient,
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

template void RowwiseAdagrad::Update<float>(
    const StepContext&, int64_t, float*, const float*,
    absl::Span<const absl::Span<float>>) const;
template void RowwiseAdagrad::Update<double>(
    const StepContext&, int64_t, double*, const double*,
    absl::Span<const absl::Span<double>>) const;

}  // namespace weft::optimizer
