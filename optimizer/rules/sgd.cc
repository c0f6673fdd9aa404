#include "weft/optimizer/rules/sgd.h"

#include <vector>

namespace weft::optimizer {
namespace {

std::vector<Slot> SlotsFor(const SgdOptions& options) {
  if (options.momentum == 0.0) return {};
  return {{"momentum", 0.0}};
}

}  // namespace

Sgd::Sgd(const SgdOptions& options)
    : OnBothTypes(SlotsFor(options)), options_(options) {}

template <typename T>
void Sgd::Update(const StepContext& context, int64_t n, T* __restrict weights,
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

template void Sgd::Update<float>(const StepContext&, int64_t, float*,
                                 const float*,
                                 absl::Span<const absl::Span<float>>) const;
template void Sgd::Update<double>(const StepContext&, int64_t, double*,
                                  const double*,
                                  absl::Span<const absl::Span<double>>) const;

}  // namespace weft::optimizer
