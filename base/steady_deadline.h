// SteadyDeadline: when a wait of CondVar ends.

#ifndef WEFT_BASE_STEADY_DEADLINE_H_
#define WEFT_BASE_STEADY_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace weft {

// After `timeout`, which may be infinite: a year stands for ever, since adding
// the longest durations would overflow.
inline std::chrono::steady_clock::time_point SteadyDeadline(
    absl::Duration timeout) {
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24 * 365)));
}

}  // namespace weft

#endif  // WEFT_BASE_STEADY_DEADLINE_H_
