// Variable: a Tensor that remembers how it was made.
//
//   Variable w(Tensor::Ones({3, 2}), /*requires_grad=*/true);
//   Variable loss = Sum(MatMul(x, w));
//   loss.Backward();
//   Tensor dw = w.grad();   // undefined if the loss did not use w
//
// A Variable that was made is a leaf: its gradient accumulates there until
// cleared. One that an operation returned has a history while it is held.

#ifndef WEFT_AUTOGRAD_VARIABLE_H_
#define WEFT_AUTOGRAD_VARIABLE_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/graph_task.h"
#include "weft/autograd/leaf.h"
#include "weft/autograd/node.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/shape.h"
#include "weft/tensor/tensor.h"

namespace weft {

using BackwardOptions = GraphTask::Options;

// A handle: copies are the same variable.
//
// Thread-safety: as Tensor; gradient functions of a leaf are thread-safe.
class Variable {
 public:
  Variable() = default;

  // A leaf. Throws Error kInvalidArgument if it should require a gradient but
  // is undefined or not of a floating dtype.
  explicit Variable(Tensor value, bool requires_grad = false);

  // Result number `output` of the operation that `node` records, which is no
  // leaf.
  Variable(Tensor value, NodePtr node, uint32_t output = 0)
      : value_(std::move(value)), edge_{std::move(node), output} {}

  bool defined() const { return value().defined(); }
  const Tensor& value() const {
    // A leaf keeps the value, since it can be given another.
    return is_leaf_ && edge_.node
               ? static_cast<const Leaf*>(edge_.node.get())->value()
               : value_;
  }
  const Shape& shape() const { return value().shape(); }
  DType dtype() const { return value().dtype(); }
  int64_t dim() const { return value().dim(); }
  int64_t size(int64_t d) const { return value().size(d); }
  int64_t numel() const { return value().numel(); }

  bool requires_grad() const {
    return edge_.node && (!is_leaf_ || leaf()->requires_grad());
  }
  bool is_leaf() const { return !edge_.node || is_leaf_; }

  // The leaf that this variable is, frozen or not; null for one that an
  // operation returned, and for one that was made without a gradient.
  Leaf* leaf() const {
    return is_leaf_ ? static_cast<Leaf*>(edge_.node.get()) : nullptr;
  }

  // Freezes this leaf, and so all copies of this variable, or ends that: see
  // Leaf::SetRequiresGrad. Throws Error kFailedPrecondition where leaf() is
  // null.
  void SetRequiresGrad(bool on) const;

  // Where gradients of this variable go; no node if it requires none.
  const Edge& edge() const { return requires_grad() ? edge_ : NoEdge(); }

  // The same value without its history.
  Variable Detach() const { return Variable(value()); }

  // The gradient accumulated in this leaf; undefined if there is none, as there
  // is for a variable that is not a leaf or requires none.
  Gradient gradient() const;
  // The same as a tensor with all rows.
  Tensor grad() const { return gradient().ToDense(); }
  bool has_grad() const { return gradient().defined(); }

  // Throws Error kFailedPrecondition unless a leaf that requires a gradient.
  void SetGradient(Gradient gradient) const;
  // Throws Error kFailedPrecondition unless a leaf; does nothing to one that
  // requires no gradient.
  void ClearGradient() const;

  // These need a leaf, frozen or not: they throw Error kFailedPrecondition
  // where leaf() is null.
  //
  // Gives the gradients of this leaf to `sink`; null: to the leaf itself again.
  // `sink` is borrowed, and must outlive every backward pass.
  void SetGradientSink(GradientSink* sink) const;
  // Gives this leaf, and so all copies of this variable, other memory of the
  // same shape, dtype and device: see Leaf::SetValue.
  void SetValue(Tensor value) const;

  // Runs `hook` on the whole gradient of this variable in each backward pass,
  // before it goes on or, at a leaf, accumulates. Throws Error
  // kFailedPrecondition if it requires none.
  void AddHook(GradientHook hook) const;

  // Computes the gradients of all leaves behind this variable, and adds them to
  // what the leaves have. Without `seed`, this variable's own gradient, it must
  // have one element. Throws what weft::Backward returns.
  void Backward(const BackwardOptions& options = {}) const;
  void Backward(Gradient seed, const BackwardOptions& options = {}) const;

 private:
  static const Edge& NoEdge();
  Leaf& CheckedLeaf(const char* wanted_for) const;

  Tensor value_;  // undefined if is_leaf_
  Edge edge_;
  bool is_leaf_ = false;  // whether edge_.node is a Leaf
};

// One backward pass from several variables at once. `seeds` are the gradients
// of `roots`, one for each; an undefined seed contributes nothing. The Status
// of an error names the operation.
absl::Status Backward(absl::Span<const Variable> roots,
                      absl::Span<const Gradient> seeds,
                      const BackwardOptions& options = {});

}  // namespace weft

#endif  // WEFT_AUTOGRAD_VARIABLE_H_
