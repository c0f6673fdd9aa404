#include "weft/autograd/record.h"

#include <atomic>

namespace weft {

Tensor SavedTensor::BeforeUpdate() const {
  // With the new version that Get has seen comes the copy.
  std::atomic_thread_fence(std::memory_order_acquire);
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
