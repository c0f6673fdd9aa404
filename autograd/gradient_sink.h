// GradientSink: where the gradient of a leaf goes.
//
// By default a leaf adds up its own gradient. Data-parallel training writes it
// into a bucket instead, a distributed pass into its context: each implements
// this interface, on one leaf (Variable::SetGradientSink) or for a whole pass
// (GraphTask::Options::sink, which comes first and may hand on to the leaf's).

#ifndef WEFT_AUTOGRAD_GRADIENT_SINK_H_
#define WEFT_AUTOGRAD_GRADIENT_SINK_H_

#include "weft/autograd/gradient.h"
#include "weft/tensor/tensor.h"

namespace weft {

class Leaf;

// Thread-safety: called on the thread that runs the pass; an implementation
// that several passes share must be thread-safe.
class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Takes the whole gradient that one pass made for `leaf`: at most once for
  // each leaf and pass, never undefined, of the leaf's shape and dtype. This is
  // also the hook that says the gradient is there. What it throws ends the
  // pass.
  virtual void Accept(Leaf& leaf, Gradient gradient) = 0;

  // Where an operation may write the gradient of `leaf`, to spare a copy: a
  // tensor of the leaf's shape whose contents are void, or undefined for none.
  // If Accept then gets this tensor, there is nothing left to copy. Asked only
  // where a single operation makes all of the gradient.
  virtual Tensor Destination(Leaf& leaf) {
    (void)leaf;
    return Tensor();
  }
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRADIENT_SINK_H_
