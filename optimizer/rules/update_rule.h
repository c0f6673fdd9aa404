// UpdateRule: how weights follow their gradient, on plain spans.
//
// One rule serves a whole parameter in an Optimizer, a slice of a dense table
// and one row of a sparse table: the caller owns weights and slots and counts
// the steps; the rule itself is immutable.
//
// Only + - * / and sqrt are used, in a fixed order and without fused
// multiply-add, so that equal inputs give equal bits on every machine.
//
// Thread-safety: thread-safe.

#ifndef WEFT_OPTIMIZER_RULES_UPDATE_RULE_H_
#define WEFT_OPTIMIZER_RULES_UPDATE_RULE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "weft/optimizer/rules/rule_options.h"

namespace weft::optimizer {

// An array that a rule keeps beside the weights, as long as they are.
struct Slot {
  std::string name;
  double initial_value = 0.0;
};

struct StepContext {
  // 1 at the first update of these weights. For a row of a table this may be
  // the row's own count: bias correction then starts when the row does.
  int64_t step = 1;
  // Multiplies the rule's learning rate; schedules act through it.
  double lr_scale = 1.0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  virtual RuleOptions options() const = 0;
  virtual absl::Span<const Slot> slots() const = 0;

  // True if results depend on StepContext::step. If not, nobody need count.
  virtual bool uses_step() const = 0;

  // True if an update with gradient 0 changes nothing, so that updating only
  // the rows that have a gradient equals updating all rows. Otherwise doing so
  // is the rule's lazy variant: decay and momentum stand still meanwhile.
  virtual bool ignores_zero_gradient() const = 0;

  // Overwrites each of `slots`, in the order of slots(), with its initial
  // value.
  template <typename T>
  void Init(absl::Span<const absl::Span<T>> slots) const;

  // Updates `weights` [n] and each of `slots` [n] by `gradient` [n]. They must
  // not overlap. REQUIRES: context.step >= 1, as many slots as slots(), all of
  // one length.
  virtual void Apply(const StepContext& context, absl::Span<float> weights,
                     absl::Span<const float> gradient,
                     absl::Span<const absl::Span<float>> slots) const = 0;
  virtual void Apply(const StepContext& context, absl::Span<double> weights,
                     absl::Span<const double> gradient,
                     absl::Span<const absl::Span<double>> slots) const = 0;
};

// kInvalidArgument names the option, its value and the allowed range.
absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(
    const RuleOptions& options);

template <typename T>
void UpdateRule::Init(absl::Span<const absl::Span<T>> slots) const {
  for (size_t i = 0; i < slots.size(); ++i) {
    const T value = static_cast<T>(this->slots()[i].initial_value);
    for (T& x : slots[i]) x = value;
  }
}

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_UPDATE_RULE_H_
