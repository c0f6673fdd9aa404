// Direct gather, scatter, all-to-all and barrier: each message goes straight to
// where it is wanted.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_DIRECT_H_
#define WEFT_COLLECTIVES_ALGORITHMS_DIRECT_H_

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// At the root outputs[r] becomes rank r's `input`. One message a rank.
absl::Status DirectGather(Link& link, const Operation& operation,
                          const Block& input, const Blocks& outputs);

// `output` becomes the root's inputs[rank]. One message a rank.
absl::Status DirectScatter(Link& link, const Operation& operation,
                           const Blocks& inputs, const Block& output);

// outputs[r] becomes rank r's inputs[rank]. n - 1 steps; in step s each rank
// sends to the one s after it, so that nobody is sent to by two at once.
absl::Status PairwiseAllToAll(Link& link, const Operation& operation,
                              const Blocks& inputs, const Blocks& outputs);

// Returns once all ranks have called it: in step k each rank tells the one 2^k
// after it. Cost: ceil(log2 n) steps of no bytes.
//
// Source: Hensgen, Finkel and Manber, "Two algorithms for barrier
// synchronization", 1988, 3.
absl::Status DisseminationBarrier(Link& link);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_DIRECT_H_
