// Checkpoint: runs a part of a model without keeping what its backward pass
// needs, and runs it again when that pass comes to it. It saves memory for
// time: with a chain of parts, each checkpointed, only the activations of one
// part and the inputs of all are kept, but each part's forward pass runs twice.
//
//   Variable y = Checkpoint(
//       [&](absl::Span<const Variable> in) { return block.Forward(in[0]); },
//       {x});
//
// Gradients equal, bit for bit, those of `f(inputs)`:
//
// - Generators that `f` draws from give the same numbers when it runs again,
//   and go on afterwards as if it had not.
// - Running statistics of BatchNorm move once, and the collective operations of
//   SyncBatchNorm run once.
//
// There is one backward pass, of one graph. So leaves that `f` uses get their
// gradients as ever, also from a DistributedDataParallel or in a distributed
// pass; and calls nest: what an inner one keeps is computed again with the
// outer.
//
// `f` runs again on the thread of the backward pass, once, when the first
// tensor that it saved is wanted. What it refers to must live until then: at
// most as long as the graph. `inputs` and the leaves that it uses are proven to
// be the same; all else that it uses must be. An `f` that gives other results
// when it runs again, or that has effects, gives other gradients.
//
// Source: Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory
// cost", 2016; in the form of PyTorch's torch.utils.checkpoint with
// use_reentrant=False, which computes again what a saved tensor was.

#ifndef WEFT_AUTOGRAD_CHECKPOINT_H_
#define WEFT_AUTOGRAD_CHECKPOINT_H_

#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/tensor.h"

namespace weft {

// What `f` returns. Throws what it throws. Under a NoGradScope just calls it.
//
// The backward pass ends with
//   kFailedPrecondition  if an input was written to since, a leaf that `f`
//                        uses was updated or replaced since, or `f` computed
//                        tensors of other shapes, dtypes or number, or drew
//                        other numbers
//   what `f` throws      when it runs again
// each under the name of the operation that wanted the tensor; a graph that was
// retained can be run again. `f` must not run a backward pass through what it
// computes itself: kFailedPrecondition.
Variable Checkpoint(
    const std::function<Variable(absl::Span<const Variable> inputs)>& f,
    absl::Span<const Variable> inputs);
std::vector<Variable> Checkpoint(
    std::function<std::vector<Variable>(absl::Span<const Variable> inputs)> f,
    absl::Span<const Variable> inputs);

// For operations and modules that have effects:
//
// Whether a function that is checkpointed runs on this thread.
bool IsCheckpointing();
// Whether such a function runs again here: its effects have happened already.
bool IsRecomputing();
// What `make` returns; when a function that is checkpointed runs again, what
// `make` returned at first. The tensor is kept, and must not be written to.
// Within Checkpoint `make` runs under a NoGradScope, and may draw from no
// generator but its own (Error kFailedPrecondition): draw before.
Tensor OnceInCheckpoint(absl::FunctionRef<Tensor()> make);

}  // namespace weft

#endif  // WEFT_AUTOGRAD_CHECKPOINT_H_
