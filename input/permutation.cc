#include "weft/input/permutation.h"

#include "weft/base/check.h"
#include "weft/input/split_mix.h"

namespace weft::input {

Permutation::Permutation(int64_t size, uint64_t seed)
    : size_(size), seed_(SplitMix64(seed)), half_bits_(1) {
  WEFT_CHECK_GE(size, 0);
  WEFT_CHECK_LE(size, int64_t{1} << 62);
  while ((uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(size)) {
    ++half_bits_;
  }
}

int64_t Permutation::operator()(int64_t i) const {
  WEFT_CHECK(i >= 0 && i < size_) << "index " << i << " of " << size_;
  // A bijection of the domain restricted to cycles that pass through [0, size):
  // the walk comes back inside. The domain is below 4 * size, so in about 4
  // steps at worst on average.
  uint64_t x = static_cast<uint64_t>(i);
  do {
    x = Encrypt(x);
  } while (x >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(x);
}

uint64_t Permutation::Encrypt(uint64_t x) const {
  constexpr int kRounds = 6;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_;
  uint64_t right = x & mask;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t mixed =
        left ^ (SplitMix64(seed_ + (right << 3) + round) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

}  // namespace weft::input
