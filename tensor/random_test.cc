#include "weft/tensor/random.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

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

// Random123's layout: the block's number in the low words of the counter, the
// stream in the high ones, the seed as the key.
TEST(Generator, NumberOfEachPositionIsThatOfTheCipher) {
  const uint64_t seed = 0x0123456789ABCDEF, stream = 0xFEDCBA9876543210;
  Generator generator(seed, stream);
  for (const uint64_t position :
       {uint64_t{0}, uint64_t{3}, uint64_t{4}, uint64_t{1} << 34,
        (uint64_t{1} << 34) + 5, ~uint64_t{0} - 6}) {
    generator.Seek(position);
    for (uint64_t i = position; i < position + 6; ++i) {
      const uint64_t block = i / 4;
      EXPECT_EQ(generator.NextU32(),
                Philox4x32({static_cast<uint32_t>(block),
                            static_cast<uint32_t>(block >> 32), 0x76543210,
                            0xFEDCBA98},
                           {0x89ABCDEF, 0x01234567})[i % 4])
          << i;
    }
    EXPECT_EQ(generator.position(), position + 6);
  }
}

TEST(Generator, CopiedAnywhereGoesOnAsTheOriginal) {
  for (uint64_t drawn = 0; drawn < 9; ++drawn) {
    Generator original(7, 3);
    original.Seek(drawn);
    if (drawn % 2 == 1) original.NextU32();
    Generator copy = original, assigned(1);
    assigned.NextU32();
    assigned = original;
    for (int i = 0; i < 9; ++i) {
      const uint64_t wanted = original.NextU64();
      EXPECT_EQ(copy.NextU64(), wanted);
      EXPECT_EQ(assigned.NextU64(), wanted);
    }
    EXPECT_EQ(assigned.position(), original.position());
  }
}

// Each element takes as many numbers as another, so that parts filled by
// several threads, each from its place, make up the whole.
TEST(Fillers, GiveTheSameNumbersHoweverTheyAreSplit) {
  using Fill = Tensor (*)(const Shape&, Generator&);
  const Fill fills[] = {
      [](const Shape& shape, Generator& g) { return Uniform(shape, 2, 5, g); },
      [](const Shape& shape, Generator& g) {
        return Normal(shape, 0, 1, g, DType::kF64);
      },
      [](const Shape& shape, Generator& g) { return Bernoulli(shape, 0.5, g); },
  };
  for (const Fill& fill : fills) {
    Generator whole(3);
    const Tensor wanted = fill({60}, whole);
    const uint64_t each = whole.position() / 60;
    for (const int64_t part : {1, 7, 30}) {
      for (int64_t begin = 0; begin < 60; begin += part) {
        Generator mine(3);
        mine.Seek(static_cast<uint64_t>(begin) * each);
        const int64_t end = std::min<int64_t>(begin + part, 60);
        ExpectSame(fill({end - begin}, mine), wanted.Slice(0, begin, end));
      }
    }
    Generator shaped(3);
    ExpectSame(fill({3, 4, 5}, shaped), wanted.View({3, 4, 5}));
  }
}

// Rounding to f32 must not reach the open end.
TEST(Uniform, NeverGivesItsHighEnd) {
  Generator generator(9);
  const float next = std::nextafter(1.0f, 2.0f);
  const struct {
    double low, high;
  } kRanges[] = {{1, next}, {-next, -1}, {1e8, 1e8 + 8}, {0, 1e-45}, {5, 5}};
  for (const auto& range : kRanges) {
    for (const float x :
         Uniform({2000}, range.low, range.high, generator).ToVector<float>()) {
      ASSERT_GE(x, static_cast<float>(range.low));
      if (range.low == range.high) continue;
      ASSERT_LT(x, static_cast<float>(range.high));
    }
  }
}

TEST(Distributions, RefuseParametersThatCannotBe) {
  Generator generator(10);
  const double nan = std::nan(""), infinity = HUGE_VAL;
  const double most = std::numeric_limits<double>::max();
  const std::function<void()> bad[] = {
      [&] { Uniform({2}, 1, 0, generator); },
      [&] { Uniform({2}, nan, 1, generator); },
      [&] { Uniform({2}, 0, nan, generator); },
      [&] { Uniform({2}, 0, infinity, generator); },
      // Their difference is infinite: all elements would be one.
      [&] { Uniform({2}, -most, most, generator, DType::kF64); },
      [&] { Uniform({2}, 0, 1, generator, DType::kI64); },
      [&] { Uniform({-1}, 0, 1, generator); },
      [&] { Normal({2}, 0, -1, generator); },
      [&] { Normal({2}, 0, nan, generator); },
      [&] { Normal({2}, 0, 1, generator, DType::kF16); },
      [&] { Bernoulli({2}, -0.1, generator); },
      [&] { Bernoulli({2}, 1.1, generator); },
      [&] { Bernoulli({2}, nan, generator); },
      [&] { Permutation(-1, generator); },
      [&] { Multinomial(Tensor::Ones({2}), -1, true, generator); },
      [&] { Multinomial(Tensor::Ones({}), 1, true, generator); },
      [&] {
        Multinomial(Tensor::Ones({1, 1, 2}), 1, true, generator);
      },
      [&] { Multinomial(Tensor::Arange(3), 1, true, generator); },
      [&] { Multinomial(Tensor::Full({2}, nan), 1, true, generator); },
      [&] { Multinomial(Tensor::Full({2}, infinity), 1, true, generator); },
      [&] { Multinomial(Tensor::Ones({0}), 1, true, generator); },
      [&] { Categorical(Tensor::Ones({}), generator); },
      [&] { Categorical(Tensor::Full({2}, nan), generator); },
      [&] { Categorical(Tensor::Full({2}, infinity), generator); },
      [&] {
        Categorical(Tensor::Ones({2, 0}), generator);
      },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
}

TEST(Bernoulli, IsCertainAtItsEnds) {
  Generator generator(11);
  ExpectSame(Bernoulli({1000}, 0, generator),
             Tensor::Zeros({1000}, DType::kBool));
  ExpectSame(Bernoulli({1000}, 1, generator),
             Tensor::Ones({1000}, DType::kBool));
}

TEST(NextBelow, CoversRangesNear64Bits) {
  Generator generator(12);
  const uint64_t half = uint64_t{1} << 63;
  // Numbers in [0, 2^63 + 1): without drawing again, small ones would come
  // twice as often.
  int small = 0;
  for (int i = 0; i < 10000; ++i) {
    const uint64_t x = generator.NextBelow(half + 1);
    EXPECT_LE(x, half);
    small += x < half / 2;
  }
  EXPECT_NEAR(small, 5000, 300);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(generator.NextBelow(1), 0u);
  bool is_high = false;
  for (int i = 0; i < 100; ++i)
    is_high |= generator.NextBelow(~uint64_t{0}) > half;
  EXPECT_TRUE(is_high);
}

// Only ratios count: neither their sum nor a quotient by them may overflow.
TEST(Multinomial, DrawsInProportionToHugeAndTinyWeights) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  for (const double unit : {1.0, 0x1p1021, 0x1p-1000, tiny}) {
    const auto weights =
        Tensor::FromVector<double>({2 * unit, 0, 6 * unit, 2 * unit});
    Generator generator(13), same(13);
    const std::vector<double> shares =
        Shares(Multinomial(weights, kDraws, true, generator), 4);
    EXPECT_NEAR(shares[0], 0.2, kSixDeviations) << unit;
    EXPECT_EQ(shares[1], 0) << unit;
    EXPECT_NEAR(shares[2], 0.6, kSixDeviations) << unit;
    const Tensor rows = weights.View({1, 4}).Expand({kDraws, 4});
    const Tensor first = Multinomial(rows, 2, false, generator).Select(1, 0);
    EXPECT_NEAR(Shares(first, 4)[2], 0.6, kSixDeviations) << unit;
    // A power of 2 changes no draw.
    ExpectSame(Multinomial(weights, 100, true, same), [] {
      Generator of_one(13);
      return Multinomial(Tensor::FromVector<double>({2, 0, 6, 2}), 100, true,
                         of_one);
    }());
  }
}

// Nor may a weight that is small beside another count as none.
TEST(Multinomial, WithoutReplacementTakesTheSmallestWeightAtLast) {
  Generator generator(15);
  for (const double large : {1.0, 1e300}) {
    const auto weights = Tensor::FromVector<double>({1e-300, large, 0, large});
    const Tensor drawn = Multinomial(weights, 3, false, generator);
    EXPECT_EQ(drawn(2).item<int64_t>(), 0);
  }
}

TEST(Permutation, TakesEachOrderEquallyOften) {
  Generator generator(14);
  std::map<std::vector<int64_t>, int> counts;
  for (int i = 0; i < 24000; ++i) {
    ++counts[Permutation(4, generator).ToVector<int64_t>()];
  }
  EXPECT_EQ(counts.size(), 24u);
  // 1000 each; a deviation is 31.
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 190);
}

// Counts what it is told.
struct Counting : GeneratorObserver {
  void OnDraw(Generator& generator) override {
    ++draws;
    at = generator.position();
  }
  void OnEnd(const Generator&) override { ++ends; }
  int draws = 0;
  int ends = 0;
  uint64_t at = 0;
};

TEST(GeneratorObserver, SeesEachDrawSeekAssignmentAndEndOfItsThread) {
  Counting counting;
  Generator before(1);
  EXPECT_EQ(GeneratorObserver::Set(&counting), nullptr);
  {
    Generator mine(2);
    mine.NextU32();
    EXPECT_EQ(counting.draws, 1);
    EXPECT_EQ(counting.at, 0u);  // Told before the number is drawn.
    mine.NextU64();
    EXPECT_EQ(counting.draws, 3);
    mine.Seek(9);
    EXPECT_EQ(counting.draws, 4);
    mine = before;
    EXPECT_EQ(counting.draws, 5);
    std::thread([] { Generator(3).NextU32(); }).join();
    EXPECT_EQ(counting.draws, 5);
    EXPECT_EQ(counting.ends, 0);
  }
  EXPECT_EQ(counting.ends, 1);
  EXPECT_EQ(GeneratorObserver::Set(nullptr), &counting);
  before.NextU32();
  EXPECT_EQ(counting.draws, 5);
}

TEST(OnDevice, DrawsAreThoseOfTheCpu) {
  const std::vector<Tensor> inputs = {
      Tensor::FromVector<float>({1, 2, 0, 3, 5, 1}, {3, 2}),
      Tensor::FromVector<double>({0.5, 1, 0.25, 2}, {4})};
  testing::ExpectSameOnDevice(
      "draws", inputs, [](absl::Span<const Tensor> inputs) {
        Generator generator(61);
        const Tensor weights = inputs[0].Transpose(0, 1);
        std::vector<Tensor> results = {
            Multinomial(weights, 4, true, generator),
            Multinomial(weights, 2, false, generator),
            Multinomial(inputs[1], 3, true, generator),
            Categorical(weights, generator), Categorical(inputs[1], generator)};
        // The place of the generator afterwards is the same too.
        results.push_back(Uniform({3}, 0, 1, generator).To(weights.device()));
        return results;
      });
}

TEST(Random, ADeviceDrawsWhatTheCpuDraws) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    testing::ExpectSameOnDevice(
        "draws", {Tensor::Zeros({1})},
        [dtype](absl::Span<const Tensor> in) -> std::vector<Tensor> {
          const Device device = in[0].device();
          Generator generator(5, 6);
          (void)generator.NextU32();
          const Tensor a = Uniform({31, 7}, -1, 3, generator, dtype, device);
          const Tensor b = Normal({101}, 1, 2, generator, dtype, device);
          const Tensor c = Bernoulli({1001}, 0.3, generator, device);
          EXPECT_EQ(generator.position(), 1u + 2 * 217 + 4 * 101 + 2 * 1001);
          return {a, b, c, Normal({0}, 0, 1, generator, dtype, device),
                  Uniform({3}, 0, 1, generator, dtype, device)};
        });
  }
}

}  // namespace
}  // namespace weft
