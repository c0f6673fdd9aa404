// Codecs of ContextId, PassId and MessageInterval, so that functions may take
// them.

#ifndef WEFT_DIST_AUTOGRAD_CONTEXT_CODEC_H_
#define WEFT_DIST_AUTOGRAD_CONTEXT_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "weft/base/status_macros.h"
#include "weft/dist_autograd/context.h"
#include "weft/dist_autograd/core/message_set.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/worker_codec.h"

namespace weft::rpc {

template <>
struct Codec<dist_autograd::ContextId> {
  static std::string TypeName() { return "weft.ContextId"; }
  static void Encode(const dist_autograd::ContextId& id, Encoder& e) {
    e.Write(id.creator, id.number);
  }
  static absl::Status Decode(Decoder& d, dist_autograd::ContextId& id) {
    return d.Read(id.creator, id.number);
  }
};

template <>
struct Codec<dist_autograd::PassId> {
  static std::string TypeName() { return "weft.PassId"; }
  static void Encode(const dist_autograd::PassId& id, Encoder& e) {
    e.Write(id.root, id.number);
  }
  static absl::Status Decode(Decoder& d, dist_autograd::PassId& id) {
    return d.Read(id.root, id.number);
  }
};

template <>
struct Codec<dist_autograd::MessageInterval> {
  static std::string TypeName() { return "weft.MessageInterval"; }
  static void Encode(const dist_autograd::MessageInterval& i, Encoder& e) {
    e.Varint(i.first);
    e.Varint(i.last - i.first);
  }
  static absl::Status Decode(Decoder& d, dist_autograd::MessageInterval& i) {
    uint64_t more = 0;
    WEFT_RETURN_IF_ERROR(d.Varint(i.first));
    WEFT_RETURN_IF_ERROR(d.Varint(more));
    // A peer must not make this worker walk through numbers that nobody gave.
    constexpr uint64_t kMost = dist_autograd::kLastMessage;
    if (i.first == 0 || i.first > kMost || more > kMost - i.first) {
      return Decoder::Malformed("message numbers that cannot be");
    }
    i.last = i.first + more;
    return absl::OkStatus();
  }
};

}  // namespace weft::rpc

#endif  // WEFT_DIST_AUTOGRAD_CONTEXT_CODEC_H_
