// Payload: a tensor's elements, frozen, as they may travel and be resent.
//
// What is resent must be what was sent first. So a Payload holds row-major
// bytes that nobody changes any more, got in one of three ways:
//
//   Payload::FreezeByMove(std::move(tensor))  no copy, if nobody else has it
//   Payload::Snapshot(tensor)                 a copy
//   Payload::Borrow(tensor)                   no copy; the caller promises not
//                                             to write, and Elements() checks
//
// A tensor of a device is copied to the CPU, which waits for it.
//
// Thread-safety: thread-safe. A write to borrowed elements while they are sent
// is a race of the writer; it is found at the next Elements().

#ifndef WEFT_TENSOR_PAYLOAD_H_
#define WEFT_TENSOR_PAYLOAD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/tensor/tensor.h"

namespace weft {

class Payload {
 public:
  Payload() = default;  // f32 [0].

  // Takes the tensor's memory without a copy if `tensor` is on the CPU,
  // contiguous and the only handle on storage that is its own; else a Snapshot.
  static Payload FreezeByMove(Tensor tensor);
  static Payload Snapshot(const Tensor& tensor);
  // Shares the tensor's memory without a copy if `tensor` is on the CPU and
  // contiguous; else a Snapshot.
  static Payload Borrow(const Tensor& tensor);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t bytes() const { return static_cast<int64_t>(elements_.size()); }

  // The elements, to be sent now. DATA_LOSS if they were borrowed and have been
  // written to since: what would be sent is not what was frozen.
  absl::StatusOr<Bytes> Elements() const;

 private:
  Payload(const Tensor& tensor, bool is_borrowed);

  DType dtype_ = DType::kF32;
  Shape shape_ = {0};
  Bytes elements_;
  IntrusivePtr<Storage> borrowed_;  // Null: nobody can write.
  uint64_t version_ = 0;            // borrowed_'s when it was borrowed.
};

}  // namespace weft

#endif  // WEFT_TENSOR_PAYLOAD_H_
