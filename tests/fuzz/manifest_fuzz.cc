// manifest_fuzz: no bytes harm the manifest's parser, with a checksum that
// fits or not.

#include "weft/checkpoint/digest.h"
#include "weft/checkpoint/manifest.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {

std::vector<std::string> FuzzSeeds() {
  checkpoint::Manifest manifest;
  manifest.step = 12;
  const std::string empty = *checkpoint::FormatManifest(manifest);
  manifest.metadata = {{"epoch", "3"}};
  manifest.files = {
      {checkpoint::ShardName(0), "ps0", checkpoint::DigestOf("a")},
      {checkpoint::ShardName(1), "ps1", checkpoint::DigestOf("b")}};
  return {empty, *checkpoint::FormatManifest(manifest)};
}

std::vector<std::string> FuzzWords() {
  return {"{",   "}",          "[",    "]",         "\"step\":",
          "-1",  "1e999",      "null", "\"\"",      "\"version\":2",
          "../", "[[[[[[[[[[", "\xff", "\"files\":"};
}

}  // namespace weft::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)weft::checkpoint::ParseManifest(text, "fuzz");
  // {"checksum":" takes 13 bytes, the digits 64, and ",\n 3 more.
  if (size < 80) return 0;
  const std::string body = text.substr(80);
  const auto manifest = weft::checkpoint::ParseManifest(
      "{\"checksum\":\"" + weft::checkpoint::DigestOf(body).sha256 + "\",\n" +
          body,
      "fuzz");
  if (!manifest.ok()) return 0;
  for (const auto& file : manifest->files) {
    if (!weft::checkpoint::IsShardName(file.name)) __builtin_trap();
  }
  return 0;
}
