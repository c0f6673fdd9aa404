// Codec<Tensor>: a tensor in a call.
//
// Its elements are sent in their layout in memory: without a copy if the tensor
// was their only handle and was moved into the call; else they are copied
// first, so that later writes do not change what is sent. A large tensor that
// is received uses the memory into which its bytes were received.
//
// One of a device lands on the device that the caller's device map names, and
// keeps its dtype and shape: device_tensors.h. In values of streams, details of
// errors and untyped calls there is none: kInvalidArgument.

#ifndef WEFT_RPC_CODEC_TENSOR_CODEC_H_
#define WEFT_RPC_CODEC_TENSOR_CODEC_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "weft/rpc/codec/codec.h"
#include "weft/tensor/payload.h"
#include "weft/tensor/tensor.h"

namespace weft::rpc {

template <>
struct Codec<Tensor> {
  static std::string TypeName() { return "tensor"; }
  static void Encode(const Tensor& tensor, Encoder& encoder);
  static void Encode(Tensor&& tensor, Encoder& encoder);
  static absl::Status Decode(Decoder& decoder, Tensor& tensor);
};

// As Codec<Tensor>::Encode, but one of a device lands on the CPU, and no device
// map is asked: for who knows where to put it (gradients).
void EncodeForHost(const Tensor& tensor, Encoder& encoder);

namespace internal {

// As Codec<Tensor>::Encode, but large contiguous elements are taken along as
// they lie; then `borrowed` tells whether they have changed since.
void EncodeBorrowed(const Tensor& tensor, Encoder& encoder,
                    std::vector<Payload>& borrowed);

}  // namespace internal
}  // namespace weft::rpc

#endif  // WEFT_RPC_CODEC_TENSOR_CODEC_H_
