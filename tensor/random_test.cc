#include "weft/tensor/random.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

// Source: kat_vectors of Random123 1.09, the authors' own implementation.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  const uint32_t ones = 0xffffffff;
  EXPECT_THAT(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                         {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Generator, RepeatsFromItsSeedAndPosition) {
  Generator a(7);
  std::vector<uint32_t> numbers(11);
  for (uint32_t& n : numbers) n = a.NextU32();
  Generator b(7);
  for (size_t i = numbers.size(); i-- > 0;) {
    b.Seek(i);
    EXPECT_EQ(b.NextU32(), numbers[i]);
  }
  EXPECT_EQ(a.position(), 11u);
}

TEST(Generator, StreamsAndForksDiffer) {
  std::vector<uint64_t> first;
  Generator parent(7);
  first.push_back(parent.NextU64());
  first.push_back(Generator(8).NextU64());
  first.push_back(Generator(7, 1).NextU64());
  for (uint64_t i = 0; i < 100; ++i) {
    first.push_back(parent.Fork(i).NextU64());
    first.push_back(parent.Fork(0).Fork(i).NextU64());
  }
  EXPECT_EQ(Generator(7).Fork(3).NextU64(), parent.Fork(3).NextU64());
  std::sort(first.begin(), first.end());
  EXPECT_EQ(std::adjacent_find(first.begin(), first.end()), first.end());
}

TEST(Uniform, FillsItsRange) {
  Generator generator(1);
  const std::vector<float> x =
      Uniform({100000}, -1, 3, generator).ToVector<float>();
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  EXPECT_GE(*low, -1);
  EXPECT_LT(*low, -0.99);
  EXPECT_LT(*high, 3);
  EXPECT_GT(*high, 2.99);
}

TEST(Normal, HasItsMoments) {
  Generator generator(2);
  const int64_t n = 200000;
  double sum = 0, squares = 0, cubes = 0;
  for (const double x :
       Normal({n}, 1, 2, generator, DType::kF64).ToVector<double>()) {
    const double z = (x - 1) / 2;
    sum += z;
    squares += z * z;
    cubes += z * z * z;
  }
  // Five deviations of each mean: 1, sqrt(2), sqrt(15) over sqrt(n).
  const double unit = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(sum / n, 0, unit);
  EXPECT_NEAR(squares / n, 1, 1.5 * unit);
  EXPECT_NEAR(cubes / n, 0, 4 * unit);
}

TEST(NextBelow, IsEvenlyDistributed) {
  Generator generator(3);
  std::vector<int> counts(7);
  for (int i = 0; i < 70000; ++i) ++counts[generator.NextBelow(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
}

TEST(Permutation, HoldsEachOnce) {
  Generator generator(4);
  std::vector<int64_t> order = Permutation(1000, generator).ToVector<int64_t>();
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  EXPECT_EQ(Permutation(0, generator).numel(), 0);
}

TEST(Bernoulli, IsTrueAsOftenAsAsked) {
  Generator generator(5);
  const std::vector<bool> x =
      Bernoulli({10000}, 0.25, generator).ToVector<bool>();
  EXPECT_NEAR(std::count(x.begin(), x.end(), true), 2500, 250);
}

}  // namespace
}  // namespace weft
