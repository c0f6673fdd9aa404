#include "weft/optimizer/rules/rule_options.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "weft/base/status_macros.h"

namespace weft::optimizer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Range = RuleField::Range;
using Fields = std::vector<RuleField>;

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

Fields FieldsOf(SgdOptions& o) {
  return {{"lr", &o.lr, kNotNegative},
          {"momentum", &o.momentum, kBelowOne},
          {"dampening", &o.dampening, kUpToOne},
          {"weight_decay", &o.weight_decay, kNotNegative},
          {"nesterov", &o.nesterov}};
}

template <typename AdamLike>
Fields FieldsOfAdam(AdamLike& o) {
  return {{"lr", &o.lr, kNotNegative},
          {"beta1", &o.beta1, kBelowOne},
          {"beta2", &o.beta2, kBelowOne},
          {"epsilon", &o.epsilon, kPositive},
          {"weight_decay", &o.weight_decay, kNotNegative}};
}

template <typename AdamLike>
Fields WithAmsgrad(AdamLike& o) {
  Fields fields = FieldsOfAdam(o);
  fields.push_back({"amsgrad", &o.amsgrad});
  return fields;
}

Fields FieldsOf(AdamOptions& o) { return WithAmsgrad(o); }

Fields FieldsOf(AdamWOptions& o) { return WithAmsgrad(o); }

Fields FieldsOf(LambOptions& o) { return FieldsOfAdam(o); }

template <typename AdagradLike>
Fields FieldsOfAdagrad(AdagradLike& o) {
  return {{"lr", &o.lr, kNotNegative},
          {"weight_decay", &o.weight_decay, kNotNegative},
          {"initial_accumulator", &o.initial_accumulator, kNotNegative},
          // A first gradient of 0 would be 0 / sqrt(0).
          {"epsilon", &o.epsilon,
           o.initial_accumulator > 0.0 ? kNotNegative : kPositive}};
}

Fields FieldsOf(AdagradOptions& o) {
  Fields fields = FieldsOfAdagrad(o);
  fields.push_back({"lr_decay", &o.lr_decay, kNotNegative});
  return fields;
}

Fields FieldsOf(RowwiseAdagradOptions& o) { return FieldsOfAdagrad(o); }

Fields FieldsOf(FtrlOptions& o) {
  return {{"lr", &o.lr, kPositive},
          {"beta", &o.beta, kNotNegative},
          {"l1", &o.l1, kNotNegative},
          {"l2", &o.l2, kNotNegative},
          {"initial_accumulator", &o.initial_accumulator, kNotNegative}};
}

Fields FieldsOf(RmspropOptions& o) {
  return {{"lr", &o.lr, kNotNegative},
          {"alpha", &o.alpha, kBelowOne},
          {"epsilon", &o.epsilon, kPositive},
          {"weight_decay", &o.weight_decay, kNotNegative},
          {"momentum", &o.momentum, kBelowOne},
          {"centered", &o.centered}};
}

Fields FieldsOf(AdadeltaOptions& o) {
  return {{"lr", &o.lr, kNotNegative},
          {"rho", &o.rho, kBelowOne},
          {"epsilon", &o.epsilon, kPositive},
          {"weight_decay", &o.weight_decay, kNotNegative}};
}

Fields FieldsOf(LionOptions& o) {
  return {{"lr", &o.lr, kNotNegative},
          {"beta1", &o.beta1, kBelowOne},
          {"beta2", &o.beta2, kBelowOne},
          {"weight_decay", &o.weight_decay, kNotNegative}};
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

std::vector<RuleField> FieldsOf(RuleOptions& options) {
  return std::visit([](auto& o) { return FieldsOf(o); }, options);
}

absl::Status Validate(const RuleOptions& options) {
  RuleOptions checked = options;
  for (const RuleField& field : FieldsOf(checked)) {
    if (const auto* const value = std::get_if<double*>(&field.value)) {
      WEFT_RETURN_IF_ERROR(
          Check(RuleName(options), field.name, **value, field.range));
    }
  }
  const auto* const sgd = std::get_if<SgdOptions>(&options);
  if (sgd != nullptr && sgd->nesterov &&
      (sgd->momentum == 0.0 || sgd->dampening != 0.0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sgd.nesterov is true with momentum ", sgd->momentum, " and dampening ",
        sgd->dampening, ", allowed only with momentum > 0 and dampening = 0"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const ClipOptions& clip) {
  WEFT_RETURN_IF_ERROR(
      Check("RuleSpec", "clip_value", clip.value, kNotNegative));
  return Check("RuleSpec", "clip_norm", clip.norm, kNotNegative);
}

}  // namespace weft::optimizer
