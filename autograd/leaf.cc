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

void Leaf::SetValue(Tensor value) {
  if (!value.defined() || value.shape() != value_.shape() ||
      value.dtype() != value_.dtype() || value.device() != value_.device()) {
    ThrowInvalidArgument("Leaf::SetValue: wanted ", value_.Describe(),
                         " on the same device, found ",
                         value.defined() ? value.Describe() : "undefined");
  }
  value_ = std::move(value);
}

void Leaf::SetRequiresGrad(bool on) {
  if (on != requires_grad_) SetGradient(Gradient());
  requires_grad_ = on;
}

void Leaf::Accept(const BackwardPass&, Leaf&, Gradient gradient) {
  if (!requires_grad_) return;
  MutexLock lock(mu_);
  if (gradient_.defined()) {
    gradient_.Add(std::move(gradient));
  } else {
    // Clipping and scaling write into a gradient, so it must not be shared.
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
