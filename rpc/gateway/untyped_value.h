// Untyped values: those of weft.rpc.v1.Value, as functions encode and decode
// theirs.
//
// A function knows its values by its C++ types; here they are turned by the
// text of its signature. What a peer sent is hostile: numbers are checked
// against their types' ranges, lengths and depth are bounded by the decoding
// of the message, and what the encoding cannot check the function's own
// decoder does.

#ifndef WEFT_RPC_GATEWAY_UNTYPED_VALUE_H_
#define WEFT_RPC_GATEWAY_UNTYPED_VALUE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "weft/base/bytes.h"
#include "weft/rpc/codec/codec.h"
#include "weft/rpc/codec/signature.h"

namespace weft::rpc {

namespace v1 {
class CallReply;
class CallRequest;
}  // namespace v1

// Reads `bytes` as a CallRequest. kInvalidArgument if it is none, is nested
// deeper than a Decoder allows, or has more than 2^18 values: many small ones
// take far more memory than bytes on the wire.
absl::Status ParseUntyped(const Slices& bytes, v1::CallRequest* request);

// kUnimplemented, naming it, if a type of `signature` has no untyped form.
absl::Status CheckUntyped(const Signature& signature);

// The arguments of `request` as a function of `signature` decodes them.
// kInvalidArgument for another number of them or a value of another type.
absl::StatusOr<Slices> EncodeUntyped(const v1::CallRequest& request,
                                     const Signature& signature);

// What a function of `signature` has returned.
absl::Status DecodeUntyped(const Received& result, const Signature& signature,
                           v1::CallReply* reply);

}  // namespace weft::rpc

#endif  // WEFT_RPC_GATEWAY_UNTYPED_VALUE_H_
