#include "weft/tensor/overlap.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"

namespace weft::internal {
namespace {

// The addresses of x's elements.
std::multiset<const void*> PlacesOf(const Tensor& x) {
  std::multiset<const void*> places;
  ForEachIndex(x.shape(), [&](const Shape& index) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      offset += index[d] * x.strides()[d];
    }
    places.insert(static_cast<const char*>(x.raw()) +
                  offset * ItemSize(x.dtype()));
  });
  return places;
}

bool HasRepeats(const std::multiset<const void*>& places) {
  return std::set<const void*>(places.begin(), places.end()).size() !=
         places.size();
}

TEST(OverlapsItself, IsExact) {
  Generator generator(1);
  const Tensor base = Tensor::Arange(60);
  int repeated = 0;
  constexpr int kViews = 10000;
  for (int i = 0; i < kViews; ++i) {
    const Tensor x = AnyView(
        base, AnyShape(3, 4, generator, i % 10 == 0 ? 0 : 1), 12, generator);
    const bool wanted = HasRepeats(PlacesOf(x));
    repeated += wanted;
    ASSERT_EQ(OverlapsItself(x), wanted)
        << x.Describe() << " by " << ShapeText(x.strides());
    EXPECT_EQ(
        CodeOf([&] { CheckWritable(x, "test"); }),
        wanted ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kOk);
  }
  EXPECT_GT(repeated, kViews / 10);
  EXPECT_LT(repeated, kViews * 9 / 10);
}

TEST(MayOverlap, MissesNoSharedElement) {
  Generator generator(2);
  const Tensor base = Tensor::Arange(40);
  int apart = 0;
  for (int i = 0; i < 10000; ++i) {
    const Tensor a = AnyView(base, AnyShape(3, 3, generator), 4, generator);
    const Tensor b = AnyView(base, AnyShape(3, 3, generator), 4, generator);
    const auto of_a = PlacesOf(a), of_b = PlacesOf(b);
    bool shares = false;
    for (const void* place : of_a) shares |= of_b.count(place) > 0;
    const bool found = MayOverlap(a, b);
    EXPECT_EQ(MayOverlap(b, a), found);
    if (!found) ++apart;
    ASSERT_TRUE(found || !shares)
        << a.Describe() << " by " << ShapeText(a.strides()) << " and "
        << b.Describe() << " by " << ShapeText(b.strides());
    // Nor does it find what lies side by side.
    if (of_a.empty() || of_b.empty() || *of_a.rbegin() < *of_b.begin()) {
      EXPECT_FALSE(found);
    }
  }
  EXPECT_GT(apart, 100);
}

TEST(MayOverlap, CountsWholeElements) {
  const Tensor wide = Tensor::Zeros({4}, DType::kF64);
  const auto at = [&](int64_t offset, DType dtype) {
    return Tensor::FromStorage(wide.storage(), offset, {1}, {1}, dtype);
  };
  // Bytes 8 to 16 and each byte around them.
  const Tensor second = at(1, DType::kF64);
  EXPECT_FALSE(MayOverlap(second, at(7, DType::kU8)));
  EXPECT_TRUE(MayOverlap(second, at(8, DType::kU8)));
  EXPECT_TRUE(MayOverlap(second, at(15, DType::kU8)));
  EXPECT_FALSE(MayOverlap(second, at(16, DType::kU8)));
}

// Whatever the two views share, the result is that of separate memory.
TEST(CopyFrom, BetweenViewsOfOneMemoryCopiesTheValuesFromBefore) {
  Generator generator(3);
  int written = 0;
  for (int i = 0; i < 10000; ++i) {
    const Tensor base = Tensor::Arange(30);
    const Shape shape = AnyShape(3, 3, generator);
    const Tensor y = AnyView(base, shape, 7, generator);
    if (OverlapsItself(y)) continue;
    ++written;
    const Tensor x = AnyView(base, shape, 4, generator);
    const Tensor wanted = x.Clone();
    y.CopyFrom(x);
    ExpectSame(y, wanted);
    if (HasFailure()) FAIL() << ShapeText(y.strides());
  }
  EXPECT_GT(written, 1000);
}

// A wider element is written over narrower ones that are still to be read.
TEST(CopyFrom, BetweenDTypesOnOneMemoryCopiesTheValuesFromBefore) {
  for (const bool widens : {false, true}) {
    const Tensor base = Tensor::Zeros({16}, DType::kF64);
    const auto view = [&](DType dtype, int64_t offset) {
      return Tensor::FromStorage(base.storage(), offset, {6}, {1}, dtype);
    };
    for (int64_t offset = 0; offset < 4; ++offset) {
      const Tensor y = view(widens ? DType::kF64 : DType::kF32, offset);
      const Tensor x = view(widens ? DType::kF32 : DType::kF64, 0);
      x.CopyFrom(Tensor::Arange(6));
      y.CopyFrom(x);
      ExpectValues(y, {6}, {0, 1, 2, 3, 4, 5}, 0);
    }
  }
}

TEST(Unaliased, CopiesOnlyWhereItMust) {
  const Tensor x = Tensor::Arange(6);
  EXPECT_TRUE(Unaliased(x, x).IsSameAs(x));
  EXPECT_TRUE(Unaliased(x, Tensor::Arange(6)).IsSameAs(x));
  const Tensor low = x.Slice(0, 0, 3), high = x.Slice(0, 3, 6);
  EXPECT_TRUE(Unaliased(low, high).IsSameAs(low));
  EXPECT_FALSE(Unaliased(low, x.Slice(0, 2, 5)).IsSameAs(low));
  // Each index is read before it is written, but Apart promises more.
  EXPECT_FALSE(Apart(x, x).IsSameAs(x));
  // The same first element, another order.
  const Tensor square = Tensor::Arange(4).View({2, 2});
  const Tensor turned = square.Transpose(0, 1);
  EXPECT_FALSE(Unaliased(turned, square).IsSameAs(turned));
}

}  // namespace
}  // namespace weft::internal
