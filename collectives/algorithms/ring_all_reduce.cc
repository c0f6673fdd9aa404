#include "weft/collectives/algorithms/ring_all_reduce.h"

#include "weft/base/status_macros.h"
#include "weft/collectives/algorithms/blocks.h"
#include "weft/collectives/algorithms/ring_all_gather.h"
#include "weft/collectives/algorithms/ring_reduce_scatter.h"

namespace weft::collectives {

absl::Status RingAllReduce(Link& link, const Operation& operation,
                           const Block& block) {
  const Blocks parts = PartsOf(block, operation.dtype, link.size());
  WEFT_RETURN_IF_ERROR(
      RingReduceScatter(link, operation, parts, parts[link.rank()]));
  return RingAllGather(link, operation, parts);
}

}  // namespace weft::collectives
