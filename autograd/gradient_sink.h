// GradientSink: where the gradients of leaves go.
//
// By default a leaf adds up its own gradient. Two kinds of sink change that:
//
// - The store of a pass (GraphTask::Options::sink) receives the gradients of
//   all leaves instead of the leaves themselves: a distributed pass keeps them
//   in its context.
// - The sink of a leaf (Variable::SetGradientSink) stands before the store: it
//   receives the gradient first, and hands the result on to BackwardPass::store
//   or, if that is null, puts it into the leaf. Data-parallel training reduces
//   gradients there. So it works inside a distributed pass, and neither of the
//   two knows the other.
//
// What a sink sees of one pass, in this order:
//
//   Begin(pass, leaves)          once, before any node runs
//   Destination(pass, leaf)      before a node makes the gradient of `leaf`
//   Accept or NoGradient         once for each leaf, as the pass goes on
//   End(pass, outcome)           once, after the last; also of a failed pass
//
// A pass that fails calls End with its error, without Accept or NoGradient for
// the leaves that it had not come to.

#ifndef WEFT_AUTOGRAD_GRADIENT_SINK_H_
#define WEFT_AUTOGRAD_GRADIENT_SINK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weft/autograd/gradient.h"
#include "weft/tensor/tensor.h"

namespace weft {

class GradientSink;
class Leaf;

// One backward pass, as nodes and sinks see it. Lives as long as its GraphTask.
struct BackwardPass {
  // Different for each pass of this process, never 0.
  uint64_t id = 0;
  // Where results go: GraphTask::Options::sink. Null: to each leaf itself, by
  // Leaf::Accept or Leaf::SetGradient.
  GradientSink* store = nullptr;
};

// Memory in which the gradient of a leaf is to be made.
struct GradientDestination {
  Tensor tensor;     // of the leaf's shape and dtype; undefined: no such memory
  bool add = false;  // add to what is there; else overwrite it
};

// Thread-safety: called on the thread that runs the pass, one call at a time
// for each pass; an implementation that several passes share must be
// thread-safe. What a function throws, or an error that End returns, ends the
// pass with that Status.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // The pass begins. `leaves` are those that it can reach among this sink's
  // own (a store: among all), each once, in an order that depends on the graph
  // only. A parameter that is not among them gets no gradient from this pass.
  virtual void Begin(const BackwardPass& pass, absl::Span<Leaf* const> leaves) {
    (void)pass;
    (void)leaves;
  }

  // Takes the whole gradient that the pass made for `leaf`: defined, of the
  // leaf's shape and dtype. If it is the tensor that Destination returned, it
  // has been written (or added) there and nothing is left to copy.
  virtual void Accept(const BackwardPass& pass, Leaf& leaf,
                      Gradient gradient) = 0;

  // The pass has come to `leaf`, and no gradient is there: what the loss uses
  // of it has no part in the result, or a hook returned an undefined gradient.
  virtual void NoGradient(const BackwardPass& pass, Leaf& leaf) {
    (void)pass;
    (void)leaf;
  }

  // Where a node may make the gradient of `leaf`, to spare a copy. Asked only
  // where that node alone makes all of it. The node need not use it: Accept
  // gets another tensor then, and the memory is as Destination left it. A node
  // that fails may leave anything there.
  virtual GradientDestination Destination(const BackwardPass& pass,
                                          Leaf& leaf) {
    (void)pass;
    (void)leaf;
    return {};
  }

  // The pass has ended. `outcome` is OK if every node has run. Sinks of leaves
  // hear it before the store does, and may hand gradients to the store until
  // they return; the error of one is the outcome for those that follow.
  virtual absl::Status End(const BackwardPass& pass,
                           const absl::Status& outcome) {
    (void)pass;
    (void)outcome;
    return absl::OkStatus();
  }
};

// For sinks that keep the gradient of `leaf` in `view`, memory of their own of
// the leaf's shape, dtype and device: a part of a bucket, of an arena. What the
// leaf's gradient is decides what happens to the view:
//
//   undefined        the view is overwritten
//   the view         the new gradient is added to it
//   another tensor   it is copied into the view, then the new one is added
//
// Destination() of such a sink. Leaves the leaf's gradient undefined or the
// view. Throws Error kInvalidArgument if `view` does not fit the leaf.
GradientDestination PrepareDestination(Leaf& leaf, const Tensor& view);

// Accept() of such a sink: brings `gradient` into `view` unless it is the view,
// which then is the leaf's gradient. Throws as PrepareDestination.
void AcceptInto(Leaf& leaf, const Tensor& view, const Gradient& gradient);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRADIENT_SINK_H_
