#include "weft/optimizer/rules/clipped.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/fixed_array.h"
#include "absl/container/inlined_vector.h"
#include "weft/base/check.h"
#include "weft/optimizer/rules/square_sum.h"

namespace weft::optimizer {
namespace {

constexpr size_t kBlock = 1024;

// Clips a gradient whose sum of squares overflows, or that has an infinite
// element.
template <typename T>
void ClipHuge(double most, int64_t n, T* __restrict out) {
  T largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(out[i]));
  // With an infinite element the factor is 0: finite elements become 0,
  // infinite ones NaN.
  if (std::isinf(largest)) {
    for (int64_t i = 0; i < n; ++i) out[i] *= T{0};
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] /= largest;
  SquareSum sum;
  sum.Add(out, n);
  const T factor = static_cast<T>(most / std::sqrt(sum.total()));
  for (int64_t i = 0; i < n; ++i) out[i] *= factor;
}

template <typename T>
void Clip(const ClipOptions& clip, const T* __restrict gradient, int64_t n,
          T* __restrict out) {
  if (clip.value > 0.0) {
    const T most = static_cast<T>(clip.value);
    for (int64_t i = 0; i < n; ++i) {
      const T g = gradient[i];
      out[i] = g > most ? most : (g < -most ? -most : g);
    }
  } else {
    std::copy_n(gradient, n, out);
  }
  if (clip.norm == 0.0) return;
  SquareSum sum;
  sum.Add(out, n);
  const double norm = std::sqrt(sum.total());
  if (!(norm > clip.norm)) return;
  if (std::isinf(norm)) return ClipHuge(clip.norm, n, out);
  const T factor = static_cast<T>(clip.norm / norm);
  for (int64_t i = 0; i < n; ++i) out[i] *= factor;
}

}  // namespace

Clipped::Clipped(std::unique_ptr<UpdateRule> rule, const ClipOptions& clip)
    : rule_(std::move(rule)), clip_(clip) {}

Scope Clipped::scope() const {
  const Scope scope = rule_->scope();
  return clip_.norm > 0.0 && scope == Scope::kElement ? Scope::kRow : scope;
}

template <typename T>
void Clipped::ApplyAs(const StepContext& context, absl::Span<T> weights,
                      absl::Span<const T> gradient,
                      absl::Span<const absl::Span<T>> slots) const {
  WEFT_CHECK_EQ(gradient.size(), weights.size());
  const size_t n = gradient.size();
  const size_t block = scope() == Scope::kElement ? std::min(n, kBlock) : n;
  absl::FixedArray<T> clipped(block);
  absl::InlinedVector<absl::Span<T>, 4> parts(slots.begin(), slots.end());
  for (size_t begin = 0; begin < n; begin += block) {
    const size_t count = std::min(block, n - begin);
    Clip(clip_, gradient.data() + begin, static_cast<int64_t>(count),
         clipped.data());
    if (block < n) {  // then no slot is per row
      for (size_t s = 0; s < slots.size(); ++s) {
        parts[s] = slots[s].subspan(begin, count);
      }
    }
    rule_->Apply(context, weights.subspan(begin, count),
                 absl::MakeConstSpan(clipped.data(), count), parts);
  }
}

void Clipped::Apply(const StepContext& context, absl::Span<float> weights,
                    absl::Span<const float> gradient,
                    absl::Span<const absl::Span<float>> slots) const {
  ApplyAs<float>(context, weights, gradient, slots);
}

void Clipped::Apply(const StepContext& context, absl::Span<double> weights,
                    absl::Span<const double> gradient,
                    absl::Span<const absl::Span<double>> slots) const {
  ApplyAs<double>(context, weights, gradient, slots);
}

}  // namespace weft::optimizer
