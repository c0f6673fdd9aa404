// Random: the seeded source of every choice of a simulation.

#ifndef WEFT_SIM_RANDOM_H_
#define WEFT_SIM_RANDOM_H_

#include <cstdint>

#include "absl/time/time.h"
#include "weft/base/check.h"

namespace weft::sim {

// The same numbers from the same seed on every machine, which the standard
// distributions do not promise.
// Thread-safety: one thread at a time.
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// OOPSLA 2014 (SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  // In [0, n). The bias of the remainder is below n / 2^64. REQUIRES: n > 0.
  int64_t Below(int64_t n) {
    WEFT_CHECK_GT(n, 0);
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(n));
  }

  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

  // In [low, high].
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    return low +
           absl::Nanoseconds(Below(absl::ToInt64Nanoseconds(high - low) + 1));
  }

 private:
  uint64_t state_;
};

}  // namespace weft::sim

#endif  // WEFT_SIM_RANDOM_H_
