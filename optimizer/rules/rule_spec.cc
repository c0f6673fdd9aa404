#include "weft/optimizer/rules/rule_spec.h"

#include <variant>

#include "weft/base/status_macros.h"

namespace weft::optimizer {
namespace {

// Copies one field both ways: an absent one keeps the default.
#define WEFT_READ(field) \
  if (spec.has_##field()) options.field = spec.field()
#define WEFT_WRITE(field) spec->set_##field(options.field)

SgdOptions Read(const v1::Sgd& spec) {
  SgdOptions options;
  WEFT_READ(lr);
  WEFT_READ(momentum);
  WEFT_READ(dampening);
  WEFT_READ(weight_decay);
  WEFT_READ(nesterov);
  return options;
}

template <typename Options, typename Spec>
Options ReadAdam(const Spec& spec) {
  Options options;
  WEFT_READ(lr);
  WEFT_READ(beta1);
  WEFT_READ(beta2);
  WEFT_READ(epsilon);
  WEFT_READ(weight_decay);
  return options;
}

AdagradOptions Read(const v1::Adagrad& spec) {
  AdagradOptions options;
  WEFT_READ(lr);
  WEFT_READ(lr_decay);
  WEFT_READ(weight_decay);
  WEFT_READ(initial_accumulator);
  WEFT_READ(epsilon);
  return options;
}

FtrlOptions Read(const v1::Ftrl& spec) {
  FtrlOptions options;
  WEFT_READ(lr);
  WEFT_READ(beta);
  WEFT_READ(l1);
  WEFT_READ(l2);
  WEFT_READ(initial_accumulator);
  return options;
}

void Write(const SgdOptions& options, v1::Sgd* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(momentum);
  WEFT_WRITE(dampening);
  WEFT_WRITE(weight_decay);
  WEFT_WRITE(nesterov);
}

template <typename Options, typename Spec>
void WriteAdam(const Options& options, Spec* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(beta1);
  WEFT_WRITE(beta2);
  WEFT_WRITE(epsilon);
  WEFT_WRITE(weight_decay);
}

void Write(const AdagradOptions& options, v1::Adagrad* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(lr_decay);
  WEFT_WRITE(weight_decay);
  WEFT_WRITE(initial_accumulator);
  WEFT_WRITE(epsilon);
}

void Write(const FtrlOptions& options, v1::Ftrl* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(beta);
  WEFT_WRITE(l1);
  WEFT_WRITE(l2);
  WEFT_WRITE(initial_accumulator);
}

#undef WEFT_READ
#undef WEFT_WRITE

void WriteTo(v1::RuleSpec& spec, const SgdOptions& o) {
  Write(o, spec.mutable_sgd());
}
void WriteTo(v1::RuleSpec& spec, const AdamOptions& o) {
  WriteAdam(o, spec.mutable_adam());
}
void WriteTo(v1::RuleSpec& spec, const AdamWOptions& o) {
  WriteAdam(o, spec.mutable_adamw());
}
void WriteTo(v1::RuleSpec& spec, const AdagradOptions& o) {
  Write(o, spec.mutable_adagrad());
}
void WriteTo(v1::RuleSpec& spec, const FtrlOptions& o) {
  Write(o, spec.mutable_ftrl());
}

absl::StatusOr<RuleOptions> ReadRule(const v1::RuleSpec& spec) {
  switch (spec.rule_case()) {
    case v1::RuleSpec::kSgd:
      return Read(spec.sgd());
    case v1::RuleSpec::kAdam:
      return ReadAdam<AdamOptions>(spec.adam());
    case v1::RuleSpec::kAdamw:
      return ReadAdam<AdamWOptions>(spec.adamw());
    case v1::RuleSpec::kAdagrad:
      return Read(spec.adagrad());
    case v1::RuleSpec::kFtrl:
      return Read(spec.ftrl());
    case v1::RuleSpec::RULE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "RuleSpec.rule is not set or unknown to this build, allowed are sgd, "
      "adam, adamw, adagrad, ftrl");
}

}  // namespace

v1::RuleSpec ToSpec(const RuleOptions& options) {
  v1::RuleSpec spec;
  std::visit([&spec](const auto& o) { WriteTo(spec, o); }, options);
  return spec;
}

absl::StatusOr<RuleOptions> FromSpec(const v1::RuleSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(RuleOptions options, ReadRule(spec));
  WEFT_RETURN_IF_ERROR(Validate(options));
  return options;
}

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(const v1::RuleSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(const RuleOptions options, FromSpec(spec));
  return MakeRule(options);
}

}  // namespace weft::optimizer
