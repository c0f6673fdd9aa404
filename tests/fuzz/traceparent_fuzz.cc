// traceparent: no header harms the reader of W3C trace contexts.

#include "weft/telemetry/trace_context.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  return {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
          "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more"};
}

std::vector<std::string> Words() {
  return {"-", "ff", "00000000000000000000000000000000", "0000000000000000",
          "A"};
}

void Run(absl::string_view header) {
  const auto context = telemetry::ParseTraceparent(header);
  Hold(!context.ok() || header.size() >= Seeds()[0].size());
}

WEFT_FUZZ_TARGET(traceparent, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
