// Recursive doubling all-reduce: log2 n steps, all bytes in each.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_DOUBLING_ALL_REDUCE_H_
#define WEFT_COLLECTIVES_ALGORITHMS_DOUBLING_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// Every rank's `block` becomes the reduction of all, with the same bits: of two
// partners both combine the lower one's accumulators with the upper one's, in
// this order. With n no power of two, the ranks beyond the largest one first
// give theirs to a lower rank, and get the result at the end.
//
// Source: Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", 2005, 4.5. Cost: log2 n steps (and 2 if n
// is no power of two), log2 n times the bytes. For few bytes.
absl::Status DoublingAllReduce(Link& link, const Operation& operation,
                               const Block& block);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_DOUBLING_ALL_REDUCE_H_
