// Recursive halving and doubling all-reduce: 2 log2 n steps, as few bytes as
// the ring.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_HALVING_ALL_REDUCE_H_
#define WEFT_COLLECTIVES_ALGORITHMS_HALVING_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// Every rank's `block` becomes the reduction of all, with the same bits: each
// part of it is reduced on one rank, in an order that the numbers of the ranks
// give. With n no power of two, the ranks beyond the largest one first give all
// they have to a lower rank, and get the result at the end.
//
// Source: Rabenseifner, "Optimization of collective reduction operations",
// 2004, 3.1. Cost, with p the largest power of two up to n: 2 log2 p steps,
// 2(p - 1) / p of the bytes; if p < n two steps and twice the bytes more.
absl::Status HalvingAllReduce(Link& link, const Operation& operation,
                              const Block& block);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_HALVING_ALL_REDUCE_H_
