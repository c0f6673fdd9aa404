// Rings: each rank sends to its right neighbour only.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_RING_H_
#define WEFT_COLLECTIVES_ALGORITHMS_RING_H_

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

// outputs[r] becomes that of rank r. outputs[rank] is there already; counts may
// differ. Cost: n - 1 steps; each rank passes on what it got last, all but one
// block.
absl::Status RingAllGather(Link& link, const Operation& operation,
                           const Blocks& outputs);

// A reduce-scatter, then an all-gather: every rank's `block` becomes the
// reduction of all, with the same bits.
//
// Source: as RingReduceScatter. Cost: 2(n - 1) steps, 2(n - 1) / n of the bytes
// sent by each rank: no algorithm sends fewer. For many bytes.
absl::Status RingAllReduce(Link& link, const Operation& operation,
                           const Block& block);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_RING_H_
