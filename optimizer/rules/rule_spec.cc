#include "weft/optimizer/rules/rule_spec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <variant>

#include "weft/base/check.h"
#include "weft/base/status_macros.h"

namespace weft::optimizer {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const FieldDescriptor* FieldNamed(const Message& message,
                                  const std::string& name) {
  const FieldDescriptor* const field =
      message.GetDescriptor()->FindFieldByName(name);
  WEFT_CHECK(field != nullptr) << name;
  return field;
}

void Read(const Message& message, const FieldDescriptor* field, double* value) {
  *value = message.GetReflection()->GetDouble(message, field);
}
void Read(const Message& message, const FieldDescriptor* field, bool* value) {
  *value = message.GetReflection()->GetBool(message, field);
}
void Write(Message* message, const FieldDescriptor* field, double* value) {
  message->GetReflection()->SetDouble(message, field, *value);
}
void Write(Message* message, const FieldDescriptor* field, bool* value) {
  message->GetReflection()->SetBool(message, field, *value);
}

// An absent field keeps the default.
absl::StatusOr<RuleOptions> ReadRule(const v1::RuleSpec& spec) {
  const Reflection* const of_spec = spec.GetReflection();
  const FieldDescriptor* const set = of_spec->GetOneofFieldDescriptor(
      spec, v1::RuleSpec::descriptor()->FindOneofByName("rule"));
  if (set == nullptr) {
    return absl::InvalidArgumentError(
        "RuleSpec.rule is not set or unknown to this build, allowed are sgd, "
        "adam, adamw, adagrad, ftrl, rmsprop, adadelta, lion, lamb, "
        "rowwise_adagrad");
  }
  WEFT_ASSIGN_OR_RETURN(RuleOptions options, RuleNamed(set->name()));
  const Message& rule = of_spec->GetMessage(spec, set);
  for (const auto& [name, value, range] : FieldsOf(options)) {
    const FieldDescriptor* const field = FieldNamed(rule, name);
    if (!rule.GetReflection()->HasField(rule, field)) continue;
    std::visit([&](auto* to) { Read(rule, field, to); }, value);
  }
  return options;
}

}  // namespace

v1::RuleSpec ToSpec(const RuleOptions& options, const ClipOptions& clip) {
  v1::RuleSpec spec;
  Message* const rule = spec.GetReflection()->MutableMessage(
      &spec, FieldNamed(spec, std::string(RuleName(options))));
  RuleOptions written = options;
  for (const auto& [name, value, range] : FieldsOf(written)) {
    const FieldDescriptor* const field = FieldNamed(*rule, name);
    std::visit([&](auto* from) { Write(rule, field, from); }, value);
  }
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
