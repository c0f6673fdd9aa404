#include "weft/autograd/leaf.h"

#include <utility>

#include "weft/base/error.h"

namespace weft {

Gradient Leaf::gradient() const {
  MutexLock lock(mu_);
  return gradient_;
}

void Leaf::SetGradient(Gradient gradient) {
  if (gradient.defined()) CheckFits(gradient);
  MutexLock lock(mu_);
  gradient_ = std::move(gradient);
}

void Leaf::Accept(Leaf&, Gradient gradient) {
  MutexLock lock(mu_);
  if (gradient_.defined()) {
    gradient_.Add(std::move(gradient));
  } else {
    // Whoever clips or scales a gradient writes into it: it must be ours alone.
    gradient_ = std::move(gradient).Owned();
  }
}

void Leaf::CheckFits(const Gradient& gradient) const {
  if (gradient.dtype() == value_.dtype() &&
      gradient.shape() == value_.shape()) {
    return;
  }
  ThrowInvalidArgument("gradient of shape ", ShapeText(gradient.shape()),
                       " and dtype ", Name(gradient.dtype()),
                       " for a variable, ", value_.Describe());
}

}  // namespace weft
