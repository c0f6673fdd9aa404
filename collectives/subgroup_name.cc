#include "weft/collectives/subgroup_name.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"

namespace weft::collectives {

std::string SubgroupName(absl::string_view parent, absl::string_view name) {
  const std::string whole = absl::StrCat(parent, "|", name);
  if (whole.size() <= kMostNameBytes) return whole;
  const XXH128_hash_t hashed = XXH3_128bits(whole.data(), whole.size());
  const std::string hash =
      absl::StrCat("...", absl::Hex(hashed.high64, absl::kZeroPad16),
                   absl::Hex(hashed.low64, absl::kZeroPad16));
  return absl::StrCat(whole.substr(0, kMostNameBytes / 4), hash);
}

}  // namespace weft::collectives
