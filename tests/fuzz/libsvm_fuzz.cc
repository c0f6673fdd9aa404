// libsvm_fuzz: no text harms the LibSVM parser, and what it accepts holds.

#include "weft/input/libsvm.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {

std::vector<std::string> FuzzSeeds() {
  return {"1 1:0.5 7:-2\n-1 2:1\n", "+1 3:1e3 # comment\r\n\n0\n",
          "0.5 0:1 1099511627776:2"};
}

std::vector<std::string> FuzzWords() {
  return {":",    " ",     "#",   "\n", "9223372036854775807:1",
          "-1:1", "1:nan", " 5:1"};
}

}  // namespace weft::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto rows = weft::input::ParseLibSvm(text, "fuzz");
  if (!rows.ok()) return 0;
  if (rows->offsets.size() != rows->labels.size() + 1) __builtin_trap();
  if (rows->indices.size() != rows->values.size()) __builtin_trap();
  if (static_cast<size_t>(rows->offsets.back()) != rows->indices.size()) {
    __builtin_trap();
  }
  for (const int64_t index : rows->indices) {
    if (index < 0 || index >= rows->features) __builtin_trap();
  }
  return 0;
}
