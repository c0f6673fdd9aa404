// manifest_fuzz: no bytes harm the manifest's parser, with a checksum that
// fits or not.

#include "weft/checkpoint/digest.h"
#include "weft/checkpoint/manifest.h"
#include "weft/tests/fuzz/fuzz_target.h"

namespace weft::testing {
namespace {

std::vector<std::string> Seeds() {
  checkpoint::Manifest manifest;
  manifest.step = 12;
  const std::string empty = *checkpoint::FormatManifest(manifest);
  manifest.metadata = {{"epoch", "3"}};
  manifest.files = {
      {checkpoint::ShardName(0), "ps0", checkpoint::DigestOf("a")},
      {checkpoint::ShardName(1), "ps1", checkpoint::DigestOf("b")}};
  const std::string full = *checkpoint::FormatManifest(manifest);
  // What has changed since `full`, and since that.
  manifest.files[1].is_delta = true;
  manifest.parent = {"step-12", "a1", std::string(64, '0'), 0};
  manifest.links = 1;
  const std::string delta = *checkpoint::FormatManifest(manifest);
  manifest.parent->links = manifest.links++;
  return {empty, full, delta, *checkpoint::FormatManifest(manifest)};
}

std::vector<std::string> Words() {
  return {"{",
          "}",
          "[",
          "]",
          "\"step\":",
          "-1",
          "1e999",
          "null",
          "\"\"",
          "\"version\":2",
          "../",
          "[[[[[[[[[[",
          "\xff",
          "\"files\":",
          "\"parent\":",
          "\"links\":",
          "\"delta\":true"};
}

void Run(absl::string_view input) {
  const std::string text(input);
  (void)checkpoint::ParseManifest(text, "fuzz");
  // {"checksum":" takes 13 bytes, the digits 64, and ",\n 3 more.
  if (text.size() < 80) return;
  const std::string body = text.substr(80);
  const auto manifest = checkpoint::ParseManifest(
      "{\"checksum\":\"" + checkpoint::DigestOf(body).sha256 + "\",\n" + body,
      "fuzz");
  if (!manifest.ok()) return;
  for (const auto& file : manifest->files) {
    Hold(checkpoint::IsShardName(file.name));
  }
}

WEFT_FUZZ_TARGET(manifest, Seeds, Words, Run);

}  // namespace
}  // namespace weft::testing
