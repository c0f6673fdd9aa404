// What parts of a TableShard ask of the tensors of a message.

#ifndef WEFT_PS_SHARD_SHARD_TENSORS_H_
#define WEFT_PS_SHARD_SHARD_TENSORS_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "weft/tensor/tensor.h"

namespace weft::ps::internal {

inline int64_t BytesOf(const Tensor& tensor) {
  return tensor.defined() ? tensor.bytes() : 0;
}

inline absl::Span<const uint64_t> KeysOf(const Tensor& keys) {
  if (!keys.defined()) return {};
  // A key is 64 bits without a sign; tensors know only the signed type.
  return absl::MakeConstSpan(
      reinterpret_cast<const uint64_t*>(keys.data<int64_t>()), keys.numel());
}

inline bool IsFlat(const Tensor& t, DType dtype, int dims) {
  return t.defined() && t.dtype() == dtype && t.dim() == dims &&
         t.is_contiguous();
}

inline std::string Found(const Tensor& t) {
  return t.defined() ? t.Describe() : "no tensor";
}

}  // namespace weft::ps::internal

#endif  // WEFT_PS_SHARD_SHARD_TENSORS_H_
