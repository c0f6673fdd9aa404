// RunOverLink: the algorithm for each operation between ranks that exchange
// messages.

#ifndef WEFT_COLLECTIVES_ALGORITHMS_RUN_OVER_LINK_H_
#define WEFT_COLLECTIVES_ALGORITHMS_RUN_OVER_LINK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "weft/collectives/algorithms/link.h"
#include "weft/collectives/operation.h"

namespace weft::collectives {

enum class AllReduceScheme { kRing, kDoubling, kHalving };

// What a link costs, by which an algorithm is chosen. Equal on all ranks, or
// they would choose differently.
struct LinkCost {
  double seconds_per_message = 20e-6;
  double bytes_per_second = 3e9;
  // What a rank's own work costs for each byte that it reduces: a scheme that
  // takes fewer messages has each rank reduce more. 0, as for simulated ranks:
  // nothing.
  double seconds_per_reduced_byte = 0;
  // Takes the place of the choice, in measurements and tests.
  absl::optional<AllReduceScheme> all_reduce = {};
  // An all-reduce that needs accumulators beside its block runs over so many
  // bytes of them at a time, 64 or more: memory that is used again costs no
  // page faults.
  int64_t segment_bytes = 8 << 20;
};

// The time of an all-reduce by the formula in the algorithm's header, with the
// time that a rank takes to reduce its share.
double SecondsOf(AllReduceScheme scheme, const LinkCost& cost, int ranks,
                 int64_t bytes);
// The scheme that takes the least time.
AllReduceScheme ChooseAllReduce(const LinkCost& cost, int ranks, int64_t bytes);

// Runs any collective operation. `operation` is checked and `link` is of it.
absl::Status RunOverLink(Link& link, const Operation& operation,
                         const LinkCost& cost = {});

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_ALGORITHMS_RUN_OVER_LINK_H_
