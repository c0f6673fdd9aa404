// The rules by their options: those that look at norms in the .cc of their
// name, the others in element_rules.cc.

#ifndef WEFT_OPTIMIZER_RULES_RULES_H_
#define WEFT_OPTIMIZER_RULES_RULES_H_

#include <memory>

#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"

namespace weft::optimizer {

// REQUIRES: Validate(options) is OK.
std::unique_ptr<UpdateRule> MakeUnclipped(const SgdOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const AdamOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const AdamWOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const AdagradOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const FtrlOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const RmspropOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const AdadeltaOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const LionOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const LambOptions& options);
std::unique_ptr<UpdateRule> MakeUnclipped(const RowwiseAdagradOptions& options);

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_RULES_H_
