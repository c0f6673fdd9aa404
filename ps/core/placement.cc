#include "weft/ps/core/placement.h"

#include "weft/base/check.h"

namespace weft::ps {

Placement::Placement(absl::string_view table, int partitions, int servers)
    : partitions_(partitions), servers_(servers), first_(HashName(table)) {
  WEFT_CHECK(partitions > 0 && (partitions & (partitions - 1)) == 0);
  WEFT_CHECK(servers > 0);
  int bits = 0;
  while ((1 << bits) < partitions) ++bits;
  shift_ = 64 - bits;
}

}  // namespace weft::ps
