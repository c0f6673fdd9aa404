#include "weft/tensor/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// The share of each class, among all elements of `drawn`.
std::vector<double> Shares(const Tensor& drawn, int64_t classes) {
  std::vector<double> shares(static_cast<size_t>(classes));
  for (const int64_t c : drawn.ToVector<int64_t>()) {
    shares[static_cast<size_t>(c)] += 1.0 / static_cast<double>(drawn.numel());
  }
  return shares;
}

// A share of n draws deviates by sqrt(p (1 - p) / n): 0.0016 at most here, and
// the bound is six times that.
constexpr int64_t kDraws = 100000;
constexpr double kSixDeviations = 0.0095;

TEST(Multinomial, WithReplacementDrawsInProportion) {
  Generator generator(5);
  const auto weights =
      Tensor::FromVector<float>({2, 0, 6, 2, 0, 1, 3, 0, 0, 0}, {2, 5});
  const Tensor drawn = Multinomial(weights, kDraws, true, generator);
  ASSERT_EQ(drawn.shape(), (Shape{2, kDraws}));
  const std::vector<double> first = Shares(drawn.Select(0, 0), 5);
  const std::vector<double> second = Shares(drawn.Select(0, 1), 5);
  const double wanted[2][5] = {{0.2, 0, 0.6, 0.2, 0}, {0.25, 0.75, 0, 0, 0}};
  for (size_t c = 0; c < 5; ++c) {
    EXPECT_NEAR(first[c], wanted[0][c], kSixDeviations);
    EXPECT_NEAR(second[c], wanted[1][c], kSixDeviations);
    // Classes of weight 0 are never drawn.
    EXPECT_EQ(first[c] == 0, wanted[0][c] == 0);
    EXPECT_EQ(second[c] == 0, wanted[1][c] == 0);
  }
}

TEST(Multinomial, WithoutReplacementDrawsEachClassOnce) {
  Generator generator(6);
  const auto row = Tensor::FromVector<double>({1, 0, 2, 5});
  const Tensor drawn =
      Multinomial(row.View({1, 4}).Expand({kDraws, 4}), 3, false, generator);
  for (int64_t i = 0; i < 100; ++i) {
    std::vector<int64_t> classes = drawn.Select(0, i).ToVector<int64_t>();
    std::sort(classes.begin(), classes.end());
    EXPECT_EQ(classes, (std::vector<int64_t>{0, 2, 3}));
  }
  // The first draw is as one with replacement; the second, of those left:
  // P(second is 0) = 2/8 * 1/6 + 5/8 * 1/3 = 1/4.
  EXPECT_NEAR(Shares(drawn.Select(1, 0), 4)[3], 5.0 / 8, kSixDeviations);
  EXPECT_NEAR(Shares(drawn.Select(1, 1), 4)[0], 1.0 / 4, kSixDeviations);
}

TEST(Multinomial, RefusesWeightsThatCannotBe) {
  Generator generator(7);
  const auto of = [](std::vector<float> values) {
    return Tensor::FromVector<float>(values);
  };
  EXPECT_THAT(Complaint([&] {
                Multinomial(of({1, -1}), 1, true, generator);
              }),
              HasSubstr("a weight of -1"));
  EXPECT_THAT(Complaint([&] {
                Multinomial(of({0, 0}), 1, true, generator);
              }),
              HasSubstr("0 classes have a weight above 0"));
  EXPECT_THAT(Complaint([&] {
                Multinomial(of({1, 0}), 2, false, generator);
              }),
              HasSubstr("1 classes have a weight above 0; wanted 2"));
  EXPECT_EQ(Multinomial(of({0}), 0, true, generator).numel(), 0);
}

TEST(Categorical, DrawsBySoftmaxOfLogits) {
  Generator generator(8);
  const double infinity = std::numeric_limits<double>::infinity();
  const auto logits = Tensor::FromVector<double>(
      {1000 + std::log(0.3), -infinity, 1000 + std::log(0.7)});
  const Tensor drawn = Categorical(logits.Expand({kDraws, 3}), generator);
  ASSERT_EQ(drawn.shape(), Shape{kDraws});
  const std::vector<double> shares = Shares(drawn, 3);
  EXPECT_NEAR(shares[0], 0.3, kSixDeviations);
  EXPECT_EQ(shares[1], 0);
  EXPECT_THAT(Complaint([&] {
                Categorical(Tensor::Full({2}, -infinity, DType::kF64),
                            generator);
              }),
              HasSubstr("Categorical"));
}

}  // namespace
}  // namespace weft
