#include "weft/autograd/leaf.h"

#include <utility>

#include "weft/base/error.h"

namespace weft {
namespace {

Gradient As(DType dtype, const Gradient& gradient) {
  if (!gradient.defined()) return gradient;
  if (!gradient.is_sparse()) return gradient.dense().To(dtype);
  const SparseRows& rows = gradient.sparse();
  return SparseRows{rows.indices, rows.values.To(dtype), rows.rows};
}

}  // namespace

Gradient Leaf::gradient() const {
  MutexLock lock(mu_);
  return gradient_;
}

void Leaf::SetGradient(Gradient gradient) {
  if (gradient.defined()) CheckFits(gradient);
  MutexLock lock(mu_);
  gradient_ = std::move(gradient);
}

void Leaf::CheckReplaces(const Tensor& value, const char* function) const {
  if (value.defined() && value.shape() == this->value().shape() &&
      value.dtype() == this->value().dtype() &&
      value.device() == this->value().device()) {
    return;
  }
  ThrowInvalidArgument("Leaf::", function, ": wanted ",
                       this->value().Describe(), " on the same device, found ",
                       value.defined() ? value.Describe() : "undefined");
}

void Leaf::SetValue(Tensor value) {
  CheckReplaces(value, "SetValue");
  IntrusivePtr<LeafValue> other(new LeafValue);
  other->tensor = std::move(value);
  value_ = std::move(other);
}

void Leaf::MoveTo(Tensor value) {
  CheckReplaces(value, "MoveTo");
  const uint64_t version = value_->tensor.version();
  if (value_->moves == 0 || version != value_->version_at_move) {
    value_->same_moves = value_->moves;
    value_->same_version = version;
  }
  value_->version_at_move = value.version();
  value_->tensor = std::move(value);
  ++value_->moves;
}

void Leaf::Convert(Device device, DType dtype) {
  if (device == value().device() && dtype == value().dtype()) return;
  if (!IsFloating(dtype)) {
    ThrowInvalidArgument("Leaf::Convert: the parameter ", value().Describe(),
                         " as ", Name(dtype),
                         "; only f32, f64, f16 and bf16 have gradients");
  }
  if (sink_ != nullptr) {
    ThrowFailedPrecondition(
        "Leaf::Convert: the gradient of the parameter ", value().Describe(),
        " is kept by another object, such as a DistributedDataParallel; make "
        "the model ",
        Name(dtype), " on ", Name(device), " before that is made");
  }
  const Gradient moved = As(dtype, gradient().To(device));
  IntrusivePtr<LeafValue> other(new LeafValue);
  other->tensor = value().To(device).To(dtype);
  value_ = std::move(other);
  MutexLock lock(mu_);
  gradient_ = moved;
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
  if (gradient.dtype() == value().dtype() &&
      gradient.shape() == value().shape() &&
      gradient.device() == value().device()) {
    return;
  }
  ThrowInvalidArgument("gradient of shape ", ShapeText(gradient.shape()),
                       " and dtype ", Name(gradient.dtype()), " on ",
                       Name(gradient.device()), " for a variable, ",
                       value().Describe());
}

}  // namespace weft
