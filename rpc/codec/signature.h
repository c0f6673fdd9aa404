// Signature: the types of a function, read from the text that names them.
//
// WEFT_RPC writes the text, "tensor(tensor, f64)", from the types' codecs; a
// client that has no C++ types of them reads it to know what the function
// takes.

#ifndef WEFT_RPC_CODEC_SIGNATURE_H_
#define WEFT_RPC_CODEC_SIGNATURE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::rpc {

// A type as a Codec names it.
struct Type {
  enum class Kind {
    kVoid,  // of results only
    kBool,
    kSigned,    // i8 i16 i32 i64
    kUnsigned,  // u8 u16 u32 u64
    kFloat,     // f32 f64
    kString,
    kBytes,
    kTensor,
    kMessage,   // proto:NAME
    kVector,    // of[0]
    kMap,       // of[0] to of[1]
    kTuple,     // each of `of`; a pair too
    kOptional,  // of[0]
    kVariant,   // one of `of`
    kNone,      // std::monostate
    kOther,     // a user's own
  };

  Kind kind = Kind::kOther;
  std::string name;      // as it is written: vector<f64>
  int bytes = 0;         // of a number
  bool is_enum = false;  // kSigned or kUnsigned, written enum:i32
  std::vector<Type> of;

  bool is_number() const {
    return kind == Kind::kSigned || kind == Kind::kUnsigned ||
           kind == Kind::kFloat;
  }
};

struct Signature {
  Type result;
  std::vector<Type> parameters;
};

// kInvalidArgument if `text` is not RESULT(TYPE, TYPE...), is longer than 4 KiB
// or nests deeper than 32. A type that it does not know is kOther.
absl::StatusOr<Signature> ParseSignature(absl::string_view text);

}  // namespace weft::rpc

#endif  // WEFT_RPC_CODEC_SIGNATURE_H_
