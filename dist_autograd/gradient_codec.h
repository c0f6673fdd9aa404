// Codec<Gradient>: an undefined gradient, a tensor, or some rows of one, which
// travel as they are: their numbers and values. It lands on the CPU: who has
// the value of which it is the gradient knows on which device that lies.

#ifndef WEFT_DIST_AUTOGRAD_GRADIENT_CODEC_H_
#define WEFT_DIST_AUTOGRAD_GRADIENT_CODEC_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "weft/autograd/gradient.h"
#include "weft/base/catch_to_status.h"
#include "weft/base/status_macros.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/tensor_codec.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/tensor.h"

namespace weft::rpc {

template <>
struct Codec<Gradient> {
  static constexpr uint64_t kUndefined = 0;
  static constexpr uint64_t kDense = 1;
  static constexpr uint64_t kSparse = 2;

  static std::string TypeName() { return "weft.Gradient"; }
  static void Encode(const Gradient& gradient, Encoder& e) {
    if (!gradient.defined()) return e.Varint(kUndefined);
    if (!gradient.is_sparse()) {
      e.Varint(kDense);
      return EncodeForHost(gradient.dense(), e);
    }
    const SparseRows& rows = gradient.sparse();
    e.Varint(kSparse);
    e.Varint(static_cast<uint64_t>(rows.rows));
    EncodeForHost(rows.indices, e);
    EncodeForHost(rows.values, e);
  }
  static absl::Status Decode(Decoder& d, Gradient& gradient) {
    uint64_t kind = 0;
    WEFT_RETURN_IF_ERROR(d.Varint(kind));
    switch (kind) {
      case kUndefined:
        gradient = Gradient();
        return absl::OkStatus();
      case kDense: {
        Tensor dense;
        WEFT_RETURN_IF_ERROR(d.Read(dense));
        gradient = Gradient(std::move(dense));
        return absl::OkStatus();
      }
      case kSparse:
        return DecodeSparse(d, gradient);
      default:
        return Decoder::Malformed("a gradient of an unknown kind");
    }
  }

 private:
  static absl::Status DecodeSparse(Decoder& d, Gradient& gradient) {
    uint64_t count = 0;
    SparseRows rows;
    WEFT_RETURN_IF_ERROR(d.Varint(count));
    WEFT_RETURN_IF_ERROR(d.Read(rows.indices, rows.values));
    if (count > uint64_t{1} << 48) {
      return Decoder::Malformed("a table of too many rows");
    }
    rows.rows = static_cast<int64_t>(count);
    // It checks that the parts fit each other.
    return CatchToStatus([&] { gradient = Gradient(std::move(rows)); });
  }
};

}  // namespace weft::rpc

#endif  // WEFT_DIST_AUTOGRAD_GRADIENT_CODEC_H_
