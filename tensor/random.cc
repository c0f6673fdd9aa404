#include "weft/tensor/random.h"

#include <cmath>
#include <utility>

#include "weft/base/error.h"

namespace weft {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                   std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

uint32_t Generator::NextU32() {
  const uint64_t index = position_ / 4;
  if (index != block_index_) {
    block_ = Philox4x32(
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)},
        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
    block_index_ = index;
  }
  return block_[position_++ % 4];
}

uint64_t Generator::NextU64() {
  const uint64_t low = NextU32();
  return low | static_cast<uint64_t>(NextU32()) << 32;
}

double Generator::NextDouble() {
  return static_cast<double>(NextU64() >> 11) * 0x1p-53;
}

// Box and Muller's pair without its sine: a number of the stream then depends
// on its position alone.
double Generator::NextNormal() {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2 * std::log(1 - NextDouble()));
  return radius * std::cos(kTwoPi * NextDouble());
}

// Multiplies instead of dividing, and draws again in the few cases that would
// favour some numbers. Source: Lemire, "Fast random integer generation in an
// interval", ACM TOMACS 29(1), 2019.
uint64_t Generator::NextBelow(uint64_t n) {
  const uint64_t unfair = -n % n;
  for (;;) {
    const auto product = static_cast<unsigned __int128>(NextU64()) * n;
    if (static_cast<uint64_t>(product) >= unfair) {
      return static_cast<uint64_t>(product >> 64);
    }
  }
}

Generator Generator::Fork(uint64_t index) const {
  // The child's stream is a block of the cipher under another counter, so that
  // it meets neither its parent's numbers nor, but by chance of 2^-64, a
  // sibling's.
  const std::array<uint32_t, 4> block = Philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(~stream_), static_cast<uint32_t>(~stream_ >> 32)},
      {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)});
  return Generator(seed_, static_cast<uint64_t>(block[1]) << 32 | block[0]);
}

void Generator::Seek(uint64_t position) { position_ = position; }

Tensor Uniform(const Shape& shape, double low, double high,
               Generator& generator, DType dtype) {
  if (!(low <= high)) {
    ThrowInvalidArgument("Uniform: low is ", low, ", high is ", high);
  }
  Tensor result = Tensor::Empty(shape, dtype);
  VisitFloating(dtype, "Uniform", [&](auto type) {
    using T = typename decltype(type)::Type;
    for (T& element : result.span<T>()) {
      const double value = low + (high - low) * generator.NextDouble();
      element = static_cast<T>(value);
      // Rounding may reach the open end.
      if (element >= static_cast<T>(high)) element = static_cast<T>(low);
    }
  });
  return result;
}

Tensor Normal(const Shape& shape, double mean, double deviation,
              Generator& generator, DType dtype) {
  if (!(deviation >= 0)) {
    ThrowInvalidArgument("Normal: deviation is ", deviation,
                         "; wanted at least 0");
  }
  Tensor result = Tensor::Empty(shape, dtype);
  VisitFloating(dtype, "Normal", [&](auto type) {
    using T = typename decltype(type)::Type;
    for (T& element : result.span<T>()) {
      element = static_cast<T>(mean + deviation * generator.NextNormal());
    }
  });
  return result;
}

Tensor Permutation(int64_t n, Generator& generator) {
  Tensor result = Tensor::Arange(n);
  int64_t* const order = result.data<int64_t>();
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[i],
              order[generator.NextBelow(static_cast<uint64_t>(i) + 1)]);
  }
  return result;
}

Tensor Bernoulli(const Shape& shape, double probability, Generator& generator) {
  if (!(probability >= 0 && probability <= 1)) {
    ThrowInvalidArgument("Bernoulli: probability is ", probability,
                         "; wanted one in [0, 1]");
  }
  Tensor result = Tensor::Empty(shape, DType::kBool);
  for (bool& element : result.span<bool>()) {
    element = generator.NextDouble() < probability;
  }
  return result;
}

}  // namespace weft
