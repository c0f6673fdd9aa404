// RuleSpec: rule options on the wire and back.
//
// A field that is absent on the wire means the default of rule_options.h.

#ifndef WEFT_OPTIMIZER_RULES_RULE_SPEC_H_
#define WEFT_OPTIMIZER_RULES_RULE_SPEC_H_

#include <memory>

#include "absl/status/statusor.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/proto/optimizer.pb.h"

namespace weft::optimizer {

v1::RuleSpec ToSpec(const RuleOptions& options, const ClipOptions& clip = {});

// The rule, without the limits of its gradient. kInvalidArgument if no rule is
// set, if it is one that this build does not know, or as Validate().
absl::StatusOr<RuleOptions> FromSpec(const v1::RuleSpec& spec);

// The limits of the gradient. kInvalidArgument as Validate().
absl::StatusOr<ClipOptions> ClipFromSpec(const v1::RuleSpec& spec);

// Both, then MakeRule: what a server does with a peer's message.
absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(const v1::RuleSpec& spec);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_RULE_SPEC_H_
