#include "weft/optimizer/rules/rule_options.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"

namespace weft::optimizer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An interval of allowed values; infinite values and NaN are never allowed.
struct Range {
  double low;
  double high;
  bool low_allowed;
  bool high_allowed;
};
constexpr Range kNotNegative = {0.0, kInfinity, true, false};
constexpr Range kPositive = {0.0, kInfinity, false, false};
constexpr Range kBelowOne = {0.0, 1.0, true, false};
constexpr Range kUpToOne = {0.0, 1.0, true, true};

absl::Status Check(absl::string_view rule, absl::string_view field,
                   double value, const Range& range) {
  const bool above = range.low_allowed ? value >= range.low : value > range.low;
  const bool below =
      range.high_allowed ? value <= range.high : value < range.high;
  if (std::isfinite(value) && above && below) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(rule, ".", field, " is ", value, ", allowed is ",
                   range.low_allowed ? "[" : "(", range.low, ", ",
                   range.high == kInfinity ? "inf" : absl::StrCat(range.high),
                   range.high_allowed ? "]" : ")"));
}

absl::Status ValidateRule(const SgdOptions& o) {
  WEFT_RETURN_IF_ERROR(Check("sgd", "lr", o.lr, kNotNegative));
  WEFT_RETURN_IF_ERROR(Check("sgd", "momentum", o.momentum, kBelowOne));
  WEFT_RETURN_IF_ERROR(Check("sgd", "dampening", o.dampening, kUpToOne));
  WEFT_RETURN_IF_ERROR(
      Check("sgd", "weight_decay", o.weight_decay, kNotNegative));
  if (o.nesterov && (o.momentum == 0.0 || o.dampening != 0.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sgd.nesterov is true with momentum ", o.momentum, " and dampening ",
        o.dampening, ", allowed only with momentum > 0 and dampening = 0"));
  }
  return absl::OkStatus();
}

template <typename AdamLike>
absl::Status ValidateAdam(absl::string_view rule, const AdamLike& o) {
  WEFT_RETURN_IF_ERROR(Check(rule, "lr", o.lr, kNotNegative));
  WEFT_RETURN_IF_ERROR(Check(rule, "beta1", o.beta1, kBelowOne));
  WEFT_RETURN_IF_ERROR(Check(rule, "beta2", o.beta2, kBelowOne));
  WEFT_RETURN_IF_ERROR(Check(rule, "epsilon", o.epsilon, kPositive));
  return Check(rule, "weight_decay", o.weight_decay, kNotNegative);
}

absl::Status ValidateRule(const AdamOptions& o) {
  return ValidateAdam("adam", o);
}

absl::Status ValidateRule(const AdamWOptions& o) {
  return ValidateAdam("adamw", o);
}

template <typename AdagradLike>
absl::Status ValidateAdagrad(absl::string_view rule, const AdagradLike& o) {
  WEFT_RETURN_IF_ERROR(Check(rule, "lr", o.lr, kNotNegative));
  WEFT_RETURN_IF_ERROR(
      Check(rule, "weight_decay", o.weight_decay, kNotNegative));
  WEFT_RETURN_IF_ERROR(
      Check(rule, "initial_accumulator", o.initial_accumulator, kNotNegative));
  // A first gradient of 0 would be 0 / sqrt(0).
  return Check(rule, "epsilon", o.epsilon,
               o.initial_accumulator > 0.0 ? kNotNegative : kPositive);
}

absl::Status ValidateRule(const AdagradOptions& o) {
  WEFT_RETURN_IF_ERROR(Check("adagrad", "lr_decay", o.lr_decay, kNotNegative));
  return ValidateAdagrad("adagrad", o);
}

absl::Status ValidateRule(const FtrlOptions& o) {
  WEFT_RETURN_IF_ERROR(Check("ftrl", "lr", o.lr, kPositive));
  WEFT_RETURN_IF_ERROR(Check("ftrl", "beta", o.beta, kNotNegative));
  WEFT_RETURN_IF_ERROR(Check("ftrl", "l1", o.l1, kNotNegative));
  WEFT_RETURN_IF_ERROR(Check("ftrl", "l2", o.l2, kNotNegative));
  return Check("ftrl", "initial_accumulator", o.initial_accumulator,
               kNotNegative);
}

absl::Status ValidateRule(const RmspropOptions& o) {
  WEFT_RETURN_IF_ERROR(Check("rmsprop", "lr", o.lr, kNotNegative));
  WEFT_RETURN_IF_ERROR(Check("rmsprop", "alpha", o.alpha, kBelowOne));
  WEFT_RETURN_IF_ERROR(Check("rmsprop", "epsilon", o.epsilon, kPositive));
  WEFT_RETURN_IF_ERROR(Check("rmsprop", "momentum", o.momentum, kBelowOne));
  return Check("rmsprop", "weight_decay", o.weight_decay, kNotNegative);
}

absl::Status ValidateRule(const AdadeltaOptions& o) {
  WEFT_RETURN_IF_ERROR(Check("adadelta", "lr", o.lr, kNotNegative));
  WEFT_RETURN_IF_ERROR(Check("adadelta", "rho", o.rho, kBelowOne));
  WEFT_RETURN_IF_ERROR(Check("adadelta", "epsilon", o.epsilon, kPositive));
  return Check("adadelta", "weight_decay", o.weight_decay, kNotNegative);
}

absl::Status ValidateRule(const LionOptions& o) {
  WEFT_RETURN_IF_ERROR(Check("lion", "lr", o.lr, kNotNegative));
  WEFT_RETURN_IF_ERROR(Check("lion", "beta1", o.beta1, kBelowOne));
  WEFT_RETURN_IF_ERROR(Check("lion", "beta2", o.beta2, kBelowOne));
  return Check("lion", "weight_decay", o.weight_decay, kNotNegative);
}

absl::Status ValidateRule(const LambOptions& o) {
  return ValidateAdam("lamb", o);
}

absl::Status ValidateRule(const RowwiseAdagradOptions& o) {
  return ValidateAdagrad("rowwise_adagrad", o);
}

constexpr absl::string_view kNames[] = {
    "sgd",     "adam",     "adamw", "adagrad", "ftrl",
    "rmsprop", "adadelta", "lion",  "lamb",    "rowwise_adagrad"};
static_assert(std::size(kNames) == std::variant_size_v<RuleOptions>);

// The alternative of that index.
template <size_t kIndex = 0>
RuleOptions DefaultsOf(size_t index) {
  if constexpr (kIndex + 1 < std::variant_size_v<RuleOptions>) {
    if (index != kIndex) return DefaultsOf<kIndex + 1>(index);
  }
  return std::variant_alternative_t<kIndex, RuleOptions>();
}

}  // namespace

absl::string_view RuleName(const RuleOptions& options) {
  return kNames[options.index()];
}

absl::StatusOr<RuleOptions> RuleNamed(absl::string_view name) {
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name) return DefaultsOf(i);
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no update rule '",
                                                 name, "'; allowed are ",
                                                 absl::StrJoin(kNames, ", ")));
}

double LearningRate(const RuleOptions& options) {
  return std::visit([](const auto& o) { return o.lr; }, options);
}

void SetLearningRate(RuleOptions& options, double lr) {
  std::visit([lr](auto& o) { o.lr = lr; }, options);
}

absl::Status Validate(const RuleOptions& options) {
  return std::visit([](const auto& o) { return ValidateRule(o); }, options);
}

absl::Status Validate(const ClipOptions& clip) {
  WEFT_RETURN_IF_ERROR(
      Check("RuleSpec", "clip_value", clip.value, kNotNegative));
  return Check("RuleSpec", "clip_norm", clip.norm, kNotNegative);
}

}  // namespace weft::optimizer
