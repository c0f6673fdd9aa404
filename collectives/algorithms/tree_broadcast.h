// Binomial tree broadcast and reduce: log2 n steps.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_TREE_BROADCAST_H_
#define WEFT_COLLECTIVES_ALGORITHMS_TREE_BROADCAST_H_

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// `block` becomes the root's. Cost: log2 n steps; the root sends it log2 n
// times.
absl::Status TreeBroadcast(Link& link, const Operation& operation,
                           const Block& block);

// At the root `output` becomes the reduction of all ranks' `input`; it may be
// the same. Each rank adds its children's accumulators in a fixed order. Cost:
// log2 n steps, as many times the accumulators' bytes at the root.
absl::Status TreeReduce(Link& link, const Operation& operation,
                        const Block& input, const Block& output);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_TREE_BROADCAST_H_
