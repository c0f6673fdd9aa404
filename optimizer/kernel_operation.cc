#include "weft/optimizer/kernel_operation.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>

namespace weft::optimizer {
namespace {

using Numbers = std::array<double, internal::Operation::kMaxNumbers>;

// The numbers of Sgd::Update: lr, decay, kept, taken, ahead, speed.
Numbers NumbersOf(const SgdOptions& options, const StepContext& context) {
  // The first gradient enters the momentum whole, without dampening.
  const bool is_first = context.step == 1;
  return {options.lr * context.lr_scale,
          options.weight_decay,
          is_first ? 0.0 : options.momentum,
          is_first ? 1.0 : 1.0 - options.dampening,
          options.nesterov ? 1.0 : 0.0,
          options.nesterov ? options.momentum : 1.0};
}

// The numbers of Step in rules/adam.cc: step size, root of the second
// correction, beta1, beta2, epsilon, `last`.
template <typename Options>
Numbers AdamNumbers(const Options& options, const StepContext& context,
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

Numbers NumbersOf(const AdamOptions& options, const StepContext& context) {
  return AdamNumbers(options, context, options.weight_decay);
}

Numbers NumbersOf(const AdamWOptions& options, const StepContext& context) {
  const double lr = options.lr * context.lr_scale;
  return AdamNumbers(options, context, 1.0 - lr * options.weight_decay);
}

Numbers NumbersOf(const AdagradOptions& options, const StepContext& context) {
  const double slowed =
      1.0 + static_cast<double>(context.step - 1) * options.lr_decay;
  return {options.lr * context.lr_scale / slowed, options.weight_decay,
          options.epsilon};
}

Numbers NumbersOf(const FtrlOptions& options, const StepContext& context) {
  return {options.lr * context.lr_scale, options.beta, options.l1, options.l2};
}

Numbers NumbersOf(const RmspropOptions& options, const StepContext& context) {
  return {options.lr * context.lr_scale,
          options.alpha,
          options.epsilon,
          options.weight_decay,
          options.momentum,
          options.centered ? 1.0 : 0.0};
}

Numbers NumbersOf(const AdadeltaOptions& options, const StepContext& context) {
  return {options.lr * context.lr_scale, options.rho, options.epsilon,
          options.weight_decay};
}

Numbers NumbersOf(const LionOptions& options, const StepContext& context) {
  const double lr = options.lr * context.lr_scale;
  return {lr, 1.0 - lr * options.weight_decay, options.beta1, options.beta2};
}

Numbers NumbersOf(const LambOptions& options, const StepContext& context) {
  const double t = static_cast<double>(context.step);
  return {options.lr * context.lr_scale,
          1.0 - std::pow(options.beta1, t),
          std::sqrt(1.0 - std::pow(options.beta2, t)),
          options.beta1,
          options.beta2,
          options.epsilon,
          options.weight_decay};
}

Numbers NumbersOf(const RowwiseAdagradOptions& options,
                  const StepContext& context) {
  return {options.lr * context.lr_scale, options.weight_decay, options.epsilon};
}

}  // namespace

KernelOperation KernelOperationOf(const RuleOptions& options,
                                  const ClipOptions& clip,
                                  const StepContext& context) {
  KernelOperation operation;
  operation.name = std::string(RuleName(options));
  operation.numbers =
      std::visit([&](const auto& o) { return NumbersOf(o, context); }, options);
  operation.numbers[KernelOperation::kClipValue] = clip.value;
  operation.numbers[KernelOperation::kClipNorm] = clip.norm;
  return operation;
}

}  // namespace weft::optimizer
