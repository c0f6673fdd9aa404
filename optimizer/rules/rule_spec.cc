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
  WEFT_READ(amsgrad);
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

RmspropOptions Read(const v1::Rmsprop& spec) {
  RmspropOptions options;
  WEFT_READ(lr);
  WEFT_READ(alpha);
  WEFT_READ(epsilon);
  WEFT_READ(weight_decay);
  WEFT_READ(momentum);
  WEFT_READ(centered);
  return options;
}

AdadeltaOptions Read(const v1::Adadelta& spec) {
  AdadeltaOptions options;
  WEFT_READ(lr);
  WEFT_READ(rho);
  WEFT_READ(epsilon);
  WEFT_READ(weight_decay);
  return options;
}

LionOptions Read(const v1::Lion& spec) {
  LionOptions options;
  WEFT_READ(lr);
  WEFT_READ(beta1);
  WEFT_READ(beta2);
  WEFT_READ(weight_decay);
  return options;
}

LambOptions Read(const v1::Lamb& spec) {
  LambOptions options;
  WEFT_READ(lr);
  WEFT_READ(beta1);
  WEFT_READ(beta2);
  WEFT_READ(epsilon);
  WEFT_READ(weight_decay);
  return options;
}

RowwiseAdagradOptions Read(const v1::RowwiseAdagrad& spec) {
  RowwiseAdagradOptions options;
  WEFT_READ(lr);
  WEFT_READ(epsilon);
  WEFT_READ(weight_decay);
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
  WEFT_WRITE(amsgrad);
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

void Write(const RmspropOptions& options, v1::Rmsprop* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(alpha);
  WEFT_WRITE(epsilon);
  WEFT_WRITE(weight_decay);
  WEFT_WRITE(momentum);
  WEFT_WRITE(centered);
}

void Write(const AdadeltaOptions& options, v1::Adadelta* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(rho);
  WEFT_WRITE(epsilon);
  WEFT_WRITE(weight_decay);
}

void Write(const LionOptions& options, v1::Lion* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(beta1);
  WEFT_WRITE(beta2);
  WEFT_WRITE(weight_decay);
}

void Write(const LambOptions& options, v1::Lamb* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(beta1);
  WEFT_WRITE(beta2);
  WEFT_WRITE(epsilon);
  WEFT_WRITE(weight_decay);
}

void Write(const RowwiseAdagradOptions& options, v1::RowwiseAdagrad* spec) {
  WEFT_WRITE(lr);
  WEFT_WRITE(epsilon);
  WEFT_WRITE(weight_decay);
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
void WriteTo(v1::RuleSpec& spec, const RmspropOptions& o) {
  Write(o, spec.mutable_rmsprop());
}
void WriteTo(v1::RuleSpec& spec, const AdadeltaOptions& o) {
  Write(o, spec.mutable_adadelta());
}
void WriteTo(v1::RuleSpec& spec, const LionOptions& o) {
  Write(o, spec.mutable_lion());
}
void WriteTo(v1::RuleSpec& spec, const LambOptions& o) {
  Write(o, spec.mutable_lamb());
}
void WriteTo(v1::RuleSpec& spec, const RowwiseAdagradOptions& o) {
  Write(o, spec.mutable_rowwise_adagrad());
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
    case v1::RuleSpec::kRmsprop:
      return Read(spec.rmsprop());
    case v1::RuleSpec::kAdadelta:
      return Read(spec.adadelta());
    case v1::RuleSpec::kLion:
      return Read(spec.lion());
    case v1::RuleSpec::kLamb:
      return Read(spec.lamb());
    case v1::RuleSpec::kRowwiseAdagrad:
      return Read(spec.rowwise_adagrad());
    case v1::RuleSpec::RULE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "RuleSpec.rule is not set or unknown to this build, allowed are sgd, "
      "adam, adamw, adagrad, ftrl, rmsprop, adadelta, lion, lamb, "
      "rowwise_adagrad");
}

}  // namespace

v1::RuleSpec ToSpec(const RuleOptions& options, const ClipOptions& clip) {
  v1::RuleSpec spec;
  std::visit([&spec](const auto& o) { WriteTo(spec, o); }, options);
  if (clip.value != 0.0) spec.set_clip_value(clip.value);
  if (clip.norm != 0.0) spec.set_clip_norm(clip.norm);
  return spec;
}

absl::StatusOr<RuleOptions> FromSpec(const v1::RuleSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(RuleOptions options, ReadRule(spec));
  WEFT_RETURN_IF_ERROR(Validate(options));
  return options;
}

absl::StatusOr<ClipOptions> ClipFromSpec(const v1::RuleSpec& spec) {
  const ClipOptions clip = {spec.clip_value(), spec.clip_norm()};
  WEFT_RETURN_IF_ERROR(Validate(clip));
  return clip;
}

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(const v1::RuleSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(const RuleOptions options, FromSpec(spec));
  WEFT_ASSIGN_OR_RETURN(const ClipOptions clip, ClipFromSpec(spec));
  return MakeRule(options, clip);
}

}  // namespace weft::optimizer
