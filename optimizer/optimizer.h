// Optimizer: an update rule on Variables, and its state.
//
//   WEFT_ASSIGN_OR_RETURN(auto optimizer, Optimizer::Create(
//       {{AdamWOptions{0.001}, model.NamedParameters()}}));
//   loss.Backward();
//   optimizer->Step();
//   optimizer->ZeroGrad();
//
// A parameter whose gradient is undefined does not change: neither weight decay
// nor momentum is applied, and its steps are not counted. Weights are changed
// in place, their version bumped. A graph that has saved them, as that of
// another trainer whose backward is still to come, keeps them as they were: the
// update makes one copy of a weight that a graph has saved, and none of others.
//
// A frozen parameter (Variable::SetRequiresGrad) has no gradient: it stands
// still until it is unfrozen, and its state is kept and saved.
//
// A sparse gradient updates the rows that it has. For rules that change nothing
// at a zero gradient (UpdateRule::ignores_zero_gradient) this gives the same
// result; with other rules decay and momentum of the other rows stand still,
// which the group must allow with `lazy`.
//
// A rule that must see rows (Scope in rules/update_rule.h) sees each index of a
// parameter's first dimension, as a sparse gradient names it; lamb sees whole
// parameters, and so no sparse gradients. ParameterGroup::clip limits each
// parameter's gradient by itself, as a table on servers does; for the norm of
// all parameters see clip.h.
//
// Gradients may come from elsewhere than the parameters: from the context of a
// distributed pass, a bucket, a table. Check tells whether Apply would take
// them, so that several owners can agree before any of them changes a weight:
//
//   WEFT_RETURN_IF_ERROR(optimizer->Check(gradients, Finite::kRequired));
//   ...                                   // the others are ready too
//   WEFT_RETURN_IF_ERROR(optimizer->Apply(gradients));
//
// For a parameter of f16 or bf16 the optimizer has master weights, in f32 like
// all its state: they are updated, and the parameter is what they round to. A
// value that is written to the parameter from elsewhere, as LoadStateDict of a
// module does, becomes the master's, unless it is what the master rounds to.
//
// State lies on the device of its parameter, and updates run there, on the
// current stream of the thread: move a model (nn::Module::To) before it is
// given to an optimizer.
//
// Thread-safety: one thread at a time.

#ifndef WEFT_OPTIMIZER_OPTIMIZER_H_
#define WEFT_OPTIMIZER_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/autograd/variable.h"
#include "weft/nn/module.h"
#include "weft/optimizer/rules/rule_options.h"
#include "weft/optimizer/rules/update_rule.h"
#include "weft/tensor/tensor.h"

namespace weft::optimizer {

// A leaf, frozen or not, and the name under which its state is kept.
using Parameter = nn::NamedParameter;

struct ParameterGroup {
  RuleOptions rule;
  std::vector<Parameter> parameters;
  bool lazy = false;  // see above
  ClipOptions clip = {};
};

// The gradient of a parameter; undefined if it has none. Called once for each
// parameter of all groups, in their order.
using GradientsOf = absl::FunctionRef<Gradient(const Parameter&)>;

enum class Finite { kAny, kRequired };

class Optimizer {
 public:
  // kInvalidArgument for options as MakeRule, for a parameter that is no
  // contiguous leaf of f32, f64, f16 or bf16 made with requires_grad (one that
  // was made without is frozen for good: nn::Module::TrainedParameters has
  // none), and for a name or a leaf that is there twice, in any group.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(
      std::vector<ParameterGroup> groups);

  // Adds a group, whose parameters begin at step 0: a layer that is trained
  // later. kInvalidArgument as Create, with nothing changed.
  absl::Status AddGroup(ParameterGroup group);

  // Updates each parameter by its own gradient: Apply(those).
  absl::Status Step();

  // kInvalidArgument names the parameter if its gradient is of another shape,
  // dtype or device, has a row outside of it, is sparse where the group does
  // not allow that, or has an infinite or NaN element where that is not allowed
  // (on a device this waits for the gradient, and so does a sparse one); also
  // if the parameter was moved to another device than its state, or cast to
  // another dtype. Changes nothing.
  absl::Status Check(GradientsOf gradients, Finite finite = Finite::kAny) const;

  // Updates each parameter that has a gradient in `gradients`, which are not
  // written to. Fails as Check(gradients), and then changes nothing.
  absl::Status Apply(GradientsOf gradients);

  // Makes all gradients undefined.
  void ZeroGrad();

  // The parameters of all groups, in their order.
  std::vector<Parameter> Parameters() const;

  int groups() const { return static_cast<int>(groups_.size()); }
  double learning_rate(int group) const;
  // From the next Step on; slots stay. kInvalidArgument as MakeRule.
  absl::Status SetLearningRate(int group, double lr);

  // Multiplies the learning rates of all groups from the next Step on; 1 at
  // first, and not part of the state: see schedule.h. kInvalidArgument unless
  // finite and at least 0.
  absl::Status SetLearningRateScale(double scale);
  double learning_rate_scale() const { return lr_scale_; }

  // Per parameter "<name>/step" i64 [] and "<name>/<slot>" of the parameter's
  // dtype and shape (of f16 and bf16 f32, and "<name>/master" the master), or
  // [rows] for a slot of one value for a row: clones, to be kept in a
  // checkpoint.
  absl::btree_map<std::string, Tensor> StateDict() const;
  // The same without clones: the slots and master weights themselves, whose
  // elements may be replaced between two steps, and copies of the steps.
  // LoadStateDict takes it, and has to be called after such a replacement.
  // Valid while no group is added.
  absl::btree_map<std::string, Tensor> StateInPlace() const;

  // Replaces the state. kInvalidArgument, with nothing changed, names what is
  // missing, unknown, or of another shape or dtype.
  absl::Status LoadStateDict(const absl::btree_map<std::string, Tensor>& state);

 private:
  struct ParameterState {
    Parameter parameter;
    std::vector<Tensor> slots;  // in the order of the rule's
    Tensor master;              // f32; undefined if the parameter is f32 or f64
    // The parameter's storage, and its version, that holds what `master` rounds
    // to; null: unknown.
    const Storage* rounded = nullptr;
    uint64_t rounded_version = 0;
    int64_t step = 0;
    Device device;              // of the slots
    DType dtype = DType::kF32;  // of the parameter, when it was given
  };
  struct Group {
    // Shared with updates that a device has not run yet.
    std::shared_ptr<const UpdateRule> rule;
    ClipOptions clip;
    bool lazy = false;
    std::vector<ParameterState> states;
  };

  Optimizer() = default;

  // A gradient that is there, and what it updates.
  struct Due {
    std::shared_ptr<const UpdateRule> rule;
    ParameterState* state;
    Gradient gradient;
    ClipOptions clip;
  };

  static absl::Status CheckGradient(const Group& group,
                                    const ParameterState& state,
                                    const Gradient& gradient, Finite finite);
  absl::Status CheckNew(const ParameterGroup& group) const;
  void Update(const Due& due) const;
  static void FollowWrites(ParameterState& state);
  static void RoundMaster(ParameterState& state);

  std::vector<Group> groups_;
  double lr_scale_ = 1;
};

}  // namespace weft::optimizer

#endif  // WEFT_OPTIMIZER_OPTIMIZER_H_
