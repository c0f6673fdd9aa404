// Optimizer: an update rule on Variables, and its state.
//
//   WEFT_ASSIGN_OR_RETURN(auto optimizer, Optimizer::Create(
//       {{AdamWOptions{0.001}, model.NamedParameters()}}));
//   loss.Backward();
//   optimizer->Step();
//   optimizer->ZeroGrad();
//
// A parameter whose gradient is undefined is left alone: neither weight decay
// nor momentum moves it, and its steps are not counted. Weights are changed in
// place, their version bumped.
//
// A sparse gradient updates the rows that it has. Where the rule is the same
// for that (UpdateRule::ignores_zero_gradient), nothing need be said; where
// decay or momentum of the other rows would stand still, the group has to allow
// it with `lazy`.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_OPTIMIZER_OPTIMIZER_H_
#define WEFT_OPTIMIZER_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/autograd/variable.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/tensor/tensor.h"

namespace weft::optimizer {

// A leaf that requires a gradient, and the name under which its state is kept.
struct Parameter {
  std::string name;
  Variable variable;
};

struct ParameterGroup {
  RuleOptions rule;
  std::vector<Parameter> parameters;
  bool lazy = false;  // see above
};

class Optimizer {
 public:
  // kInvalidArgument for options as MakeRule, for a parameter that is no
  // contiguous leaf of f32 or f64 that requires a gradient, and for a name that
  // is there twice, in any group.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      std::vector<ParameterGroup> groups);

  // Updates each parameter that has a gradient. All gradients are checked
  // before any weight is touched: kInvalidArgument names the parameter if its
  // gradient is of another shape or dtype, has a row outside of it, or is
  // sparse where the group does not allow that.
  absl::Status Step();

  // Makes all gradients undefined.
  void ZeroGrad();

  int groups() const { return static_cast<int>(groups_.size()); }
  double learning_rate(int group) const;
  // From the next Step on; slots stay. kInvalidArgument as MakeRule.
  absl::Status SetLearningRate(int group, double lr);

  // Per parameter "<name>/step" i64 [] and "<name>/<slot>" of the parameter's
  // shape and dtype: clones, to be kept in a checkpoint.
  absl::btree_map<std::string, Tensor> StateDict() const;

  // Replaces the state. kInvalidArgument, with nothing changed, names what is
  // missing, unknown, or of another shape or dtype.
  absl::Status LoadStateDict(const absl::btree_map<std::string, Tensor>& state);

 private:
  struct ParameterState {
    Parameter parameter;
    std::vector<Tensor> slots;  // in the order of the rule's
    int64_t step = 0;
  };
  struct Group {
    std::unique_ptr<UpdateRule> rule;
    bool lazy = false;
    std::vector<ParameterState> states;
  };

  Optimizer() = default;

  static absl::Status CheckGradient(const Group& group,
                                    const ParameterState& state,
                                    const Gradient& gradient);
  static void Update(const UpdateRule& rule, ParameterState& state,
                     const Gradient& gradient);

  std::vector<Group> groups_;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_OPTIMIZER_H_
