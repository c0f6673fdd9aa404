// Leaf: the end of the graph at a Variable that was made, not computed, where
// its gradient accumulates.

#ifndef WEFT_AUTOGRAD_LEAF_H_
#define WEFT_AUTOGRAD_LEAF_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "weft/autograd/gradient.h"
#include "weft/autograd/gradient_sink.h"
#include "weft/autograd/node.h"
#include "weft/base/mutex.h"
#include "weft/tensor/intrusive_ptr.h"
#include "weft/tensor/tensor.h"

namespace weft {

// The value of a leaf, as its graphs see it (SavedTensor).
struct LeafValue : public RefCounted<LeafValue> {
  Tensor tensor;
  // How often MoveTo has moved it, and its version when it was moved last.
  uint64_t moves = 0;
  uint64_t version_at_move = 0;
  // Since when nobody has written to it but by MoveTo, as of the last MoveTo:
  // since it had this version after so many moves.
  uint64_t same_moves = 0;
  uint64_t same_version = 0;

  // Whether its elements are those that it had at `version` after `then` moves.
  bool IsSame(uint64_t then, uint64_t version) const {
    if (then == moves) return tensor.version() == version;
    const bool was_same_at_move =
        then > same_moves || (then == same_moves && version == same_version);
    return was_same_at_move && tensor.version() == version_at_move;
  }
};

// Thread-safety: thread-safe, but for SetValue, MoveTo, Convert, SetSink and
// SetRequiresGrad, during which nobody else uses the leaf.
class Leaf final : public Node, public GradientSink {
 public:
  explicit Leaf(Tensor value) : Node(1, Kind::kLeaf), value_(new LeafValue) {
    value_->tensor = std::move(value);
  }

  // The value of each Variable that is this leaf.
  const Tensor& value() const { return value_->tensor; }
  // The same value, for who keeps its elements.
  const IntrusivePtr<LeafValue>& shared_value() const { return value_; }

  // Gives the leaf other memory: a part of an arena, the result of an operation
  // that was not done in place. It stays the same leaf, with its gradient,
  // sink and hooks. A graph recorded before keeps the old value. Throws Error
  // kInvalidArgument unless `value` is of the same shape, dtype and device.
  void SetValue(Tensor value);

  // Gives the leaf other memory with the same elements, or a stand-in that no
  // graph uses until the leaf is moved again: so a parameter can be released
  // between forward and backward pass (a tensor of one element that is expanded
  // takes its place) and be brought back. A graph recorded before uses what is
  // here then, and keeps nothing of the former memory but what operations saved
  // as views of it (Transpose of a weight). Fill `value` before: a write to the
  // leaf after this is a write, as ever, and a graph that was recorded before a
  // write or an update, and a move, is refused (kFailedPrecondition). Throws as
  // SetValue.
  void MoveTo(Tensor value);

  // Moves the value, and the gradient if there is one, to `device`, and casts
  // both to `dtype`: for all Variables that are this leaf, but not for a graph
  // that was recorded before. Throws as Tensor::To; Error kInvalidArgument for
  // a dtype that has no gradients; kFailedPrecondition if the leaf has a sink,
  // which keeps gradients of the former device and dtype.
  void Convert(Device device, DType dtype) ABSL_LOCKS_EXCLUDED(mu_);

  // False: frozen. No operation records it, and what a graph that was recorded
  // before gives it is dropped here. A change clears the gradient.
  bool requires_grad() const { return requires_grad_; }
  void SetRequiresGrad(bool on) ABSL_LOCKS_EXCLUDED(mu_);

  // What has accumulated here; undefined if nothing has since it was cleared.
  Gradient gradient() const ABSL_LOCKS_EXCLUDED(mu_);
  // Throws Error kInvalidArgument unless undefined or as CheckFits wants it.
  void SetGradient(Gradient gradient) ABSL_LOCKS_EXCLUDED(mu_);

  // Null: the store of the pass, or else this leaf. Borrowed: must outlive
  // every pass.
  void SetSink(GradientSink* sink) { sink_ = sink; }
  GradientSink* sink() const { return sink_; }

  // Adds `gradient` to this leaf's own, unless it is frozen.
  void Accept(const BackwardPass& pass, Leaf& leaf, Gradient gradient) override
      ABSL_LOCKS_EXCLUDED(mu_);

  // Throws Error kInvalidArgument unless `gradient`, which is defined, has the
  // value's shape, dtype and device.
  void CheckFits(const Gradient& gradient) const;

  absl::string_view name() const override { return "Leaf"; }
  void Apply(BackwardCall&) override {}
  void ReleaseSaved() override {}

 private:
  void CheckReplaces(const Tensor& value, const char* function) const;

  IntrusivePtr<LeafValue> value_;  // another after SetValue
  GradientSink* sink_ = nullptr;
  bool requires_grad_ = true;
  mutable Mutex mu_;
  Gradient gradient_ ABSL_GUARDED_BY(mu_);
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_LEAF_H_
