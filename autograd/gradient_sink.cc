#include "weft/autograd/gradient_sink.h"

#include "weft/autograd/leaf.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"

namespace weft {
namespace {

bool IsSameMemory(const Tensor& a, const Tensor& b) {
  return a.IsSameAs(b) ||
         (a.defined() && b.defined() && a.address() == b.address() &&
          a.dtype() == b.dtype() && a.shape() == b.shape() &&
          a.strides() == b.strides());
}

void Write(const GradientDestination& to, const Gradient& gradient) {
  if (!gradient.is_sparse()) {
    if (to.add) return Add_(to.tensor, gradient.dense());
    return to.tensor.CopyFrom(gradient.dense());
  }
  if (!to.add) to.tensor.Fill(0);
  AddRows_(to.tensor, 1, gradient.sparse());
}

}  // namespace

GradientDestination PrepareDestination(Leaf& leaf, const Tensor& view) {
  leaf.CheckFits(view);
  const Gradient current = leaf.gradient();
  if (!current.defined()) return {view, /*add=*/false};
  if (!IsSameMemory(current.dense(), view)) {
    Write({view, /*add=*/false}, current);
    leaf.SetGradient(view);
  }
  return {view, /*add=*/true};
}

void AcceptInto(Leaf& leaf, const Tensor& view, const Gradient& gradient) {
  if (!IsSameMemory(gradient.dense(), view)) {
    Write(PrepareDestination(leaf, view), gradient);
  }
  leaf.SetGradient(view);
}

}  // namespace weft
