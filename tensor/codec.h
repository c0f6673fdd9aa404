// Codec of tensors: Tensor or Payload to weft.tensor.v1 and back.
//
// Encoding copies no elements. Decoding copies them once, into pooled, aligned
// memory, and trusts nothing: the header is checked wholly, and its size
// compared with the bytes that are there, before any memory is taken.
//
// Thread-safety: free functions.

#ifndef WEFT_TENSOR_CODEC_H_
#define WEFT_TENSOR_CODEC_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/proto/tensor.pb.h"
#include "weft/tensor/payload.h"
#include "weft/tensor/tensor.h"

namespace weft {

// What the elements of `payload` are.
tensor::v1::TensorHeader HeaderOf(const Payload& payload);
tensor::v1::TensorHeader HeaderOf(const Tensor& tensor);

// INVALID_ARGUMENT for an unknown dtype, more than kMaxDims dimensions, a
// negative one, more than kMaxTensorBytes bytes, or `bytes` that is not what
// dtype and shape make.
absl::Status CheckHeader(const tensor::v1::TensorHeader& header);

// REQUIRES: CheckHeader(header).ok().
DType DTypeOfHeader(const tensor::v1::TensorHeader& header);
Shape ShapeOfHeader(const tensor::v1::TensorHeader& header);

// The tensor whose elements are all of `elements`: one copy. INVALID_ARGUMENT
// as CheckHeader, for more or fewer bytes than the header says, and for bool
// bytes that are neither 0 nor 1. RESOURCE_EXHAUSTED without memory.
absl::StatusOr<Tensor> DecodeTensor(const tensor::v1::TensorHeader& header,
                                    const Slices& elements);
absl::StatusOr<Tensor> DecodeTensor(const tensor::v1::Tensor& message);

// The tensor in one message, with a copy of its elements.
tensor::v1::Tensor EncodeTensor(const Tensor& tensor);

}  // namespace weft

#endif  // WEFT_TENSOR_CODEC_H_
