#include "weft/optimizer/rules/update_rule.h"

#include <utility>

#include "weft/base/status_macros.h"
#include "weft/optimizer/rules/adadelta.h"
#include "weft/optimizer/rules/adagrad.h"
#include "weft/optimizer/rules/adam.h"
#include "weft/optimizer/rules/clipped.h"
#include "weft/optimizer/rules/ftrl.h"
#include "weft/optimizer/rules/lamb.h"
#include "weft/optimizer/rules/lion.h"
#include "weft/optimizer/rules/rmsprop.h"
#include "weft/optimizer/rules/rowwise_adagrad.h"
#include "weft/optimizer/rules/sgd.h"

namespace weft::optimizer {
namespace {

std::unique_ptr<UpdateRule> Make(const SgdOptions& o) {
  return std::make_unique<Sgd>(o);
}
std::unique_ptr<UpdateRule> Make(const AdamOptions& o) {
  return std::make_unique<Adam>(o);
}
std::unique_ptr<UpdateRule> Make(const AdamWOptions& o) {
  return std::make_unique<AdamW>(o);
}
std::unique_ptr<UpdateRule> Make(const AdagradOptions& o) {
  return std::make_unique<Adagrad>(o);
}
std::unique_ptr<UpdateRule> Make(const FtrlOptions& o) {
  return std::make_unique<Ftrl>(o);
}
std::unique_ptr<UpdateRule> Make(const RmspropOptions& o) {
  return std::make_unique<Rmsprop>(o);
}
std::unique_ptr<UpdateRule> Make(const AdadeltaOptions& o) {
  return std::make_unique<Adadelta>(o);
}
std::unique_ptr<UpdateRule> Make(const LionOptions& o) {
  return std::make_unique<Lion>(o);
}
std::unique_ptr<UpdateRule> Make(const LambOptions& o) {
  return std::make_unique<Lamb>(o);
}
std::unique_ptr<UpdateRule> Make(const RowwiseAdagradOptions& o) {
  return std::make_unique<RowwiseAdagrad>(o);
}

}  // namespace

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(const RuleOptions& options,
                                                     const ClipOptions& clip) {
  WEFT_RETURN_IF_ERROR(Validate(options));
  WEFT_RETURN_IF_ERROR(Validate(clip));
  std::unique_ptr<UpdateRule> rule =
      std::visit([](const auto& o) { return Make(o); }, options);
  if (clip.value == 0.0 && clip.norm == 0.0) return rule;
  return std::make_unique<Clipped>(std::move(rule), clip);
}

}  // namespace weft::optimizer
