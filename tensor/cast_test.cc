#include "weft/tensor/cast.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"

namespace weft::internal {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What T holds of `value`, or nothing.
template <typename T>
bool Holds(double value) {
  return CodeOf([&] { CheckedElement<T>(value, "test"); }) ==
         absl::StatusCode::kOk;
}

TEST(CheckedElement, HoldsExactlyTheValuesOfTheDType) {
  EXPECT_TRUE(Holds<int8_t>(-128));
  EXPECT_FALSE(Holds<int8_t>(-129));
  EXPECT_TRUE(Holds<int8_t>(127));
  EXPECT_FALSE(Holds<int8_t>(128));
  EXPECT_TRUE(Holds<uint8_t>(255));
  EXPECT_FALSE(Holds<uint8_t>(256));
  EXPECT_FALSE(Holds<uint8_t>(-1));
  EXPECT_TRUE(Holds<uint8_t>(-0.0));
  EXPECT_TRUE(Holds<bool>(1));
  EXPECT_FALSE(Holds<bool>(2));
  EXPECT_FALSE(Holds<bool>(-1));
  EXPECT_FALSE(Holds<bool>(0.5));
  EXPECT_TRUE(Holds<int32_t>(-0x1p31));
  EXPECT_FALSE(Holds<int32_t>(0x1p31));
  EXPECT_TRUE(Holds<int64_t>(-0x1p63));
  EXPECT_FALSE(Holds<int64_t>(std::nextafter(-0x1p63, -kInfinity)));
  EXPECT_TRUE(Holds<int64_t>(std::nextafter(0x1p63, 0)));
  // The largest i64 is no double: as one it becomes 2^63, which i64 lacks.
  EXPECT_FALSE(Holds<int64_t>(0x1p63));
  for (const double value : {kNan, kInfinity, -kInfinity, 0.5}) {
    EXPECT_FALSE(Holds<int64_t>(value)) << value;
    EXPECT_FALSE(Holds<int32_t>(value)) << value;
    EXPECT_FALSE(Holds<uint8_t>(value)) << value;
    EXPECT_FALSE(Holds<int8_t>(value)) << value;
    EXPECT_FALSE(Holds<bool>(value)) << value;
    EXPECT_TRUE(Holds<float>(value)) << value;
    EXPECT_TRUE(Holds<Float16>(value)) << value;
    EXPECT_TRUE(Holds<BFloat16>(value)) << value;
  }
}

TEST(CheckedElement, NamesTheOperationAndTheDType) {
  EXPECT_THAT(Complaint([] { CheckedElement<int64_t>(0x1p63, "Add"); }),
              HasSubstr("is not a value of dtype i64"));
  EXPECT_THAT(Complaint([] { Tensor::Full({1}, 0x1p63, DType::kI64); }),
              HasSubstr("Tensor::Fill"));
}

// The largest double below 2^63, and the smallest values that saturate.
TEST(CastElement, SaturatesExactlyAtTheEnds) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(CastElement<int64_t>(std::nextafter(0x1p63, 0)), kMost - 1023);
  EXPECT_EQ(CastElement<int64_t>(0x1p63), kMost);
  EXPECT_EQ(CastElement<int64_t>(kInfinity), kMost);
  EXPECT_EQ(CastElement<int64_t>(-0x1p63), kLeast);
  EXPECT_EQ(CastElement<int64_t>(-kInfinity), kLeast);
  EXPECT_EQ(CastElement<int64_t>(std::nextafterf(0x1p63f, 0)),
            kMost - (int64_t{1} << 39) + 1);
  EXPECT_EQ(CastElement<int32_t>(2147483647.9), 2147483647);
  EXPECT_EQ(CastElement<int32_t>(std::nextafterf(0x1p31f, 0)), 2147483520);
  EXPECT_EQ(CastElement<int32_t>(0x1p31f), 2147483647);
  EXPECT_EQ(CastElement<int8_t>(127.9f), 127);
  EXPECT_EQ(CastElement<int8_t>(-128.9f), -128);
  EXPECT_EQ(CastElement<uint8_t>(-0.9f), 0);
  EXPECT_EQ(CastElement<uint8_t>(255.9), 255);
  EXPECT_EQ(CastElement<uint8_t>(Float16(300.0f)), 255);
  EXPECT_EQ(CastElement<int32_t>(BFloat16(-3e38f)), -2147483647 - 1);
}

TEST(CastElement, ToBoolIsWhetherItIsNotZero) {
  EXPECT_FALSE(CastElement<bool>(-0.0));
  EXPECT_TRUE(CastElement<bool>(std::numeric_limits<double>::denorm_min()));
  EXPECT_FALSE(CastElement<bool>(Float16::FromBits(0x8000)));
  EXPECT_TRUE(CastElement<bool>(Float16::FromBits(0x0001)));
  EXPECT_TRUE(CastElement<bool>(BFloat16::FromBits(0x0001)));
  EXPECT_TRUE(CastElement<bool>(BFloat16::FromBits(0x7FC0)));
  EXPECT_TRUE(CastElement<bool>(int64_t{1} << 40));
  EXPECT_TRUE(CastElement<bool>(int32_t{256}));
}

TEST(CastElement, KeepsTheSignOfZeroBetweenFloats) {
  EXPECT_TRUE(std::signbit(CastElement<float>(-0.0)));
  EXPECT_TRUE(std::signbit(CastElement<double>(-0.0f)));
  EXPECT_EQ(CastElement<BFloat16>(-0.0).bits(), 0x8000);
  EXPECT_EQ(CastElement<BFloat16>(Float16::FromBits(0x8000)).bits(), 0x8000);
  EXPECT_TRUE(std::signbit(CastElement<double>(Float16::FromBits(0x8000))));
}

// Finite numbers of 16 bits with `fraction` bits of fraction: what `bits` mean
// by the definition of the format.
double Meaning(int bits, int fraction, int bias) {
  const int exponent = bits >> fraction;
  const int part = bits & ((1 << fraction) - 1);
  return exponent == 0
             ? std::ldexp(part, 1 - bias - fraction)
             : std::ldexp(part + (1 << fraction), exponent - bias - fraction);
}

// Between each two neighbours: the middle goes to the even one, what is next
// to the middle to the nearer one, with either sign.
template <typename T>
void ExpectRoundsToNearestEven(int fraction, int bias, int infinity) {
  const auto bits_of = [](double value) {
    return static_cast<int>(T(static_cast<float>(value)).bits());
  };
  for (int bits = 0; bits < infinity; ++bits) {
    const double low = Meaning(bits, fraction, bias);
    const double high = Meaning(bits + 1, fraction, bias);  // 2^16 of infinity.
    ASSERT_EQ(static_cast<double>(T::FromBits(static_cast<uint16_t>(bits))),
              low);
    const float middle = static_cast<float>((low + high) / 2);
    // Half of the smallest bf16 is a subnormal float still.
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(bits_of(low), bits);
    ASSERT_EQ(bits_of(middle), even) << bits;
    ASSERT_EQ(bits_of(std::nextafterf(middle, 0)), bits) << bits;
    ASSERT_EQ(bits_of(std::nextafterf(middle, HUGE_VALF)), bits + 1) << bits;
    ASSERT_EQ(bits_of(-middle), even | 0x8000) << bits;
  }
}

TEST(Float16, RoundsEveryMiddleToEven) {
  ExpectRoundsToNearestEven<Float16>(10, 15, 0x7C00);
}

TEST(BFloat16, RoundsEveryMiddleToEven) {
  ExpectRoundsToNearestEven<BFloat16>(7, 127, 0x7F80);
}

// NaN must not become infinity when its fraction is cut off, nor lose its sign.
TEST(Halves, KeepNanWhateverItsBits) {
  for (const uint32_t fraction :
       {0x1u, 0x1FFFu, 0xFFFFu, 0x400000u, 0x7FFFFFu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float nan =
          __builtin_bit_cast(float, sign | 0x7F800000u | fraction);
      const Float16 half(nan);
      const BFloat16 brain(nan);
      EXPECT_TRUE(std::isnan(static_cast<float>(half))) << fraction;
      EXPECT_TRUE(std::isnan(static_cast<float>(brain))) << fraction;
      EXPECT_EQ(half.bits() >> 15, sign >> 31);
      EXPECT_EQ(brain.bits() >> 15, sign >> 31);
    }
  }
}

TEST(Halves, CompareAsNumbers) {
  const Float16 nan = Float16::FromBits(0x7E00);
  EXPECT_FALSE(nan == nan);
  EXPECT_TRUE(nan != nan);
  EXPECT_TRUE(Float16::FromBits(0x8000) == Float16::FromBits(0));
  EXPECT_TRUE(BFloat16::FromBits(0x8000) == BFloat16::FromBits(0));
  EXPECT_TRUE(BFloat16::FromBits(0xFFC0) != BFloat16::FromBits(0xFFC0));
}

}  // namespace
}  // namespace weft::internal
