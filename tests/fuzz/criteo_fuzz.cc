// criteo_fuzz: no text harms the parser of click logs, and what it accepts
// holds.

#include <algorithm>
#include <cmath>

#include "weft/input/criteo.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

// A line of empty integers and categories, but for the first of each.
std::string Line(const std::string& label, const std::string& integer,
                 const std::string& category) {
  return label + "\t" + integer + std::string(input::criteo::kDense, '\t') +
         category + std::string(input::criteo::kFields - 1, '\t');
}

std::vector<std::string> Seeds() {
  return {Line("1", "5", "68fd1e64") + "\n" + Line("0", "-2", "") + "\r\n",
          Line("0", "", "ffffffff"),
          Line("1", "1", "a") + "\n\n" + Line("0", "3", "b") + "\n",
          Line("1", "x", "a"), Line("2", "1", "xyz") + "\n1\t2\n"};
}

std::vector<std::string> Words() {
  return {"\t",
          "\n",
          "\r\n",
          "9223372036854775807",
          "-1",
          "68fd1e64",
          Line("1", "7", "c")};
}

void Run(absl::string_view text) {
  for (const bool skip : {false, true}) {
    input::CriteoOptions options;
    options.skip_bad_lines = skip;
    const auto rows = input::ParseCriteo(text, options, "fuzz");
    if (!rows.ok()) continue;
    const size_t n = rows->labels.size();
    Hold(n > 0);
    Hold(rows->dense.size() == n * input::criteo::kDense);
    Hold(rows->categories.size() == n * input::criteo::kFields);
    Hold(rows->missing.size() == n);
    const auto ends = std::count(text.begin(), text.end(), '\n');
    const int64_t lines = ends + (text.back() == '\n' ? 0 : 1);
    Hold(rows->size() + rows->skipped == lines);
    Hold(skip || rows->skipped == 0);
    for (const uint8_t label : rows->labels) Hold(label <= 1);
    for (const float x : rows->dense) Hold(std::isfinite(x) && x >= 0);
    for (const uint32_t bits : rows->missing) {
      Hold(bits >> input::criteo::kFields == 0);
    }
  }
}

WEFT_FUZZ_TARGET(criteo, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
