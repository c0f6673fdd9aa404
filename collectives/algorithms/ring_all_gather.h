// Ring all-gather: n - 1 steps; each rank passes on what it got last.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_RING_ALL_GATHER_H_
#define WEFT_COLLECTIVES_ALGORITHMS_RING_ALL_GATHER_H_

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// outputs[r] becomes that of rank r. outputs[rank] is there already; counts may
// differ. Cost: n - 1 steps; each rank sends all but one block.
absl::Status RingAllGather(Link& link, const Operation& operation,
                           const Blocks& outputs);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_RING_ALL_GATHER_H_
