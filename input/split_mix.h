// SplitMix64: a fast bijective hash of 64 bits.
//
// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", OOPSLA 2014: one step of its generator from state `x`.

#ifndef WEFT_INPUT_SPLIT_MIX_H_
#define WEFT_INPUT_SPLIT_MIX_H_

#include <cstdint>

namespace weft::input {

constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace weft::input

#endif  // WEFT_INPUT_SPLIT_MIX_H_
