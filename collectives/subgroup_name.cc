#include "weft/collectives/subgroup_name.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace weft::collectives {
namespace {

// FNV-1a, equal on all machines. Source: Fowler, Noll, Vo, "The FNV
// Non-Cryptographic Hash Algorithm".
uint64_t HashOf(absl::string_view text, uint64_t value) {
  for (const char c : text) {
    value = (value ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return value;
}

}  // namespace

std::string SubgroupName(absl::string_view parent, absl::string_view name) {
  const std::string whole = absl::StrCat(parent, "|", name);
  if (whole.size() <= kMostNameBytes) return whole;
  const uint64_t first = HashOf(whole, 0xcbf29ce484222325);
  const uint64_t second = HashOf(whole, first);
  const std::string hash =
      absl::StrCat("...", absl::Hex(first, absl::kZeroPad16),
                   absl::Hex(second, absl::kZeroPad16));
  return absl::StrCat(whole.substr(0, kMostNameBytes / 4), hash);
}

}  // namespace weft::collectives
