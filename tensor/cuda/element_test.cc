#include "weft/tensor/cuda/element.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tensor/cast.h"
#include "weft/tensor/dtype.h"

namespace weft::internal::cuda {
namespace {

// The type of kernels for one of the CPU.
template <typename T>
struct InKernels {
  using Type = T;
};
template <>
struct InKernels<Float16> {
  using Type = Half;
};
template <>
struct InKernels<BFloat16> {
  using Type = BrainHalf;
};

template <typename To, typename From>
To Same(From value) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, value);
}

std::vector<float> Floats() {
  std::vector<float> floats;
  for (uint32_t high = 0; high < 0x10000u; ++high) {
    for (const uint32_t low :
         {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x2000u, 0x3000u,
          0x7FFFu, 0x8000u, 0x8001u, 0xE000u, 0xF000u, 0xFFFFu}) {
      floats.push_back(__builtin_bit_cast(float, high << 16 | low));
    }
  }
  return floats;
}

TEST(Element, HalvesHaveTheBitsOfTheCpu) {
  for (const float x : Floats()) {
    ASSERT_EQ(HalfOf(x).bits, Float16(x).bits()) << x;
    ASSERT_EQ(BrainHalfOf(x).bits, BFloat16(x).bits()) << x;
  }
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const uint16_t b = static_cast<uint16_t>(bits);
    ASSERT_EQ(Same<uint32_t>(FloatOf(Half{b})),
              Same<uint32_t>(static_cast<float>(Float16::FromBits(b))));
    ASSERT_EQ(Same<uint32_t>(FloatOf(BrainHalf{b})),
              Same<uint32_t>(static_cast<float>(BFloat16::FromBits(b))));
  }
}

// Numbers at and around the ends of all types, and what is no number.
std::vector<double> Edges() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> edges = {0.0,   -0.0,      0.5,        -0.5,
                               1.5,   kInfinity, -kInfinity, std::nan(""),
                               1e300, 1e-300,    65504,      70000};
  for (int bits = 7; bits <= 64; ++bits) {
    const double power = std::ldexp(1.0, bits);
    for (const double x : {power - 1, power, power + 1}) {
      edges.push_back(x);
      edges.push_back(-x);
    }
  }
  return edges;
}

TEST(Element, CastsAsTheCpuDoes) {
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      VisitDType(from, [&](auto from_type) {
        VisitDType(to, [&](auto to_type) {
          using From = typename decltype(from_type)::Type;
          using To = typename decltype(to_type)::Type;
          using KernelFrom = typename InKernels<From>::Type;
          using KernelTo = typename InKernels<To>::Type;
          for (const double edge : Edges()) {
            const From x = CastElement<From>(edge);
            const To wanted = CastElement<To>(x);
            const KernelFrom in = Same<KernelFrom>(x);
            const auto found = Same<To>(Cast<KernelTo>(in));
            ASSERT_EQ(std::memcmp(&found, &wanted, sizeof(To)), 0)
                << Name(from) << " " << edge << " as " << Name(to);
            const auto loaded =
                Same<To>(LoadAs<KernelTo>(static_cast<Element>(from), &in, 0));
            ASSERT_EQ(std::memcmp(&loaded, &wanted, sizeof(To)), 0)
                << Name(from) << " " << edge << " as " << Name(to);
          }
        });
      });
    }
  }
}

}  // namespace
}  // namespace weft::internal::cuda
