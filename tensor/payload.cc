#include "weft/tensor/payload.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// Whether its bytes can be sent as they lie.
bool IsReadable(const Tensor& tensor) {
  return tensor.is_contiguous() && tensor.device().is_cpu();
}

}  // namespace

// REQUIRES: IsReadable(tensor).
Payload::Payload(const Tensor& tensor, bool is_borrowed)
    : dtype_(tensor.dtype()),
      shape_(tensor.shape()),
      elements_(Bytes::Wrap(tensor.raw(), tensor.bytes(),
                            std::make_shared<const Tensor>(tensor))) {
  if (!is_borrowed) return;
  borrowed_ = tensor.storage();
  version_ = tensor.version();
}

Payload Payload::FreezeByMove(Tensor tensor) {
  if (IsReadable(tensor) && tensor.is_sole_owner()) {
    return Payload(tensor, false);
  }
  return Snapshot(tensor);
}

Payload Payload::Snapshot(const Tensor& tensor) {
  const bool is_here = tensor.device().is_cpu();
  const Tensor copy = is_here ? tensor.Clone() : tensor.To(Device::Cpu());
  return Payload(copy, false);
}

Payload Payload::Borrow(const Tensor& tensor) {
  return IsReadable(tensor) ? Payload(tensor, true) : Snapshot(tensor);
}

absl::StatusOr<Bytes> Payload::Elements() const {
  if (borrowed_ && borrowed_->version() != version_) {
    return absl::DataLossError(absl::StrCat(
        "Payload: borrowed ", Name(dtype_), ShapeText(shape_),
        " was written to after it was frozen; send a Snapshot, or wait for the "
        "answer before writing"));
  }
  return elements_;
}

}  // namespace weft
