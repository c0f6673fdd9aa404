#include "weft/collectives/algorithms/ring_all_gather.h"

#include "weft/base/status_macros.h"
#include "weft/collectives/algorithms/blocks.h"

namespace weft::collectives {

absl::Status RingAllGather(Link& link, const Operation& operation,
                           const Blocks& outputs) {
  const int n = link.size();
  const int rank = link.rank();
  for (int step = 0; step < n - 1; ++step) {
    WEFT_RETURN_IF_ERROR(link.SendReceive(
        Wrap(rank + 1, n), BytesOf(operation, outputs[Wrap(rank - step, n)]),
        Wrap(rank - 1, n),
        BytesOf(operation, outputs[Wrap(rank - step - 1, n)])));
  }
  return absl::OkStatus();
}

}  // namespace weft::collectives
