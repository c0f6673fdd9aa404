// csv_fuzz: no text harms the CSV parser.

#include <cmath>

#include "weft/input/csv.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {

std::vector<std::string> FuzzSeeds() {
  return {"a,b\n1,2\n3,4\n", "\"a\"\"b\",c\r\n\"1\",-2.5e3\r\n", "1,2,3",
          "a,b\n,\n", "a;b\n1;2\n"};
}

std::vector<std::string> FuzzWords() {
  return {"\"", "\"\"", ",", "\r\n", "\n", "1e308", "nan", "-inf", "0x10"};
}

}  // namespace weft::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  weft::input::CsvOptions options;
  options.header = size % 2 == 0;
  if (size % 3 == 0) options.missing = 0.0f;
  if (size % 5 == 0) options.delimiter = ';';
  const auto table = weft::input::ParseCsv(text, options, "fuzz");
  if (!table.ok()) return 0;
  for (const float value : table->values.span<float>()) {
    if (!std::isfinite(value)) __builtin_trap();
  }
  return 0;
}
