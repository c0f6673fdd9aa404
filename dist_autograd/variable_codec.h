// Codec<Variable>: a Variable as an argument or a result. In a recorded call
// (scope.h) its history crosses with it; elsewhere one that requires a gradient
// is refused with kFailedPrecondition, so that no graph is cut in silence.

#ifndef WEFT_DIST_AUTOGRAD_VARIABLE_CODEC_H_
#define WEFT_DIST_AUTOGRAD_VARIABLE_CODEC_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "weft/autograd/variable.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/recording.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/tensor_codec.h"

namespace weft::rpc {

template <>
struct Codec<Variable> {
  static std::string TypeName() { return "weft.Variable"; }
  static void Encode(const Variable& variable, Encoder& e) {
    e.Write(variable.value());
    dist_autograd::EncodeSlot(variable, e);
  }
  static absl::Status Decode(Decoder& d, Variable& variable) {
    Tensor value;
    WEFT_RETURN_IF_ERROR(d.Read(value));
    return dist_autograd::DecodeSlot(d, std::move(value), variable);
  }
};

}  // namespace weft::rpc

#endif  // WEFT_DIST_AUTOGRAD_VARIABLE_CODEC_H_
