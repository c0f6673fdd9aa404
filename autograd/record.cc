#include "weft/autograd/record.h"

#include <cstdint>

namespace weft {

Tensor SavedTensor::BeforeUpdate() const {
  // The version that Get has seen was written under the lock that Hold takes,
  // and the copy before it.
  uint64_t now = 0;
  (void)tensor_.storage()->Hold(&now);
  const IntrusivePtr<Storage> copy =
      held_ ? held_->copy() : IntrusivePtr<Storage>();
  if (copy && held_->version() == version_) {
    return Tensor::FromStorage(copy, tensor_.storage_offset(), tensor_.shape(),
                               tensor_.strides(), tensor_.dtype());
  }
  ThrowFailedPrecondition(
      "a tensor saved in the forward pass, ", tensor_.Describe(),
      ", was written to since (version ", tensor_.version(), ", saved at ",
      version_, "); write to a Clone() of it, or after the backward pass");
}

}  // namespace weft
