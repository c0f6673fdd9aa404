// libfuzzer_driver: the fuzz target that WEFT_FUZZ_TARGET names, as libFuzzer
// runs it.

#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace {

const weft::testing::FuzzTarget& Chosen() {
  google::protobuf::SetLogHandler(nullptr);  // a line for each bad string
  const char* name = std::getenv("WEFT_FUZZ_TARGET");
  for (const auto& target : weft::testing::FuzzTargets()) {
    if (name != nullptr && target.name == name) return target;
  }
  std::fprintf(stderr, "wanted WEFT_FUZZ_TARGET to be one of:");
  for (const auto& target : weft::testing::FuzzTargets()) {
    std::fprintf(stderr, " %s", target.name.c_str());
  }
  std::fprintf(stderr, "\n");
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const weft::testing::FuzzTarget& target = Chosen();
  target.run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
