#include "weft/optimizer/kernel_operation.h"

#include <cmath>
#include <cstdint>
#include <variant>

#include "absl/strings/str_cat.h"

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

// No device has a kernel of the others.
template <typename Options>
Numbers NumbersOf(const Options& /*options*/, const StepContext& /*context*/) {
  return {};
}

}  // namespace

KernelOperation KernelOperationOf(const RuleOptions& options, UpdateKind kind,
                                  const StepContext& context) {
  KernelOperation operation;
  operation.name =
      absl::StrCat(RuleName(options), kind.is_sparse ? " of rows" : "",
                   kind.is_clipped ? " with clipped gradients" : "");
  operation.numbers =
      std::visit([&](const auto& o) { return NumbersOf(o, context); }, options);
  return operation;
}

}  // namespace weft::optimizer
