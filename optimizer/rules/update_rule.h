// UpdateRule: how weights follow their gradient, on plain spans.
//
// One rule serves a whole parameter in an Optimizer, a slice of a dense table
// and one row of a sparse table: the caller owns weights and slots and counts
// the steps; the rule itself is immutable.
//
// Only + - * / and sqrt are used, in a fixed order and without fused
// multiply-add, so that equal inputs give equal bits on every machine.
//
// A rule says what it must see whole (Scope), and its caller never cuts that:
//
//   Scope       Optimizer            sparse table        dense table
//   kElement    any cut              any cut             any cut
//   kRow        index of the first   row                 refused
//               dimension
//   kParameter  parameter            row: each key's is  refused
//                                    a parameter
//
// What a sparse gradient names is a row of either: so a parameter of one
// dimension has rows of one element, and a scalar is one row. A dense table has
// no rows, only slices, whose length follows from the table's.
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

// What a rule must be given whole, for its result to be defined.
enum class Scope {
  kElement,    // nothing: any cut of the weights gives the same bits
  kRow,        // a row: it looks at a norm, or keeps one value for all of it
  kParameter,  // a parameter
};

// An array that a rule keeps beside the weights: as long as they are, or one
// value for a row, where its scope is one.
struct Slot {
  std::string name;
  double initial_value = 0.0;
  bool is_per_row = false;
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
  virtual Scope scope() const = 0;

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

  // Updates `weights` [n] and each of `slots`, [n] or per row [1], by
  // `gradient` [n]. They must not overlap. With a rule whose scope is not
  // kElement these are one row, or one parameter. REQUIRES: context.step >= 1,
  // as many slots as slots(), of these lengths.
  virtual void Apply(const StepContext& context, absl::Span<float> weights,
                     absl::Span<const float> gradient,
                     absl::Span<const absl::Span<float>> slots) const = 0;
  virtual void Apply(const StepContext& context, absl::Span<double> weights,
                     absl::Span<const double> gradient,
                     absl::Span<const absl::Span<double>> slots) const = 0;
};

// The rule, which sees gradients clipped if `clip` says so: a limit of the norm
// makes its scope kRow at least. kInvalidArgument names the option, its value
// and the allowed range.
absl::StatusOr<std::unique_ptr<UpdateRule>> MakeRule(
    const RuleOptions& options, const ClipOptions& clip = {});

template <typename T>
void UpdateRule::Init(absl::Span<const absl::Span<T>> slots) const {
  for (size_t i = 0; i < slots.size(); ++i) {
    const T value = static_cast<T>(this->slots()[i].initial_value);
    for (T& x : slots[i]) x = value;
  }
}

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_RULES_UPDATE_RULE_H_
