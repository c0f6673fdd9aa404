// safetensors_fuzz: no bytes harm the reader, and what it accepts holds.

#include "weft/checkpoint/little_endian.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::string File(const std::string& json, size_t elements) {
  return checkpoint::LittleEndian64(json.size()) + json +
         std::string(elements, '\1');
}

std::vector<std::string> Seeds() {
  return {
      File("{}", 0),
      File("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
           8),
      File("{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"BOOL\",\"shape\""
           ":[1,3],\"data_offsets\":[8,11]},\"b\":{\"dtype\":\"I64\",\"shape\":"
           "[],\"data_offsets\":[0,8]}}",
           11)};
}

std::vector<std::string> Words() {
  return {"{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"dtype\":",
          "\"shape\":",
          "-1",
          "1e9",
          "null",
          "\"a\"",
          "18446744073709551615",
          "\"U8\"",
          "9223372036854775807",
          "\\u0000",
          "\"__metadata__\":"};
}

void Run(absl::string_view file) {
  // As given, and with the length made right, so that the header is reached.
  std::string repaired(file);
  if (file.size() >= 8) {
    const size_t end = repaired.rfind('}');
    const size_t length = end == std::string::npos || end < 8 ? 0 : end - 7;
    repaired.replace(0, 8, checkpoint::LittleEndian64(length));
  }
  for (const absl::string_view bytes : {file, absl::string_view(repaired)}) {
    const auto content = checkpoint::ParseSafetensors(bytes, "fuzz");
    if (!content.ok()) continue;
    int64_t total = 0;
    for (const auto& [name, tensor] : content->tensors) total += tensor.bytes();
    Hold(total <= static_cast<int64_t>(bytes.size()));
  }
}

WEFT_FUZZ_TARGET(safetensors, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
