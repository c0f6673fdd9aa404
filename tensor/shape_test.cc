#include "weft/tensor/shape.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

TEST(NumElements, IsTheProductUpToTheLimitAndNoFurther) {
  EXPECT_EQ(NumElements({}, "f"), 1);
  EXPECT_EQ(NumElements({3, 0, 5}, "f"), 0);
  EXPECT_EQ(NumElements({kMaxTensorBytes}, "f"), kMaxTensorBytes);
  EXPECT_EQ(NumElements({0, kMaxTensorBytes}, "f"), 0);
  EXPECT_EQ(NumElements(Shape(32, 2), "f"), int64_t{1} << 32);
  const Shape impossible[] = {
      {kMaxTensorBytes + 1},
      {2, int64_t{1} << 46},
      {kMost},
      {kMost, 0},
      {int64_t{1} << 32, int64_t{1} << 32},  // 2^64, which is 0 in 64 bits.
      {3037000500, 3037000500},              // Just above 2^63.
      {-1},
      {0, -1},
      {kLeast},
      Shape(33, 0)};
  for (const Shape& shape : impossible) {
    EXPECT_THAT(Complaint([&] { NumElements(shape, "TheOperation"); }),
                StartsWith("TheOperation: "))
        << ShapeText(shape);
  }
}

// Whether the elements lie one after another, found by walking them all.
bool LieInOrder(const Shape& shape, const Shape& strides) {
  int64_t place = 0;
  bool is_in_order = true;
  ForEachIndex(shape, [&](const Shape& index) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
    is_in_order &= offset == place++;
  });
  return is_in_order;
}

TEST(IsContiguous, IsExactlyWhereElementsLieOneAfterAnother) {
  Generator generator(1);
  int contiguous = 0;
  for (int i = 0; i < 20000; ++i) {
    const Shape shape = AnyShape(4, 3, generator);
    Shape strides = ContiguousStrides(shape);
    EXPECT_TRUE(LieInOrder(shape, strides)) << ShapeText(shape);
    for (int64_t& stride : strides) {
      if (generator.NextBelow(3) > 0) continue;
      stride = static_cast<int64_t>(generator.NextBelow(11)) - 3;
    }
    const bool wanted = LieInOrder(shape, strides);
    contiguous += wanted;
    ASSERT_EQ(IsContiguous(shape, strides), wanted)
        << ShapeText(shape) << " by " << ShapeText(strides);
  }
  EXPECT_GT(contiguous, 1000);
  EXPECT_LT(contiguous, 19000);
}

TEST(Broadcast, IsTheSameFromBothSides) {
  const struct {
    Shape a, b, result;
    bool fits;
  } kCases[] = {
      {{}, {}, {}, true},
      {{}, {0}, {0}, true},
      {{1}, {0}, {0}, true},
      {{2}, {0}, {}, false},
      {{3, 1}, {4}, {3, 4}, true},
      {{3, 1, 5}, {4, 1}, {3, 4, 5}, true},
      {{1, 1, 1}, {7}, {1, 1, 7}, true},
      {{2, 3}, {3, 2}, {}, false},
      {{2, 1}, {3, 2, 1}, {3, 2, 1}, true},
      {{0, 3}, {1, 1}, {0, 3}, true},
      {{0, 3}, {3, 3}, {}, false},
  };
  for (const auto& test : kCases) {
    for (const bool is_swapped : {false, true}) {
      const Shape& a = is_swapped ? test.b : test.a;
      const Shape& b = is_swapped ? test.a : test.b;
      Shape found;
      EXPECT_EQ(TryBroadcast(a, b, &found), test.fits)
          << ShapeText(a) << " and " << ShapeText(b);
      if (test.fits) {
        EXPECT_EQ(found, test.result);
        EXPECT_EQ(BroadcastShape(a, b, "f"), test.result);
      } else {
        EXPECT_THAT(Complaint([&] { BroadcastShape(a, b, "f"); }),
                    HasSubstr("f: shapes " + ShapeText(a)));
      }
    }
  }
}

TEST(WrapDim, TakesMinusRankToRank) {
  EXPECT_EQ(WrapDim(0, 3, "f"), 0);
  EXPECT_EQ(WrapDim(2, 3, "f"), 2);
  EXPECT_EQ(WrapDim(-1, 3, "f"), 2);
  EXPECT_EQ(WrapDim(-3, 3, "f"), 0);
  for (const int64_t dim : {int64_t{3}, int64_t{-4}, kMost, kLeast}) {
    EXPECT_THAT(Complaint([&] { WrapDim(dim, 3, "f"); }), StartsWith("f: dim"));
  }
  // A scalar has no dimension, so not even 0 and -1.
  for (const int64_t dim : {0, -1}) {
    EXPECT_THAT(Complaint([&] { WrapDim(dim, 0, "f"); }), StartsWith("f: dim"));
  }
}

}  // namespace
}  // namespace weft
