// Gradient: what flows backward: nothing, a tensor, or some rows of one.
//
// An undefined Gradient is not a gradient of zeros: it says that the result was
// not used. It stays undefined to the leaf, whose weights an optimizer then
// leaves alone, weight decay and momentum included.

#ifndef WEFT_AUTOGRAD_GRADIENT_H_
#define WEFT_AUTOGRAD_GRADIENT_H_

#include <utility>

#include "weft/tensor/device.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/intrusive_ptr.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/shape.h"
#include "weft/tensor/tensor.h"

namespace weft {

// Thread-safety: one thread at a time.
class Gradient {
 public:
  Gradient() = default;
  // From an undefined tensor: an undefined gradient.
  Gradient(Tensor dense)  // NOLINT: a tensor is a gradient wherever one is due
      : dense_(std::move(dense)) {}
  // Rows of a table; the others are zero. Throws Error kInvalidArgument if the
  // parts do not fit each other; row numbers are checked where they are used.
  Gradient(SparseRows rows);  // NOLINT: as above

  bool defined() const { return dense_.defined() || is_sparse(); }
  bool is_sparse() const { return static_cast<bool>(sparse_); }

  // The tensor; undefined if this gradient is undefined or sparse.
  const Tensor& dense() const { return dense_; }

  // Not coalesced. REQUIRES: is_sparse().
  const SparseRows& sparse() const;

  // These describe the whole gradient, all rows counted. REQUIRES: defined().
  Shape shape() const;
  DType dtype() const;
  Device device() const;

  // Itself if it is there, or undefined. Throws as Tensor::To.
  Gradient To(Device device) const;

  // The tensor, made from the rows if it is sparse; undefined if undefined.
  Tensor ToDense() const;

  // The same gradient in memory that nobody else holds: this one if it is so,
  // else a copy. Rows are never written to and stay as they are.
  Gradient Owned() &&;

  // Adds `other`; undefined adds nothing. Writes into the tensor held here only
  // where nobody else holds it. Rows added to rows stay rows.
  void Add(Gradient other);

 private:
  struct Shared : RefCounted<Shared> {
    explicit Shared(SparseRows r) : rows(std::move(r)) {}
    const SparseRows rows;
  };

  Tensor TakeDense() &&;  // leaves this undefined
  void AddDense(Tensor a, Tensor b);

  Tensor dense_;
  IntrusivePtr<const Shared> sparse_;
};

}  // namespace weft

#endif  // WEFT_AUTOGRAD_GRADIENT_H_
