#include "weft/rpc/codec/signature.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "weft/base/status_macros.h"

namespace weft::rpc {
namespace {

using Kind = Type::Kind;

constexpr size_t kMaxText = 4096;
constexpr int kMaxDepth = 32;

// Reads one signature from left to right.
class Reader {
 public:
  explicit Reader(absl::string_view text) : text_(text), rest_(text) {}

  absl::StatusOr<Signature> Read() {
    Signature signature;
    if (text_.size() > kMaxText) return Malformed("it is longer than 4 KiB");
    WEFT_ASSIGN_OR_RETURN(signature.result, ReadType(0));
    if (!absl::ConsumePrefix(&rest_, "(")) return Malformed("wanted '('");
    WEFT_ASSIGN_OR_RETURN(signature.parameters, ReadTypes(')', 0));
    if (!rest_.empty()) return Malformed("more follows");
    return signature;
  }

 private:
  absl::Status Malformed(absl::string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrCat("signature \"", absl::CHexEscape(text_.substr(0, 200)),
                     "\": ", why, " at ", text_.size() - rest_.size()));
  }

  // TYPE, TYPE... and `end`.
  absl::StatusOr<std::vector<Type>> ReadTypes(char end, int depth) {
    std::vector<Type> types;
    const absl::string_view close(&end, 1);
    if (absl::ConsumePrefix(&rest_, close)) return types;
    do {
      WEFT_ASSIGN_OR_RETURN(Type type, ReadType(depth));
      types.push_back(std::move(type));
    } while (absl::ConsumePrefix(&rest_, ", "));
    if (!absl::ConsumePrefix(&rest_, close)) {
      return Malformed(absl::StrCat("wanted ", close));
    }
    return types;
  }

  absl::StatusOr<Type> ReadType(int depth) {
    if (depth == kMaxDepth) return Malformed("it nests deeper than 32");
    const absl::string_view start = rest_;
    Type type;
    if (absl::ConsumePrefix(&rest_, "(")) {
      WEFT_ASSIGN_OR_RETURN(type.of, ReadTypes(')', depth + 1));
      type.kind = Kind::kTuple;
    } else {
      const absl::string_view word =
          rest_.substr(0, rest_.find_first_of("<>(),"));
      if (word.empty()) return Malformed("wanted a type");
      rest_.remove_prefix(word.size());
      if (absl::ConsumePrefix(&rest_, "<")) {
        WEFT_ASSIGN_OR_RETURN(type.of, ReadTypes('>', depth + 1));
        type.kind = ContainerNamed(word, type.of.size());
      } else {
        SetPlain(word, &type);
      }
    }
    type.name = std::string(start.substr(0, start.size() - rest_.size()));
    return type;
  }

  static Kind ContainerNamed(absl::string_view word, size_t arguments) {
    if (word == "vector" && arguments == 1) return Kind::kVector;
    if (word == "optional" && arguments == 1) return Kind::kOptional;
    if (word == "map" && arguments == 2) return Kind::kMap;
    if (word == "variant" && arguments > 0) return Kind::kVariant;
    return Kind::kOther;
  }

  static void SetPlain(absl::string_view word, Type* type) {
    static constexpr struct {
      absl::string_view name;
      Kind kind;
      int bytes;
    } kPlain[] = {{"void", Kind::kVoid, 0},     {"bool", Kind::kBool, 0},
                  {"i8", Kind::kSigned, 1},     {"i16", Kind::kSigned, 2},
                  {"i32", Kind::kSigned, 4},    {"i64", Kind::kSigned, 8},
                  {"u8", Kind::kUnsigned, 1},   {"u16", Kind::kUnsigned, 2},
                  {"u32", Kind::kUnsigned, 4},  {"u64", Kind::kUnsigned, 8},
                  {"f32", Kind::kFloat, 4},     {"f64", Kind::kFloat, 8},
                  {"string", Kind::kString, 0}, {"bytes", Kind::kBytes, 0},
                  {"tensor", Kind::kTensor, 0}, {"none", Kind::kNone, 0}};
    if (absl::StartsWith(word, "proto:")) {
      type->kind = Kind::kMessage;
      return;
    }
    type->is_enum = absl::ConsumePrefix(&word, "enum:");
    for (const auto& plain : kPlain) {
      if (word != plain.name) continue;
      type->kind = plain.kind;
      type->bytes = plain.bytes;
    }
  }

  const absl::string_view text_;
  absl::string_view rest_;
};

}  // namespace

absl::StatusOr<Signature> ParseSignature(absl::string_view text) {
  return Reader(text).Read();
}

}  // namespace weft::rpc
