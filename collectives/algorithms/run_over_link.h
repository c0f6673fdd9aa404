// RunOverLink: the algorithm for each operation between ranks that exchange
// messages.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_RUN_OVER_LINK_H_
#define WEFT_COLLECTIVES_ALGORITHMS_RUN_OVER_LINK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

// What a link costs, by which an algorithm is chosen. Equal on all ranks, or
// they would choose differently.
struct LinkCost {
  double seconds_per_message = 20e-6;
  double bytes_per_second = 3e9;
};

// The choice for an all-reduce, by the cost in each algorithm's header.
enum class AllReduceScheme { kRing, kDoubling };
AllReduceScheme ChooseAllReduce(const LinkCost& cost, int ranks, int64_t bytes);

// Runs any collective operation. `operation` is checked and `link` is of it.
absl::Status RunOverLink(Link& link, const Operation& operation,
                         const LinkCost& cost = {});

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_RUN_OVER_LINK_H_
