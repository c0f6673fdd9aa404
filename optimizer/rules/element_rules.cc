// Rules of scope kElement: the formulas of tensor/ops/update_rules.h, in a
// loop.

#include <memory>
#include <vector>

#include "absl/base/attributes.h"
#include "weft/optimizer/rules/on_both_types.h"
#include "weft/optimizer/rules/rules.h"
#include "weft/tensor/ops/update_rules.h"

namespace weft::optimizer {
namespace {

template <template <typename> typename Formula>
class ElementRule final : public OnBothTypes<ElementRule<Formula>> {
 public:
  using OnBothTypes<ElementRule<Formula>>::OnBothTypes;

  template <typename T>
  void Update(const RuleNumbers& numbers, int64_t n, T* weights,
              const T* gradient, absl::Span<const absl::Span<T>> slots) const {
    T* arrays[3] = {};
    for (size_t i = 0; i < slots.size(); ++i) arrays[i] = slots[i].data();
    internal::WithSlots<Formula<T>>(
        arrays, static_cast<int>(slots.size()),
        [&](auto*... each) { Loop(numbers, n, weights, gradient, each...); });
  }

 private:
  // In a function of its own the numbers stay in registers.
  template <typename T, typename... Slots>
  ABSL_ATTRIBUTE_NOINLINE static void Loop(const RuleNumbers& numbers,
                                           int64_t n, T* __restrict weights,
                                           const T* __restrict gradient,
                                           Slots* __restrict... slots) {
    const Formula<T> formula(numbers.data());
    for (int64_t i = 0; i < n; ++i) {
      formula.Apply(gradient[i], weights[i], slots[i]...);
    }
  }
};

template <template <typename> typename Formula>
std::unique_ptr<UpdateRule> Make(const RuleOptions& options,
                                 RuleTraits traits) {
  return std::make_unique<ElementRule<Formula>>(options, std::move(traits));
}

RuleTraits AdamTraits(bool amsgrad) {
  RuleTraits traits = {{{"m"}, {"v"}}, /*uses_step=*/true};
  if (amsgrad) traits.slots.push_back({"v_max"});
  return traits;
}

}  // namespace

std::unique_ptr<UpdateRule> MakeUnclipped(const SgdOptions& options) {
  RuleTraits traits;
  if (options.momentum != 0.0) traits.slots.push_back({"momentum"});
  // The momentum starts at 0, so that only dampening knows the first step.
  traits.uses_step = options.momentum != 0.0 && options.dampening != 0.0;
  traits.ignores_zero_gradient =
      options.momentum == 0.0 && options.weight_decay == 0.0;
  return Make<internal::Sgd>(options, std::move(traits));
}

std::unique_ptr<UpdateRule> MakeUnclipped(const AdamOptions& options) {
  return Make<internal::Adam>(options, AdamTraits(options.amsgrad));
}

std::unique_ptr<UpdateRule> MakeUnclipped(const AdamWOptions& options) {
  return Make<internal::AdamW>(options, AdamTraits(options.amsgrad));
}

std::unique_ptr<UpdateRule> MakeUnclipped(const AdagradOptions& options) {
  return Make<internal::Adagrad>(
      options, {{{"accumulator", options.initial_accumulator}},
                /*uses_step=*/options.lr_decay != 0.0,
                /*ignores_zero_gradient=*/options.weight_decay == 0.0});
}

std::unique_ptr<UpdateRule> MakeUnclipped(const FtrlOptions& options) {
  return Make<internal::Ftrl>(options,
                              {{{"z"}, {"n", options.initial_accumulator}},
                               /*uses_step=*/false,
                               /*ignores_zero_gradient=*/true});
}

std::unique_ptr<UpdateRule> MakeUnclipped(const RmspropOptions& options) {
  RuleTraits traits = {{{"square_avg"}}};
  if (options.centered) traits.slots.push_back({"grad_avg"});
  if (options.momentum != 0.0) traits.slots.push_back({"momentum"});
  return Make<internal::Rmsprop>(options, std::move(traits));
}

std::unique_ptr<UpdateRule> MakeUnclipped(const AdadeltaOptions& options) {
  return Make<internal::Adadelta>(options, {{{"square_avg"}, {"acc_delta"}}});
}

std::unique_ptr<UpdateRule> MakeUnclipped(const LionOptions& options) {
  return Make<internal::Lion>(options, {{{"m"}}});
}

}  // namespace weft::optimizer
