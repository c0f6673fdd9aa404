// signature: no text harms the reader of signatures.

#include "weft/rpc/codec/signature.h"
#include "weft/rpc/gateway/untyped_value.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  return {"tensor(tensor, f64)", "void()",
          "map<string, vector<optional<i32>>>((i32, proto:a.B), enum:u8)",
          "variant<none, i64>(example.Point<2>)", "bool(bytes, (), u16)"};
}

std::vector<std::string> Words() {
  return {"(",    ")",     "<",      ">",         ", ",       "vector<",
          "map<", "enum:", "proto:", "optional<", "variant<", "i64"};
}

void Run(absl::string_view text) {
  const auto signature = rpc::ParseSignature(text);
  if (!signature.ok()) return;
  (void)rpc::CheckUntyped(*signature);
  Hold(text.substr(0, signature->result.name.size()) == signature->result.name);
}

WEFT_FUZZ_TARGET(signature, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
