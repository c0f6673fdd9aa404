#include "weft/collectives/accumulate.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "weft/tests/support/status_matchers.h"

namespace weft::collectives {
namespace {

using ::weft::testing::IsOk;
using ::weft::testing::StatusIs;

template <typename T>
std::vector<T> Reduced(ReduceOp op, std::vector<std::vector<T>> inputs,
                       double factor = 1) {
  std::vector<Contribution> contributions;
  for (const std::vector<T>& input : inputs) {
    contributions.push_back(
        {reinterpret_cast<const std::byte*>(input.data()), factor});
  }
  std::vector<T> output(inputs[0].size());
  std::byte* const out = reinterpret_cast<std::byte*>(output.data());
  ReduceContributions(DTypeOf<T>, op, contributions, {&out, 1}, output.size());
  return output;
}

TEST(ReduceContributions, EachOperationOfIntegers) {
  const std::vector<std::vector<int64_t>> in = {{6, -7}, {3, 5}, {4, 1}};
  EXPECT_EQ(Reduced(ReduceOp::kSum, in), (std::vector<int64_t>{13, -1}));
  EXPECT_EQ(Reduced(ReduceOp::kProduct, in), (std::vector<int64_t>{72, -35}));
  EXPECT_EQ(Reduced(ReduceOp::kMin, in), (std::vector<int64_t>{3, -7}));
  EXPECT_EQ(Reduced(ReduceOp::kMax, in), (std::vector<int64_t>{6, 5}));
  // 13 / 3 and -1 / 3, towards zero.
  EXPECT_EQ(Reduced(ReduceOp::kAverage, in), (std::vector<int64_t>{4, 0}));
  EXPECT_EQ(Reduced(ReduceOp::kAnd, in), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(Reduced(ReduceOp::kOr, in), (std::vector<int64_t>{7, -3}));
  EXPECT_EQ(Reduced(ReduceOp::kXor, in), (std::vector<int64_t>{1, -3}));
}

TEST(ReduceContributions, IntegerSumThatDoesNotFitWraps) {
  EXPECT_EQ(Reduced<uint8_t>(ReduceOp::kSum, {{200}, {100}})[0], 44);
  EXPECT_EQ(Reduced<int64_t>(ReduceOp::kSum,
                             {{std::numeric_limits<int64_t>::max()}, {1}})[0],
            std::numeric_limits<int64_t>::min());
}

TEST(ReduceContributions, NanWinsMinAndMaxWhereverItStands) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(Reduced<float>(op, {{nan}, {1}, {2}})[0]));
    EXPECT_TRUE(std::isnan(Reduced<float>(op, {{1}, {nan}, {2}})[0]));
    EXPECT_TRUE(std::isnan(Reduced<float>(op, {{1}, {2}, {nan}})[0]));
  }
}

// 1 + 255 times half a unit in the last place of 1: each addition rounded to 16
// bits would stay at 1. Through accumulators as well, as links carry them.
template <typename T>
void ExpectSumInF32(float half_ulp) {
  constexpr int kRanks = 256;
  std::vector<std::vector<T>> inputs(kRanks, {T(half_ulp)});
  inputs[0] = {T(1.0f)};
  const float wanted = static_cast<float>(T(1.0f + (kRanks - 1) * half_ulp));
  EXPECT_GT(wanted, 1.0f);
  EXPECT_EQ(static_cast<float>(Reduced(ReduceOp::kSum, inputs)[0]), wanted);

  std::vector<std::byte> sum(AccumulatorBytes(DTypeOf<T>));
  LoadElements(DTypeOf<T>, ReduceOp::kSum, inputs[0].data(), sum.data(), 1);
  for (int r = 1; r < kRanks; ++r) {
    AddElements(DTypeOf<T>, ReduceOp::kSum, inputs[r].data(), sum.data(), 1);
  }
  T result;
  StoreElements(DTypeOf<T>, ReduceOp::kSum, kRanks, sum.data(), &result, 1);
  EXPECT_EQ(static_cast<float>(result), wanted);
}

TEST(ReduceContributions, SixteenBitElementsAreSummedInF32) {
  ExpectSumInF32<Float16>(1.0f / 2048);
  ExpectSumInF32<BFloat16>(1.0f / 256);
}

TEST(ReduceContributions, FactorMultipliesEachInput) {
  EXPECT_EQ(Reduced<float>(ReduceOp::kSum, {{1, 2}, {3, 4}}, 0.5),
            (std::vector<float>{2, 3}));
}

TEST(ReduceContributions, ManyPiecesAndAnOutputInPlace) {
  std::vector<float> a(5000), b(5000), other(5000);
  for (int i = 0; i < 5000; ++i) a[i] = i, b[i] = 2 * i;
  const Contribution contributions[] = {
      {reinterpret_cast<std::byte*>(a.data()), 1},
      {reinterpret_cast<std::byte*>(b.data()), 1}};
  std::byte* const outputs[] = {reinterpret_cast<std::byte*>(b.data()),
                                reinterpret_cast<std::byte*>(other.data())};
  ReduceContributions(DType::kF32, ReduceOp::kAverage, contributions, outputs,
                      5000);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_EQ(b[i], 1.5f * i);
    ASSERT_EQ(other[i], b[i]);
  }
}

// Two contributions take another way than three: with one that changes nothing
// the results must have the same bits.
template <typename T>
void ExpectTwoAsThree(ReduceOp op, T neutral, T scale) {
  constexpr int kCount = 1003;  // not whole blocks
  std::vector<T> a(kCount), b(kCount), c(kCount, neutral);
  for (int i = 0; i < kCount; ++i) {
    a[i] = static_cast<T>((i % 37 - 18) * scale);
    b[i] = static_cast<T>((i % 23 + 1) * scale);
  }
  const std::vector<T> wanted = Reduced<T>(op, {a, b, c});
  for (const bool is_first : {true, false}) {
    std::vector<T> in_place = is_first ? a : b;
    std::vector<T> other(kCount);
    const Contribution contributions[] = {
        {reinterpret_cast<const std::byte*>((is_first ? in_place : a).data()),
         1},
        {reinterpret_cast<const std::byte*>((is_first ? b : in_place).data()),
         1}};
    std::byte* const outputs[] = {
        reinterpret_cast<std::byte*>(other.data()),
        reinterpret_cast<std::byte*>(in_place.data())};
    ReduceContributions(DTypeOf<T>, op, contributions, outputs, kCount);
    EXPECT_EQ(in_place, wanted) << Name(op);
    EXPECT_EQ(other, wanted) << Name(op);
  }
}

TEST(ReduceContributions, TwoAreReducedAsMoreAre) {
  ExpectTwoAsThree<float>(ReduceOp::kSum, -0.0f, 0.1f);
  ExpectTwoAsThree<double>(ReduceOp::kProduct, 1, 0.1);
  ExpectTwoAsThree<float>(ReduceOp::kMin, 1e9f, 0.1f);
  ExpectTwoAsThree<float>(ReduceOp::kMax, -1e9f, 0.1f);
  ExpectTwoAsThree<int64_t>(ReduceOp::kSum, 0, 1 << 20);
  ExpectTwoAsThree<uint8_t>(ReduceOp::kSum, 0, 11);  // wraps
  ExpectTwoAsThree<int64_t>(ReduceOp::kXor, 0, 5);
}

TEST(ReduceContributions, AverageOfTwoRoundsTowardsZero) {
  EXPECT_EQ(Reduced<int64_t>(ReduceOp::kAverage, {{-4, 7}, {1, -2}}),
            (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(Reduced<float>(ReduceOp::kAverage, {{1, 0.1f}, {2, 0.2f}}),
            (std::vector<float>{1.5f, (0.1f + 0.2f) / 2}));
}

TEST(CheckReduction, RefusesOperationsUndefinedForTheDtype) {
  EXPECT_THAT(CheckReduction(ReduceOp::kSum, DType::kBool), IsOk());
  EXPECT_THAT(CheckReduction(ReduceOp::kAverage, DType::kBool),
              StatusIs(absl::StatusCode::kInvalidArgument, "average"));
  EXPECT_THAT(CheckReduction(ReduceOp::kXor, DType::kF32),
              StatusIs(absl::StatusCode::kInvalidArgument, "dtype f32"));
  EXPECT_THAT(CheckReduction({ReduceOp::kSum, 0.5}, DType::kI64),
              StatusIs(absl::StatusCode::kInvalidArgument, "factor"));
}

}  // namespace
}  // namespace weft::collectives
