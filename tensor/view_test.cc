// Views: what they share, what they keep alive, and which are possible.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/tensor.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

std::vector<int64_t> OffsetsOf(const Tensor& x) {
  std::vector<int64_t> offsets;
  ForEachIndex(x.shape(), [&](const Shape& index) {
    int64_t& offset = offsets.emplace_back(0);
    for (size_t d = 0; d < index.size(); ++d) {
      offset += index[d] * x.strides()[d];
    }
  });
  return offsets;
}

// Whether some strides give elements of `shape` these offsets, in this order.
bool StridesExist(const Shape& shape, const std::vector<int64_t>& offsets) {
  int64_t step = 1;
  Shape strides(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] > 1) strides[d] = offsets[static_cast<size_t>(step)];
    step *= shape[d];
  }
  bool exist = true;
  size_t i = 0;
  ForEachIndex(shape, [&](const Shape& index) {
    int64_t offset = 0;
    for (size_t d = 0; d < index.size(); ++d) offset += index[d] * strides[d];
    exist &= offset == offsets[i++];
  });
  return exist;
}

TEST(View, IsTakenWheneverStridesForItExist) {
  Generator generator(1);
  const Tensor base = Tensor::Arange(200);
  const Shape shapes[] = {{12},    {3, 4},    {2, 6},    {2, 3, 2},
                          {1, 12}, {3, 1, 4}, {2, 2, 3}, {12, 1},
                          {6, 2},  {4, 3},    {1, 2, 6}, {2, 1, 3, 2}};
  int taken = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    for (const Shape& from : {Shape{2, 3, 2}, Shape{3, 4}, Shape{3, 1, 4}}) {
      Tensor x = AnyView(base, from, 4, generator);
      if (generator.NextBelow(2) == 0) {  // Else few dimensions go on.
        x = base.Slice(0, 0, 24).View({2, 3, 4}).Slice(2, 1, 3);
      }
      const std::vector<int64_t> offsets = OffsetsOf(x);
      const Shape& wanted = shapes[generator.NextBelow(std::size(shapes))];
      const bool exist = StridesExist(wanted, offsets);
      (exist ? taken : refused) += 1;
      if (!exist) {
        ASSERT_EQ(CodeOf([&] { x.View(wanted); }),
                  absl::StatusCode::kInvalidArgument);
      } else {
        ASSERT_EQ(OffsetsOf(x.View(wanted)), offsets)
            << ShapeText(x.shape()) << " by " << ShapeText(x.strides())
            << " as " << ShapeText(wanted);
        ASSERT_EQ(x.Reshape(wanted).raw(), x.raw());  // No copy.
      }
      ExpectSame(x.Reshape(wanted), x.Clone().View(wanted));
    }
  }
  EXPECT_GT(taken, 500);
  EXPECT_GT(refused, 500);
}

TEST(View, InfersOneSizeAndOnlyWhereItIsGiven) {
  const Tensor x = Tensor::Arange(12);
  EXPECT_EQ(x.View({2, -1, 3}).shape(), (Shape{2, 2, 3}));
  const Tensor none = Tensor::Zeros({0, 4});
  EXPECT_EQ(none.View({-1, 5}).shape(), (Shape{0, 5}));
  for (const Shape& bad : {Shape{-2, 6}, Shape{5, -1}, Shape{12, 2},
                           Shape{int64_t{1} << 32, int64_t{1} << 32},
                           Shape{-1, int64_t{1} << 40, int64_t{1} << 40},
                           Shape{kLeast}, Shape{kMost}, Shape{0, -1}}) {
    EXPECT_EQ(CodeOf([&] { x.View(bad); }), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(CodeOf([&] { x.Reshape(bad); }),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(CodeOf([&] {
              none.View({0, -1});
            }),
            absl::StatusCode::kInvalidArgument);
}

TEST(Views, RefuseNumbersFarOutside) {
  const Tensor x = Tensor::Arange(6).View({2, 3});
  const std::function<void()> bad[] = {
      [&] { x.Slice(0, kLeast, 1); },
      [&] { x.Slice(0, 0, kMost); },
      [&] { x.Slice(kLeast, 0, 1); },
      [&] { x.Select(0, kLeast); },
      [&] { x.Select(0, kMost); },
      [&] { x.Select(kMost, 0); },
      [&] { x(kLeast); },
      [&] { x(kMost); },
      [&] { x(Slice(kLeast)); },
      [&] { x(Slice(0, kLeast)); },
      [&] { x(Slice(3)); },
      [&] { x.Transpose(0, 2); },
      [&] { x.Permute({0}); },
      [&] {
        x.Permute({0, 1, 2});
      },
      [&] {
        x.Permute({0, 2});
      },
      [&] {
        x.Expand({2, -3});
      },
      [&] {
        x.Expand({0, 3});
      },
      [&] {
        x.Expand({int64_t{1} << 46, 2, 3});
      },
      [&] { x.Unsqueeze(3); },
      [&] { x.Unsqueeze(-4); },
      [&] { x.FlattenFrom(2); },
      [&] { Tensor::Scalar(1.0f).Select(0, 0); },
      [&] { Tensor::Scalar(1.0f).Slice(0, 0, 1); },
      [&] { Tensor::Empty(Shape(32, 1)).Unsqueeze(0); },
      [&] { Tensor::Arange(-1); },
      [&] { Tensor::Arange(257, DType::kU8); },
      [&] { Tensor::Arange(2, DType::kBool); },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(Tensor::Arange(256, DType::kU8)(255).item<uint8_t>(), 255);
}

// x(v.size() - 1) of an empty v must not be the last element.
TEST(TensorIndex, OfAnUnsignedNumberDoesNotWrapToTheEnd) {
  const Tensor x = Tensor::Arange(3);
  EXPECT_EQ(x(size_t{2}).item<int64_t>(), 2);
  EXPECT_EQ(x(uint8_t{1}).item<int64_t>(), 1);
  EXPECT_THAT(Complaint([&] { x(size_t{0} - 1); }), HasSubstr("outside"));
  EXPECT_THAT(Complaint([&] { x(uint64_t{1} << 63); }), HasSubstr("outside"));
}

TEST(Views, OfViewsComposeAndOutliveTheirTensor) {
  Tensor x = Tensor::Arange(24).View({2, 3, 4});
  const Tensor view = x.Transpose(0, 2)(Slice(1, 3)).Select(1, 2);
  EXPECT_EQ(view.storage_offset(), 9);
  x = Tensor();
  ExpectValues(view, {2, 2}, {9, 21, 10, 22}, 0);
  view.Select(0, 0).Fill(-1);
  ExpectValues(view, {2, 2}, {-1, -1, 10, 22}, 0);
}

TEST(Views, GoBackwardsByNegativeStrides) {
  const Tensor x = Tensor::Arange(6);
  const Tensor back =
      Tensor::FromStorage(x.storage(), 5, {2, 3}, {-3, -1}, DType::kI64);
  ExpectValues(back.Slice(1, 1, 3), {2, 2}, {4, 3, 1, 0}, 0);
  ExpectValues(back.Select(0, 1), {3}, {2, 1, 0}, 0);
  ExpectValues(back.View({6}), {6}, {5, 4, 3, 2, 1, 0}, 0);
  ExpectValues(back.To(DType::kI8), {2, 3}, {5, 4, 3, 2, 1, 0}, 0);
  back.CopyFrom(x.View({2, 3}));  // Onto itself, reversed.
  ExpectValues(x, {6}, {5, 4, 3, 2, 1, 0}, 0);
  back.Select(1, 0).Fill(9);
  ExpectValues(x, {6}, {5, 4, 9, 2, 1, 9}, 0);
}

TEST(Tensor, KnowsWhetherItIsTheOnlyOne) {
  Tensor x = Tensor::Arange(100);
  EXPECT_TRUE(x.is_sole_owner());
  EXPECT_TRUE(x.is_sole_handle());
  {
    const Tensor copy = x;
    EXPECT_FALSE(x.is_sole_owner());
    EXPECT_FALSE(copy.is_sole_handle());
  }
  {
    const Tensor view = x.Slice(0, 0, 1);
    EXPECT_FALSE(x.is_sole_owner());
    EXPECT_FALSE(view.is_sole_handle());
  }
  EXPECT_TRUE(x.is_sole_owner());
  x = x.Slice(0, 10, 20);  // The view alone is left.
  EXPECT_TRUE(x.is_sole_owner());
  int64_t number = 0;
  const Tensor blob = Tensor::FromBlob(&number, {1}, DType::kI64, nullptr);
  EXPECT_FALSE(blob.is_sole_owner());
  EXPECT_FALSE(blob.is_sole_handle());
  EXPECT_FALSE(Tensor().is_sole_owner());
}

TEST(Tensor, OnNoMemoryHasNoElements) {
  const std::vector<float> nothing;
  const Tensor x = Tensor::FromBlob(const_cast<float*>(nothing.data()), {0, 3},
                                    DType::kF32, nullptr);
  ExpectValues(x.Clone(), {0, 3}, {}, 0);
  ExpectValues(x.Slice(1, 1, 2), {0, 1}, {}, 0);
  EXPECT_EQ(x.ToVector<float>().size(), 0u);
  x.Fill(1);
  x.CopyFrom(x);
  EXPECT_EQ(x.To(DType::kF16).bytes(), 0);
}

// All but asking whether it is one.
TEST(Tensor, UndefinedIsRefusedByEachFunction) {
  const Tensor x, y = Tensor::Zeros({1});
  const std::function<void()> uses[] = {
      [&] { x.dtype(); },
      [&] { x.device(); },
      [&] { x.strides(); },
      [&] { x.dim(); },
      [&] { x.size(0); },
      [&] { x.numel(); },
      [&] { x.bytes(); },
      [&] { x.is_contiguous(); },
      [&] { x.storage(); },
      [&] { x.storage_offset(); },
      [&] { x.is_sole_handle(); },
      [&] { x.data<float>(); },
      [&] { x.raw(); },
      [&] { x.span<float>(); },
      [&] { x.item<float>(); },
      [&] { x.ToVector<float>(); },
      [&] { x.View({1}); },
      [&] { x.Transpose(0, 0); },
      [&] { x.Permute({}); },
      [&] { x.Slice(0, 0, 0); },
      [&] { x.Select(0, 0); },
      [&] { x.Expand({1}); },
      [&] { x.Squeeze(0); },
      [&] { x.Unsqueeze(0); },
      [&] { x.FlattenFrom(0); },
      [&] { x(); },
      [&] { x(0); },
      [&] { x.Contiguous(); },
      [&] { x.Reshape({1}); },
      [&] { x.Clone(); },
      [&] { x.To(DType::kF32); },
      [&] { x.CopyFrom(y); },
      [&] { y.CopyFrom(x); },
      [&] { x.Fill(0); },
      [&] { x.version(); },
      [&] { x.BumpVersion(); },
      [&] { x.BeginUpdate(); },
      [&] { Tensor::ZerosLike(x); },
  };
  for (size_t i = 0; i < std::size(uses); ++i) {
    EXPECT_EQ(CodeOf(uses[i]), absl::StatusCode::kFailedPrecondition) << i;
  }
  EXPECT_FALSE(x.defined());
}

// A write that fails leaves elements and version as they were.
TEST(Writes, ThatAreRefusedChangeNothing) {
  const Tensor x = Tensor::Arange(4);
  const uint64_t version = x.version();
  EXPECT_EQ(CodeOf([&] { x.Fill(0.5); }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([&] { x.CopyFrom(Tensor::Zeros({3})); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf([&] {
              x.View({1, 4}).CopyFrom(Tensor::Zeros({2, 4}));
            }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(x.version(), version);
  ExpectValues(x, {4}, {0, 1, 2, 3}, 0);
}

// What a header off the wire can announce: no elements, in a huge shape. The
// text must not be as long as the shape.
TEST(ToString, OfNoElementsIsShortWhateverTheShape) {
  EXPECT_EQ(ToString(Tensor::Zeros({2, 0})), "f32[2, 0]\n[]");
  EXPECT_EQ(ToString(Tensor::Zeros({int64_t{1} << 44, 0})),
            "f32[17592186044416, 0]\n[]");
}

TEST(ToString, CutsEachLongDimension) {
  const std::string text = ToString(Tensor::Arange(2000).View({40, 50}));
  EXPECT_THAT(text, HasSubstr("[[0, 1, 2, ..., 47, 48, 49],\n [50, "));
  EXPECT_THAT(text, HasSubstr(",\n ...,\n [1850, "));
  EXPECT_THAT(text, HasSubstr("1997, 1998, 1999]]"));
  // Whole up to 1000 elements, and where a dimension is no longer than its cut.
  EXPECT_THAT(ToString(Tensor::Arange(1000)), ::testing::Not(HasSubstr("...")));
  EXPECT_EQ(ToString(Tensor::FromVector<double>(
                {-0.0, kMost * 4.0, -HUGE_VAL, std::nan("")})),
            "f64[4] [-0, 3.68935e+19, -inf, nan]");
}

}  // namespace
}  // namespace weft
