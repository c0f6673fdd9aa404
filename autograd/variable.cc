#include "weft/autograd/variable.h"

#include "absl/strings/str_cat.h"
#include "weft/autograd/leaf.h"
#include "weft/base/error.h"
#include "weft/base/status_macros.h"

namespace weft {
namespace {

absl::Status CheckSeed(const Variable& root, const Gradient& seed) {
  if (!root.requires_grad()) {
    return absl::FailedPreconditionError(
        "Backward: the variable requires no gradient: it was not computed from "
        "one that does, or under a NoGradScope");
  }
  if (!seed.defined() ||
      (seed.shape() == root.shape() && seed.dtype() == root.dtype() &&
       seed.device() == root.value().device())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "Backward: the seed has shape ", ShapeText(seed.shape()), " and dtype ",
      Name(seed.dtype()), " on ", Name(seed.device()), ", the variable is ",
      root.value().Describe()));
}

}  // namespace

Variable::Variable(Tensor value, bool requires_grad)
    : value_(std::move(value)) {
  if (!requires_grad) return;
  if (!value_.defined()) {
    ThrowInvalidArgument("Variable: an undefined tensor has no gradient");
  }
  if (!IsFloating(value_.dtype())) {
    ThrowInvalidArgument(
        "Variable: only f32, f64, f16 and bf16 have gradients, not ",
        Name(value_.dtype()));
  }
  edge_.node = NodePtr(new Leaf(std::move(value_)));
  value_ = Tensor();
  is_leaf_ = true;
}

const Edge& Variable::NoEdge() {
  static const Edge* const none = new Edge();
  return *none;
}

Leaf& Variable::CheckedLeaf(const char* wanted_for) const {
  if (leaf() == nullptr) {
    ThrowFailedPrecondition(
        "Variable::", wanted_for,
        ": wanted a leaf made with requires_grad, found ",
        edge_.node ? "the result of an operation" : "one made without");
  }
  return *leaf();
}

void Variable::SetRequiresGrad(bool on) const {
  CheckedLeaf("SetRequiresGrad").SetRequiresGrad(on);
}

Gradient Variable::gradient() const {
  const bool has_one = is_leaf_ && requires_grad();
  return has_one ? leaf()->gradient() : Gradient();
}

void Variable::SetGradient(Gradient gradient) const {
  if (!CheckedLeaf("SetGradient").requires_grad()) {
    ThrowFailedPrecondition(
        "Variable::SetGradient: the leaf is frozen; wanted one that requires a "
        "gradient: call SetRequiresGrad(true)");
  }
  leaf()->SetGradient(std::move(gradient));
}

void Variable::ClearGradient() const {
  if (!edge_.node) return;
  CheckedLeaf("ClearGradient").SetGradient(Gradient());
}

void Variable::SetGradientSink(GradientSink* sink) const {
  CheckedLeaf("SetGradientSink").SetSink(sink);
}

void Variable::SetValue(Tensor value) const {
  CheckedLeaf("SetValue").SetValue(std::move(value));
}

void Variable::AddHook(GradientHook hook) const {
  if (!requires_grad()) {
    ThrowFailedPrecondition("Variable::AddHook: it requires no gradient");
  }
  edge_.node->AddHook(edge_.output, std::move(hook));
}

void Variable::Backward(const BackwardOptions& options) const {
  if (numel() != 1) {
    ThrowInvalidArgument("Backward: a variable of shape ", ShapeText(shape()),
                         " needs a seed; only one element can do without");
  }
  Backward(Tensor::Ones(shape(), dtype(), value().device()), options);
}

void Variable::Backward(Gradient seed, const BackwardOptions& options) const {
  ThrowIfError(weft::Backward({*this}, {std::move(seed)}, options));
}

absl::Status Backward(absl::Span<const Variable> roots,
                      absl::Span<const Gradient> seeds,
                      const BackwardOptions& options) {
  if (roots.size() != seeds.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Backward: ", roots.size(), " variables but ", seeds.size(), " seeds"));
  }
  GraphTask task(options);
  for (size_t i = 0; i < roots.size(); ++i) {
    WEFT_RETURN_IF_ERROR(CheckSeed(roots[i], seeds[i]));
    WEFT_RETURN_IF_ERROR(task.Expect(roots[i].edge()));
  }
  for (size_t i = 0; i < roots.size(); ++i) {
    WEFT_RETURN_IF_ERROR(task.Feed(roots[i].edge(), seeds[i]));
  }
  return task.Run();
}

}  // namespace weft
