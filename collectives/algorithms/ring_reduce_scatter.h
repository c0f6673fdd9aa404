// Ring reduce-scatter: n - 1 steps; each rank sends the accumulators of n - 1
// blocks to its right neighbour.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_RING_REDUCE_SCATTER_H_
#define WEFT_COLLECTIVES_ALGORITHMS_RING_REDUCE_SCATTER_H_

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// `output` becomes the reduction of all ranks' inputs[rank]; it may be that
// input, and no other input is written. Block b is reduced in the order of the
// ranks b + 1, b + 2, ..., b, so its bits depend on nothing but the inputs.
//
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for
// clusters of workstations", 2009, 3. Cost: n - 1 steps, (n - 1) / n of the
// bytes (as accumulators) sent by each rank.
absl::Status RingReduceScatter(Link& link, const Operation& operation,
                               const Blocks& inputs, const Block& output);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_RING_REDUCE_SCATTER_H_
