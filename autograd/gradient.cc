#include "weft/autograd/gradient.h"

#include <utility>

#include "weft/base/check.h"
#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/index.h"

namespace weft {
namespace {

// Whether nobody sees what is written to `x`. An expanded tensor, of which one
// element is several, is never contiguous.
bool IsOurs(const Tensor& x) { return x.is_sole_handle() && x.is_contiguous(); }

}  // namespace

Gradient::Gradient(SparseRows rows) {
  if (rows.indices.dim() != 1 || rows.indices.dtype() != DType::kI64 ||
      rows.values.dim() < 1 || rows.values.size(0) != rows.indices.numel() ||
      rows.values.device() != rows.indices.device()) {
    ThrowInvalidArgument("Gradient: indices ", rows.indices.Describe(),
                         " do not fit values ", rows.values.Describe(),
                         "; wanted i64[n] and [n, ...] on one device");
  }
  sparse_ = IntrusivePtr<const Shared>(new Shared(std::move(rows)));
}

const SparseRows& Gradient::sparse() const {
  WEFT_CHECK(is_sparse());
  return sparse_->rows;
}

Shape Gradient::shape() const {
  if (!is_sparse()) return dense_.shape();
  Shape shape = sparse().values.shape();
  shape[0] = sparse().rows;
  return shape;
}

DType Gradient::dtype() const {
  return is_sparse() ? sparse().values.dtype() : dense_.dtype();
}

Device Gradient::device() const {
  return is_sparse() ? sparse().values.device() : dense_.device();
}

Gradient Gradient::To(Device device) const {
  if (!defined() || device == this->device()) return *this;
  if (!is_sparse()) return dense_.To(device);
  return SparseRows{sparse().indices.To(device), sparse().values.To(device),
                    sparse().rows};
}

Tensor Gradient::ToDense() const {
  return is_sparse() ? weft::ToDense(sparse()) : dense_;
}

Gradient Gradient::Owned() && {
  if (!dense_.defined() || IsOurs(dense_)) return std::move(*this);
  return dense_.Clone();
}

void Gradient::Add(Gradient other) {
  if (!other.defined()) return;
  if (!defined()) {
    *this = std::move(other);
    return;
  }
  if (shape() != other.shape() || dtype() != other.dtype() ||
      device() != other.device()) {
    ThrowInvalidArgument("a gradient of shape ", ShapeText(other.shape()),
                         ", dtype ", Name(other.dtype()), " and device ",
                         Name(other.device()), " meets one of ",
                         ShapeText(shape()), ", ", Name(dtype()), " and ",
                         Name(device()));
  }
  if (is_sparse() && other.is_sparse()) {
    const SparseRows& a = sparse();
    const SparseRows& b = other.sparse();
    *this = Gradient(SparseRows{Concat({a.indices, b.indices}, 0),
                                Concat({a.values, b.values}, 0), a.rows});
  } else {
    AddDense(std::move(*this).TakeDense(), std::move(other).TakeDense());
  }
}

Tensor Gradient::TakeDense() && {
  return is_sparse() ? weft::ToDense(std::exchange(sparse_, {})->rows)
                     : std::exchange(dense_, {});
}

// Adds one into the other; the sum is the same whichever is written to.
void Gradient::AddDense(Tensor a, Tensor b) {
  if (IsOurs(a)) {
    Add_(a, b);
    dense_ = std::move(a);
  } else if (IsOurs(b)) {
    Add_(b, a);
    dense_ = std::move(b);
  } else {
    dense_ = weft::Add(a, b);
  }
}

}  // namespace weft
