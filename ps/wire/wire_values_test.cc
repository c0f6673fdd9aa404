#include "weft/ps/wire/wire_values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;
using v1::WireValues;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr WireDtype kAll[] = {WireValues::F32, WireValues::F16,
                              WireValues::BF16, WireValues::INT8};

// As the other side reads it. Beyond the row's own bytes nothing is written.
std::vector<float> Sent(WireDtype dtype, const std::vector<float>& row,
                        std::vector<float>* residual = nullptr) {
  const auto n = static_cast<int64_t>(row.size());
  std::vector<char> bytes(WireBytes(dtype, n) + 1, 'x');
  if (residual != nullptr) {
    WriteWire(dtype, row.data(), n, residual->data(), bytes.data());
  } else {
    WriteWire(dtype, row.data(), n, bytes.data());
  }
  EXPECT_EQ(bytes.back(), 'x');
  bytes.pop_back();
  std::vector<float> out(n);
  ReadWire(dtype, bytes.data(), n, out.data());
  return out;
}

std::vector<float> Random(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(n);
  for (float& x : row) {
    x = std::ldexp(static_cast<float>(random() % 20001) - 10000.0f,
                   static_cast<int>(random() % 20) - 20);
  }
  return row;
}

TEST(WireValues, BytesOfARow) {
  EXPECT_EQ(WireBytes(WireValues::F32, 64), 256);
  EXPECT_EQ(WireBytes(WireValues::F16, 64), 128);
  EXPECT_EQ(WireBytes(WireValues::BF16, 64), 128);
  EXPECT_EQ(WireBytes(WireValues::INT8, 64), 68);
  EXPECT_EQ(WireBytes(WireValues::INT8, 1024), 1028);
  EXPECT_EQ(WireBytes(WireValues::INT8, 1025), 1033);
  for (const WireDtype dtype : kAll) EXPECT_EQ(WireBytes(dtype, 0), 0);
}

TEST(WireValues, WhatADtypeHasArrivesAsItIs) {
  EXPECT_EQ(Sent(WireValues::F32, {0.1f, kSmallest, -kLargest}),
            (std::vector<float>{0.1f, kSmallest, -kLargest}));
  EXPECT_EQ(Sent(WireValues::F16, {0.5f, -65504, 0x1p-24f, 0}),
            (std::vector<float>{0.5f, -65504, 0x1p-24f, 0}));
  EXPECT_EQ(Sent(WireValues::BF16, {0.5f, -255, 0x1p-133f, 0x1.FEp127f}),
            (std::vector<float>{0.5f, -255, 0x1p-133f, 0x1.FEp127f}));
  EXPECT_EQ(Sent(WireValues::INT8, {127, -127, 1, 0, -64}),
            (std::vector<float>{127, -127, 1, 0, -64}));
}

TEST(WireValues, HalvesAreRoundedToTheNearestTiesToEven) {
  EXPECT_THAT(Sent(WireValues::F16, {2049, 2051}), ElementsAre(2048, 2052));
  EXPECT_THAT(Sent(WireValues::BF16, {257, 259}), ElementsAre(256, 260));
}

TEST(WireValues, FiniteNumberNeverBecomesInfinity) {
  EXPECT_THAT(Sent(WireValues::F16, {1e6f, -kLargest, 65520, 65519}),
              ElementsAre(65504, -65504, 65504, 65504));
  EXPECT_THAT(Sent(WireValues::BF16, {kLargest, -kLargest}),
              ElementsAre(0x1.FEp127f, -0x1.FEp127f));
  for (const float x : Sent(WireValues::INT8, {kLargest, -kLargest, 1})) {
    EXPECT_TRUE(std::isfinite(x));
  }
}

TEST(WireValues, HalvesCarryNaNAndInfinity) {
  for (const WireDtype dtype : {WireValues::F16, WireValues::BF16}) {
    const auto sent = Sent(dtype, {kInfinity, -kInfinity, kNaN, 1});
    EXPECT_EQ(sent[0], kInfinity);
    EXPECT_EQ(sent[1], -kInfinity);
    EXPECT_THAT(sent[2], IsNan());
    EXPECT_EQ(sent[3], 1);
  }
}

TEST(WireValues, Int8ReadsAsNaNWhereOneWasNotFiniteAndOnlyThatBlock) {
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    std::vector<float> row(2 * kInt8Block, 1.0f);
    row[kInt8Block + 5] = bad;
    const auto sent = Sent(WireValues::INT8, row);
    for (int64_t i = 0; i < kInt8Block; ++i) {
      ASSERT_EQ(sent[i], 1);
      ASSERT_THAT(sent[kInt8Block + i], IsNan());
    }
  }
}

TEST(WireValues, Int8IsOffByHalfAScaleAtMost) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const auto row = Random(seed % 7 == 0 ? 3000 : 1 + seed, seed);
    const auto sent = Sent(WireValues::INT8, row);
    for (size_t begin = 0; begin < row.size(); begin += kInt8Block) {
      const size_t end = std::min(row.size(), begin + kInt8Block);
      float largest = 0;
      for (size_t i = begin; i < end; ++i) {
        largest = std::max(largest, std::fabs(row[i]));
      }
      // Beside it the rounding of a product of f32.
      const double most = 0.5 * largest / 127 + largest * 0x1p-24;
      for (size_t i = begin; i < end; ++i) {
        ASSERT_LE(std::fabs(double{sent[i]} - row[i]), most) << seed;
      }
    }
  }
}

TEST(WireValues, Int8HasZeroRowsAndSubnormalOnes) {
  EXPECT_THAT(Sent(WireValues::INT8, {0, -0.0f, 0}), Each(0.0f));
  // Whose 127th part is no number any more: all are exact.
  EXPECT_EQ(Sent(WireValues::INT8, {kSmallest, -2 * kSmallest, 0}),
            (std::vector<float>{kSmallest, -2 * kSmallest, 0}));
  // A scale that would be rounded down from 1.49 to 1 must be 2.
  const auto sent =
      Sent(WireValues::INT8, {190 * kSmallest, -190 * kSmallest, kSmallest});
  EXPECT_EQ(sent[0], 190 * kSmallest);
  EXPECT_EQ(sent[1], -190 * kSmallest);
  EXPECT_LE(std::fabs(sent[2] - kSmallest), kSmallest);
}

TEST(WireValues, ResidualIsExactlyWhatWasLost) {
  for (const WireDtype dtype : kAll) {
    for (uint32_t seed = 0; seed < 100; ++seed) {
      const auto row = Random(1 + seed * 20, seed);
      std::vector<float> residual(row.size(), 0.0f);
      const auto sent = Sent(dtype, row, &residual);
      for (size_t i = 0; i < row.size(); ++i) {
        ASSERT_EQ(double{sent[i]} + residual[i], double{row[i]})
            << WireName(dtype) << " " << row[i];
      }
    }
  }
}

// Counters of small integers, so that each sum has its value in f32: what
// arrives of a thousand pushes is off by what the last one lost, and no more.
TEST(WireValues, SumOfPushesWithResidualsIsWithinOneOfTheirQuanta) {
  for (const WireDtype dtype : kAll) {
    std::mt19937 random(3);
    constexpr int64_t kDim = 5;
    std::vector<float> residual(kDim, 0.0f);
    std::vector<double> pushed(kDim, 0), arrived(kDim, 0), plain(kDim, 0);
    for (int push = 0; push < 1000; ++push) {
      std::vector<float> row(kDim);
      row[0] = 4097;  // sets the scale: the others are below one quantum
      for (int64_t i = 1; i < kDim; ++i) row[i] = static_cast<float>(i);
      row[1] = static_cast<float>(random() % 3);
      const auto without = Sent(dtype, row);
      const auto sent = Sent(dtype, row, &residual);
      for (int64_t i = 0; i < kDim; ++i) {
        pushed[i] += row[i];
        arrived[i] += sent[i];
        plain[i] += without[i];
      }
    }
    double off = 0;
    for (int64_t i = 0; i < kDim; ++i) {
      EXPECT_EQ(arrived[i] + residual[i], pushed[i]) << WireName(dtype);
      EXPECT_LE(std::fabs(residual[i]), 17) << WireName(dtype);
      off = std::max(off, std::fabs(plain[i] - pushed[i]));
    }
    // Without them each push loses the same again.
    EXPECT_GE(off, dtype == WireValues::F32 ? 0 : 900) << WireName(dtype);
  }
}

TEST(WireValues, ResidualsAreFiniteWhateverComes) {
  for (const WireDtype dtype :
       {WireValues::F16, WireValues::BF16, WireValues::INT8}) {
    std::vector<float> residual(3, 0.5f);
    (void)Sent(dtype, {kNaN, kInfinity, kLargest}, &residual);
    for (const float x : residual) EXPECT_TRUE(std::isfinite(x));
    (void)Sent(dtype, {1, 1, kLargest}, &residual);
    for (const float x : residual) EXPECT_TRUE(std::isfinite(x));
  }
}

std::unique_ptr<TableLayout> Layout(bool is_dense) {
  v1::TableSpec spec;
  spec.set_name("t");
  spec.set_kind(is_dense ? v1::TableSpec::DENSE : v1::TableSpec::SPARSE);
  if (is_dense) spec.set_elements(3000);  // slices of 1024, 1024 and 952
  if (!is_dense) spec.set_dim(3);
  spec.set_mode(v1::TableSpec::ASYNC);
  spec.mutable_rule()->mutable_sgd()->set_lr(1);
  return *TableLayout::Create(spec);
}

TEST(WireValues, RowsOfATableFollowEachOther) {
  for (const bool is_dense : {false, true}) {
    const auto layout = Layout(is_dense);
    const std::vector<uint64_t> keys =
        is_dense ? std::vector<uint64_t>{0, 2} : std::vector<uint64_t>{9, 4};
    int64_t n = 0;
    for (const uint64_t key : keys) n += layout->RowLength(key);
    const auto rows = Random(n, 1);
    for (const WireDtype dtype : kAll) {
      std::vector<char> bytes(WireBytes(*layout, dtype, keys) + 1, 'x');
      WriteWire(*layout, dtype, keys, rows.data(), bytes.data());
      EXPECT_EQ(bytes.back(), 'x');
      std::vector<float> read(n + 1, -1.0f);
      ReadWire(*layout, dtype, keys, bytes.data(), read.data());
      EXPECT_EQ(read.back(), -1.0f);
      const int64_t first = layout->RowLength(keys[0]);
      std::vector<float> wanted =
          Sent(dtype, {rows.begin(), rows.begin() + first});
      const auto second = Sent(dtype, {rows.begin() + first, rows.end()});
      wanted.insert(wanted.end(), second.begin(), second.end());
      read.pop_back();
      EXPECT_EQ(read, wanted) << WireName(dtype);
    }
  }
}

TEST(WireValues, FaultOfAPushNamesTheRow) {
  const auto layout = Layout(/*is_dense=*/false);
  const std::vector<uint64_t> keys = {9, 4};
  const std::vector<float> rows = {1, 2, 3, 0, 0, 0};
  std::vector<char> bytes(WireBytes(*layout, WireValues::INT8, keys));
  WriteWire(*layout, WireValues::INT8, keys, rows.data(), bytes.data());
  EXPECT_EQ(FaultOfPushed(*layout, WireValues::INT8, keys, bytes.data()), "");
  for (const float scale : {kNaN, kInfinity, -1.0f}) {
    std::memcpy(bytes.data() + WireBytes(WireValues::INT8, 3), &scale,
                sizeof(scale));
    EXPECT_THAT(FaultOfPushed(*layout, WireValues::INT8, keys, bytes.data()),
                HasSubstr("row 4 has a scale of"));
  }
}

}  // namespace
}  // namespace weft::ps
