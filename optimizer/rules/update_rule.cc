#include "weft/optimizer/rules/update_rule.h"

#include <utility>

#include "weft/base/status_macros.h"
#include "weft/optimizer/rules/clipped.h"
#include "weft/optimizer/rules/rules.h"

namespace weft::optimizer {

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(const RuleOptions& options,
                                                     const ClipOptions& clip) {
  WEFT_RETURN_IF_ERROR(Validate(options));
  WEFT_RETURN_IF_ERROR(Validate(clip));
  std::unique_ptr<UpdateRule> rule =
      std::visit([](const auto& o) { return MakeUnclipped(o); }, options);
  if (clip.value == 0.0 && clip.norm == 0.0) return rule;
  return std::make_unique<Clipped>(std::move(rule), clip);
}

}  // namespace weft::optimizer
