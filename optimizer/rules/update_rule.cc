#include "weft/optimizer/rules/update_rule.h"

#include "weft/base/status_macros.h"
#include "weft/optimizer/rules/adagrad.h"
#include "weft/optimizer/rules/adam.h"
#include "weft/optimizer/rules/ftrl.h"
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

}  // namespace

absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(
    const RuleOptions& options) {
  WEFT_RETURN_IF_ERROR(Validate(options));
  return std::visit([](const auto& o) { return Make(o); }, options);
}

}  // namespace weft::optimizer
