// csv_fuzz: no text harms the CSV parser.

#include <cmath>

#include "weft/input/csv.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  return {"a,b\n1,2\n3,4\n", "\"a\"\"b\",c\r\n\"1\",-2.5e3\r\n", "1,2,3",
          "a,b\n,\n", "a;b\n1;2\n"};
}

std::vector<std::string> Words() {
  return {"\"", "\"\"", ",", "\r\n", "\n", "1e308", "nan", "-inf", "0x10"};
}

void Run(absl::string_view text) {
  input::CsvOptions options;
  options.header = text.size() % 2 == 0;
  if (text.size() % 3 == 0) options.missing = 0.0f;
  if (text.size() % 5 == 0) options.delimiter = ';';
  const auto table = input::ParseCsv(text, options, "fuzz");
  if (!table.ok()) return;
  for (const float value : table->values.span<float>()) {
    Hold(std::isfinite(value));
  }
}

WEFT_FUZZ_TARGET(csv, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
