#include "weft/optimizer/rules/rule_numbers.h"

#include <cmath>
#include <variant>

namespace weft::optimizer {
namespace {

RuleNumbers NumbersOf(const SgdOptions& options, const StepContext& context) {
  // The first gradient enters the momentum whole, without dampening.
  const bool is_first = context.step == 1;
  return {options.lr * context.lr_scale,
          options.weight_decay,
          is_first ? 0.0 : options.momentum,
          is_first ? 1.0 : 1.0 - options.dampening,
          options.nesterov ? 1.0 : 0.0,
          options.nesterov ? options.momentum : 1.0};
}

template <typename Options>
RuleNumbers AdamNumbers(const Options& options, const StepContext& context,
                        double last) {
  const double t = static_cast<double>(context.step);
  const double correction1 = 1.0 - std::pow(options.beta1, t);
  const double correction2 = 1.0 - std::pow(options.beta2, t);
  return {options.lr * context.lr_scale / correction1,
          std::sqrt(correction2),
          options.beta1,
          options.beta2,
          options.epsilon,
          last};
}

RuleNumbers NumbersOf(const AdamOptions& options, const StepContext& context) {
  return AdamNumbers(options, context, options.weight_decay);
}

RuleNumbers NumbersOf(const AdamWOptions& options, const StepContext& context) {
  const double lr = options.lr * context.lr_scale;
  return AdamNumbers(options, context, 1.0 - lr * options.weight_decay);
}

RuleNumbers NumbersOf(const AdagradOptions& options,
                      const StepContext& context) {
  const double slowed =
      1.0 + static_cast<double>(context.step - 1) * options.lr_decay;
  return {options.lr * context.lr_scale / slowed, options.weight_decay,
          options.epsilon};
}

RuleNumbers NumbersOf(const FtrlOptions& options, const StepContext& context) {
  return {options.lr * context.lr_scale, options.beta, options.l1, options.l2};
}

RuleNumbers NumbersOf(const RmspropOptions& options,
                      const StepContext& context) {
  return {options.lr * context.lr_scale,
          options.alpha,
          options.epsilon,
          options.weight_decay,
          options.momentum,
          options.centered ? 1.0 : 0.0};
}

RuleNumbers NumbersOf(const AdadeltaOptions& options,
                      const StepContext& context) {
  return {options.lr * context.lr_scale, options.rho, options.epsilon,
          options.weight_decay};
}

RuleNumbers NumbersOf(const LionOptions& options, const StepContext& context) {
  const double lr = options.lr * context.lr_scale;
  return {lr, 1.0 - lr * options.weight_decay, options.beta1, options.beta2};
}

RuleNumbers NumbersOf(const LambOptions& options, const StepContext& context) {
  const double t = static_cast<double>(context.step);
  return {options.lr * context.lr_scale,
          1.0 - std::pow(options.beta1, t),
          std::sqrt(1.0 - std::pow(options.beta2, t)),
          options.beta1,
          options.beta2,
          options.epsilon,
          options.weight_decay};
}

RuleNumbers NumbersOf(const RowwiseAdagradOptions& options,
                      const StepContext& context) {
  return {options.lr * context.lr_scale, options.weight_decay, options.epsilon};
}

}  // namespace

RuleNumbers NumbersOf(const RuleOptions& options, const StepContext& context) {
  return std::visit([&](const auto& o) { return NumbersOf(o, context); },
                    options);
}

}  // namespace weft::optimizer
