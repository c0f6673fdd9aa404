// Parts: groups made from others, as tests ask for them.

#ifndef WEFT_TESTS_OUTSIDE_GROUPS_PARTS_H_
#define WEFT_TESTS_OUTSIDE_GROUPS_PARTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "weft/base/status_macros.h"
#include "weft/collectives/process_group.h"

namespace weft::outside {

using Part = std::unique_ptr<collectives::ProcessGroup>;

inline collectives::SubgroupOptions Within(absl::Duration timeout) {
  collectives::SubgroupOptions options;
  options.timeout = timeout;
  return options;
}
inline collectives::SubgroupOptions WithArena(int64_t bytes) {
  collectives::SubgroupOptions options;
  options.arena_bytes = bytes;
  return options;
}

// OK if `group` adds up.
inline absl::Status Works(collectives::ProcessGroup& group) {
  const Tensor sum = Tensor::Full({3}, group.rank() + 1);
  WEFT_RETURN_IF_ERROR(group.AllReduce(sum));
  const auto n = static_cast<float>(group.size());
  return sum.ToVector<float>() == std::vector<float>(3, n * (n + 1) / 2)
             ? absl::OkStatus()
             : absl::DataLossError("a wrong sum");
}

}  // namespace weft::outside

#endif  // WEFT_TESTS_OUTSIDE_GROUPS_PARTS_H_
