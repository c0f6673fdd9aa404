#include "weft/autograd/record.h"

namespace weft {

void SavedTensor::ThrowModified() const {
  ThrowFailedPrecondition(
      "a tensor saved in the forward pass, ", tensor_.Describe(),
      ", was written to since (version ", tensor_.version(), ", saved at ",
      version_, "); write to a Clone() of it, or after the backward pass");
}

}  // namespace weft
