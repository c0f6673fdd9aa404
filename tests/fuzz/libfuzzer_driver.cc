// libfuzzer_driver: the fuzz target that WEFT_FUZZ_TARGET names, as libFuzzer
// runs it; or, for libFuzzer to start from,
//
//   --write-corpus=DIR   of each target x the seeds, DIR/x/*, and its words,
//                        DIR/x.dict

#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace {

using weft::testing::FuzzTarget;
using weft::testing::FuzzTargets;

const FuzzTarget& Chosen() {
  google::protobuf::SetLogHandler(nullptr);  // a line for each bad string
  const char* name = std::getenv("WEFT_FUZZ_TARGET");
  for (const FuzzTarget& target : FuzzTargets()) {
    if (name != nullptr && target.name == name) return target;
  }
  std::fprintf(stderr, "wanted WEFT_FUZZ_TARGET to be one of:");
  for (const FuzzTarget& target : FuzzTargets()) {
    std::fprintf(stderr, " %s", target.name.c_str());
  }
  std::fprintf(stderr, "\n");
  std::exit(2);
}

void WriteCorpus(const FuzzTarget& target, const std::string& directory) {
  const std::string seeds = directory + "/" + target.name;
  std::filesystem::create_directories(seeds);
  int number = 0;
  for (const std::string& seed : target.seeds()) {
    std::ofstream(seeds + "/" + std::to_string(number++)) << seed;
  }
  std::ofstream words(seeds + ".dict");
  for (const std::string& word : target.words()) {
    if (word.empty()) continue;
    words << '"';
    for (const unsigned char byte : word) {
      words << absl::StrFormat("\\x%02x", byte);
    }
    words << "\"\n";
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  absl::string_view word = *argc > 1 ? (*argv)[1] : "";
  if (!absl::ConsumePrefix(&word, "--write-corpus=")) return 0;
  for (const FuzzTarget& target : FuzzTargets()) {
    WriteCorpus(target, std::string(word));
  }
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const FuzzTarget& target = Chosen();
  target.run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
