// Philox 4x32-10, and the numbers that Generator makes of it, for the CPU and
// for kernels alike.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011.

#ifndef WEFT_TENSOR_CUDA_PHILOX_H_
#define WEFT_TENSOR_CUDA_PHILOX_H_

#include <cmath>
#include <cstdint>

#include "weft/tensor/cuda/host_device.h"

namespace weft::internal {

struct PhiloxBlock {
  uint32_t words[4];
};

// `counter` encrypted ten rounds with `key`.
WEFT_HOST_DEVICE inline PhiloxBlock Philox(PhiloxBlock counter, uint32_t key0,
                                           uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter.words[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter.words[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.words[1] ^ key0,
                static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.words[3] ^ key1,
                static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The numbers of one stream of one seed, by position, counted in 32-bit ones.
struct PhiloxStream {
  uint64_t seed;
  uint64_t stream;

  WEFT_HOST_DEVICE PhiloxBlock BlockAt(uint64_t index) const {
    return Philox(
        {{static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
          static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}},
        static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
  // Uniform in [0, 1), 53 bits, of the two numbers at `position`.
  WEFT_HOST_DEVICE double DoubleAt(uint64_t position) const {
    const PhiloxBlock first = BlockAt(position / 4);
    const uint32_t low = first.words[position % 4];
    const uint64_t next = position + 1;
    const uint32_t high =
        next % 4 == 0 ? BlockAt(next / 4).words[0] : first.words[next % 4];
    return static_cast<double>((low | static_cast<uint64_t>(high) << 32) >>
                               11) *
           1.1102230246251565404e-16;  // 2^-53
  }
  // A normal number of mean 0 and variance 1, made from the four numbers at
  // `position` by the cosine half of the Box-Muller transform.
  WEFT_HOST_DEVICE double NormalAt(uint64_t position) const {
    constexpr double kTwoPi = 6.283185307179586;
    const double radius = std::sqrt(-2 * std::log(1 - DoubleAt(position)));
    return radius * std::cos(kTwoPi * DoubleAt(position + 2));
  }
};

}  // namespace weft::internal

#endif  // WEFT_TENSOR_CUDA_PHILOX_H_
