// Ring all-reduce: a ring reduce-scatter, then a ring all-gather.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_RING_ALL_REDUCE_H_
#define WEFT_COLLECTIVES_ALGORITHMS_RING_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// Every rank's `block` becomes the reduction of all, with the same bits.
//
// Source: as RingReduceScatter. Cost: 2(n - 1) steps, 2(n - 1) / n of the bytes
// sent by each rank: no algorithm sends fewer. For many bytes.
absl::Status RingAllReduce(Link& link, const Operation& operation,
                           const Block& block);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_RING_ALL_REDUCE_H_
