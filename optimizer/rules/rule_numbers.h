// RuleNumbers: what the formula of a rule needs beside weights, slots and
// gradient, at one step.
//
// Which numbers these are, and in which order, the formulas say:
// tensor/ops/update_rules.h, and of rules that look at norms
// tensor/cuda/update.h. The rest are 0.

#ifndef WEFT_OPTIMIZER_RULES_RULE_NUMBERS_H_
#define WEFT_OPTIMIZER_RULES_RULE_NUMBERS_H_

#include <array>

#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"

namespace weft::optimizer {

using RuleNumbers = std::array<double, 8>;

RuleNumbers NumbersOf(const RuleOptions& options, const StepContext& context);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_RULE_NUMBERS_H_
