// libsvm_fuzz: no text harms the LibSVM parser, and what it accepts holds.

#include "weft/input/libsvm.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  return {"1 1:0.5 7:-2\n-1 2:1\n", "+1 3:1e3 # comment\r\n\n0\n",
          "0.5 0:1 1099511627776:2"};
}

std::vector<std::string> Words() {
  return {":",    " ",     "#",   "\n", "9223372036854775807:1",
          "-1:1", "1:nan", " 5:1"};
}

void Run(absl::string_view text) {
  const auto rows = input::ParseLibSvm(text, "fuzz");
  if (!rows.ok()) return;
  Hold(rows->offsets.size() == rows->labels.size() + 1);
  Hold(rows->indices.size() == rows->values.size());
  Hold(static_cast<size_t>(rows->offsets.back()) == rows->indices.size());
  for (const int64_t index : rows->indices) {
    Hold(index >= 0 && index < rows->features);
  }
}

WEFT_FUZZ_TARGET(libsvm, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
