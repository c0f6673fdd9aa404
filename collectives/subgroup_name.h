// SubgroupName: what a backend calls a group that is made from another.

#ifndef WEFT_COLLECTIVES_SUBGROUP_NAME_H_
#define WEFT_COLLECTIVES_SUBGROUP_NAME_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace weft::collectives {

// Room is left for what is put before and after it in a key of the store (1
// KiB) and in the first message of a stream (4 KiB).
inline constexpr size_t kMostNameBytes = 512;

// "parent|name": another group of the name `name` has such children too. Where
// that is longer than kMostNameBytes, as after many a Shrink, its beginning and
// a hash of all of it.
std::string SubgroupName(absl::string_view parent, absl::string_view name);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_SUBGROUP_NAME_H_
