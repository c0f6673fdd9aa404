#include "weft/autograd/saved_tensor.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "weft/base/error.h"

namespace weft::internal {

Tensor KeptTensor::BeforeUpdate() const {
  // The version that Get has seen was written under the lock that Hold takes,
  // and the copy before it.
  const Tensor& tensor = now();
  uint64_t latest = 0;
  (void)tensor.storage()->Hold(&latest);
  const IntrusivePtr<Storage> copy =
      held_ ? held_->copy() : IntrusivePtr<Storage>();
  const bool is_moved = leaf_ && leaf_->moves != moves_;
  if (copy && !is_moved && held_->version() == version_) {
    return Tensor::FromStorage(copy, tensor.storage_offset(), tensor.shape(),
                               tensor.strides(), tensor.dtype());
  }
  ThrowFailedPrecondition(
      "a tensor saved in the forward pass, ", tensor.Describe(),
      ", was written to since",
      is_moved ? absl::StrCat(", and moved ", leaf_->moves - moves_, " times")
               : absl::StrCat(" (version ", tensor.version(), ", saved at ",
                              version_, ")"),
      "; write to a Clone() of it, or after the backward pass");
}

}  // namespace weft::internal
