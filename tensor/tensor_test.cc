#include "weft/tensor/tensor.h"

#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Shape, RefusesOverflow) {
  const int64_t big = int64_t{1} << 40;
  EXPECT_THAT(Complaint([&] {
                Tensor::Empty({big, big});
              }),
              HasSubstr("more than"));
  EXPECT_THAT(Complaint([&] {
                Tensor::Empty({0, big, big});
              }),
              HasSubstr("more than"));
  EXPECT_THAT(Complaint([&] { Tensor::Empty({int64_t{1} << 45}); }),
              HasSubstr("bytes"));
  EXPECT_THAT(Complaint([&] {
                Tensor::Empty({2, -1});
              }),
              HasSubstr("negative"));
  EXPECT_THAT(Complaint([&] { Tensor::Empty(Shape(33, 1)); }),
              HasSubstr("33 dimensions"));
  EXPECT_EQ(Tensor::Empty(Shape(32, 1)).numel(), 1);
}

TEST(Tensor, IsMadeInEveryDType) {
  for (const DType dtype : kAllDTypes) {
    ExpectValues(Tensor::Zeros({2, 2}, dtype), {2, 2}, {0, 0, 0, 0}, 0);
    ExpectValues(Tensor::Ones({}, dtype), {}, {1}, 0);
    EXPECT_EQ(Tensor::Empty({0, 3}, dtype).numel(), 0);
    EXPECT_EQ(Tensor::Empty({3}, dtype).bytes(), 3 * ItemSize(dtype));
  }
  ExpectValues(Tensor::Arange(4), {4}, {0, 1, 2, 3}, 0);
  ExpectValues(Tensor::Arange(0), {0}, {}, 0);
  ExpectValues(Tensor::Full({2}, 2.5), {2}, {2.5, 2.5}, 0);
  EXPECT_EQ(Tensor::Scalar(2.5f).item<float>(), 2.5f);
  EXPECT_EQ(Tensor::FromVector<bool>({true}).item<bool>(), true);
}

TEST(Tensor, LiesAtACacheLineUnlessItIsTiny) {
  for (const int64_t n : {17, 100, 100000}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(Tensor::Empty({n}).raw()) % 64, 0u);
  }
}

TEST(Tensor, ErrorNamesTheMismatch) {
  EXPECT_THAT(Complaint([] {
                Tensor::FromVector<float>({1, 2}, {3});
              }),
              HasSubstr("shape [3] has 3 elements, the vector 2"));
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_THAT(Complaint([&] { x.data<double>(); }),
              HasSubstr("wanted as f64, the tensor is f32[2, 3]"));
  EXPECT_THAT(Complaint([&] { x.item<float>(); }), HasSubstr("wanted 1"));
  EXPECT_THAT(Complaint([&] { x.Transpose(0, 1).span<float>(); }),
              HasSubstr("not contiguous"));
  EXPECT_THAT(Complaint([&] { x.View({4}); }), HasSubstr("6 elements"));
  EXPECT_THAT(Complaint([&] { x.View({-1, 4}); }), HasSubstr("6 elements"));
  EXPECT_THAT(Complaint([&] {
                x.View({-1, -1});
              }),
              HasSubstr("Tensor::View: shape [-1, -1] has more than one -1"));
  EXPECT_THAT(Complaint([&] { x.View({-1, 0}); }), HasSubstr("any size"));
  EXPECT_THAT(Complaint([&] { x.Slice(0, 1, 3); }), HasSubstr("[1, 3)"));
  EXPECT_THAT(Complaint([&] { x.Slice(0, 2, 1); }), HasSubstr("[2, 1)"));
  EXPECT_THAT(Complaint([&] { x.Select(1, 3); }), HasSubstr("index 3"));
  EXPECT_THAT(Complaint([&] {
                x.Expand({3, 3});
              }),
              HasSubstr("does not expand"));
  EXPECT_THAT(Complaint([&] { x.Expand({3}); }), HasSubstr("does not expand"));
  EXPECT_THAT(Complaint([&] { x.Squeeze(0); }), HasSubstr("is not 1"));
  EXPECT_THAT(Complaint([&] { x.Permute({0, 0}); }), HasSubstr("once"));
  EXPECT_THAT(Complaint([&] { x.size(2); }), HasSubstr("dim 2"));
  EXPECT_THAT(Complaint([&] { x.To(DType::kI64).Fill(0.5); }),
              HasSubstr("0.5 is not a value"));
}

TEST(Tensor, UndefinedIsAnErrorNotACrash) {
  try {
    Tensor().shape();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(Views, ShareElements) {
  const Tensor x = Tensor::Arange(24).View({2, 3, 4});
  EXPECT_EQ(x.Select(0, 1).Select(0, 2).Select(0, 3).item<int64_t>(), 23);
  ExpectValues(x.Transpose(0, 2).Select(0, 1), {3, 2}, {1, 13, 5, 17, 9, 21},
               0);
  EXPECT_EQ(x.Permute({2, 0, 1}).shape(), (Shape{4, 2, 3}));
  ExpectValues(x.Slice(1, 1, 3).Slice(2, 0, 1), {2, 2, 1}, {4, 8, 16, 20}, 0);
  ExpectValues(x.Slice(2, 3, 3), {2, 3, 0}, {}, 0);
  EXPECT_EQ(x.Unsqueeze(-1).shape(), (Shape{2, 3, 4, 1}));
  EXPECT_EQ(x.Unsqueeze(0).Squeeze(0).shape(), x.shape());
  EXPECT_EQ(x.View({-1, 6}).shape(), (Shape{4, 6}));
  EXPECT_EQ(x.FlattenFrom(1).shape(), (Shape{2, 12}));
  x.Slice(0, 1, 2).Fill(-1);
  EXPECT_EQ(x.Select(0, 1).Select(0, 0).Select(0, 0).item<int64_t>(), -1);
  EXPECT_EQ(x.Slice(0, 1, 2).storage_offset(), 12);
}

TEST(Expand, RepeatsWithoutACopy) {
  const Tensor x = Tensor::Arange(3).View({3, 1}).Expand({2, 3, 2});
  ExpectValues(x, {2, 3, 2}, {0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}, 0);
  EXPECT_EQ(x.strides(), (Shape{0, 1, 0}));
  EXPECT_FALSE(x.is_contiguous());
  EXPECT_EQ(Tensor::Zeros({1, 3}).Expand({0, 3}).numel(), 0);
}

TEST(View, IsTakenExactlyWhenStridesAllowIt) {
  const Tensor x = Tensor::Arange(24).View({2, 3, 4});
  const Tensor part = x.Slice(2, 0, 2);  // Rows of 2, 4 apart.
  ExpectSame(part.View({6, 2}), part.Clone().View({6, 2}));
  EXPECT_THAT(Complaint([&] { part.View({12}); }), HasSubstr("use Reshape"));
  const Tensor turned = x.Transpose(0, 1);
  ExpectSame(turned.View({3, 2, 2, 2}), turned.Clone().View({3, 2, 2, 2}));
  EXPECT_THAT(Complaint([&] {
                turned.View({6, 4});
              }),
              HasSubstr("use Reshape"));
  ExpectSame(turned.Reshape({6, 4}), turned.Clone().View({6, 4}));
  EXPECT_EQ(x.Reshape({24}).raw(), x.raw());
  EXPECT_EQ(Tensor::Zeros({0, 3}).View({3, 0, 2}).numel(), 0);
  EXPECT_EQ(Tensor::Scalar(1.0).View({1, 1}).dim(), 2);
}

TEST(To, CastsBetweenAllDTypesInEveryLayout) {
  Generator generator(1);
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      for (const Lie lie : kLies) {
        const Tensor x = Integers({3, 5}, from, 0, 1, generator, lie);
        const Tensor y = x.To(to);
        EXPECT_EQ(y.dtype(), to);
        ExpectValues(y, {3, 5}, Values(x), 0);
      }
    }
  }
}

TEST(To, SaturatesWhereTheValueDoesNotFit) {
  const double nan = std::nan("");
  const auto x = Tensor::FromVector<double>({1e30, -1e30, nan, -2.7, 300});
  EXPECT_THAT(x.To(DType::kI64).ToVector<int64_t>(),
              ElementsAre(std::numeric_limits<int64_t>::max(),
                          std::numeric_limits<int64_t>::min(), 0, -2, 300));
  EXPECT_THAT(x.To(DType::kU8).ToVector<uint8_t>(),
              ElementsAre(255, 0, 0, 0, 255));
  EXPECT_THAT(x.To(DType::kBool).ToVector<bool>(),
              ElementsAre(true, true, true, true, true));
}

TEST(To, NarrowerIntegersSaturateFromFloatAndWrapFromInteger) {
  const auto x = Tensor::FromVector<double>({1e30, -1e30, std::nan(""), -2.7});
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  EXPECT_THAT(x.To(DType::kI32).ToVector<int32_t>(),
              ElementsAre(kMost, -kMost - 1, 0, -2));
  EXPECT_THAT(x.To(DType::kI8).ToVector<int8_t>(),
              ElementsAre(127, -128, 0, -2));
  EXPECT_THAT(Tensor::FromVector<int64_t>({300, -1, int64_t{1} << 32})
                  .To(DType::kI8)
                  .ToVector<int8_t>(),
              ElementsAre(44, -1, 0));
}

// The bits that `value` has as T.
template <typename T>
int Bits(float value) {
  const Tensor x = Tensor::Scalar(value).To(DTypeOf<T>);
  return x.item<T>().bits();
}

// By Python: numpy.float16(x).view("u2").
TEST(Float16, RoundsToNearestEvenAndKeepsSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Bits<Float16>(0.0f), 0x0000);
  EXPECT_EQ(Bits<Float16>(-0.0f), 0x8000);
  EXPECT_EQ(Bits<Float16>(1.0f), 0x3C00);
  EXPECT_EQ(Bits<Float16>(-2.0f), 0xC000);
  EXPECT_EQ(Bits<Float16>(0.1f), 0x2E66);
  EXPECT_EQ(Bits<Float16>(65504.0f), 0x7BFF);
  EXPECT_EQ(Bits<Float16>(65519.99f), 0x7BFF);
  EXPECT_EQ(Bits<Float16>(65520.0f), 0x7C00);
  EXPECT_EQ(Bits<Float16>(1e30f), 0x7C00);
  EXPECT_EQ(Bits<Float16>(-infinity), 0xFC00);
  EXPECT_EQ(Bits<Float16>(std::nanf("")), 0x7E00);
  EXPECT_EQ(Bits<Float16>(0x1p-24f), 0x0001);
  EXPECT_EQ(Bits<Float16>(0x1p-25f), 0x0000);         // A tie, to even.
  EXPECT_EQ(Bits<Float16>(0x1.8p-24f), 0x0002);       // A tie, to even.
  EXPECT_EQ(Bits<Float16>(0x1.ff8p-15f), 0x03FF);     // The largest subnormal.
  EXPECT_EQ(Bits<Float16>(1.0f + 0x1p-11f), 0x3C00);  // A tie, to even.
  EXPECT_EQ(Bits<Float16>(1.0f + 0x1.8p-10f), 0x3C02);  // A tie, to even.
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsSpecialValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Bits<BFloat16>(1.0f), 0x3F80);
  EXPECT_EQ(Bits<BFloat16>(0.1f), 0x3DCD);
  EXPECT_EQ(Bits<BFloat16>(1.0f + 0x1p-8f), 0x3F80);    // A tie, to even.
  EXPECT_EQ(Bits<BFloat16>(1.0f + 0x1.8p-7f), 0x3F82);  // A tie, to even.
  EXPECT_EQ(Bits<BFloat16>(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(Bits<BFloat16>(infinity), 0x7F80);
  EXPECT_EQ(Bits<BFloat16>(-infinity), 0xFF80);
  const Tensor nan = Tensor::Scalar(std::nanf("")).To(DType::kBF16);
  EXPECT_TRUE(std::isnan(nan.To(DType::kF32).item<float>()));
}

// Converts each of the 65,536 values to f32 and back.
template <typename T>
void ExpectEachValueSurvives() {
  std::vector<T> all;
  for (int bits = 0; bits < 65536; ++bits) {
    all.push_back(T::FromBits(static_cast<uint16_t>(bits)));
  }
  const Tensor x = Tensor::FromVector(all);
  const Tensor wide = x.To(DType::kF32);
  const Tensor back = wide.To(DTypeOf<T>);
  for (int bits = 0; bits < 65536; ++bits) {
    if (std::isnan(wide.data<float>()[bits])) {
      EXPECT_TRUE(std::isnan(static_cast<float>(back.data<T>()[bits])));
    } else {
      ASSERT_EQ(back.data<T>()[bits].bits(), bits);
    }
  }
}

TEST(Float16, SurvivesTheWayByF32) { ExpectEachValueSurvives<Float16>(); }
TEST(BFloat16, SurvivesTheWayByF32) { ExpectEachValueSurvives<BFloat16>(); }

TEST(Tensor, OfAStorageDTypeIsRefusedByArithmeticThatNamesTheCast) {
  for (const DType dtype :
       {DType::kF16, DType::kBF16, DType::kI32, DType::kI8}) {
    const Tensor x = Tensor::Ones({2, 3}, dtype);
    EXPECT_EQ(x.Transpose(0, 1).Clone().dtype(), dtype);
    EXPECT_THAT(Complaint([&] { Tensor::Arange(3, dtype); }),
                HasSubstr("cast with To()"));
  }
}

TEST(Tensor, IsIndexedByNumbersAndRanges) {
  const Tensor x = Tensor::Arange(24).View({2, 3, 4});
  ExpectValues(x(1, 2, 3), {}, {23}, 0);
  ExpectValues(x(-1, -1, -1), {}, {23}, 0);
  ExpectValues(x(0, Slice(1, 3), 2), {2}, {6, 10}, 0);
  ExpectValues(x(Slice(), 1, Slice(-2)), {2, 2}, {6, 7, 18, 19}, 0);
  ExpectValues(x(1, Slice(0, -2)), {1, 4}, {12, 13, 14, 15}, 0);
  EXPECT_EQ(x(Slice(2)).shape(), (Shape{0, 3, 4}));
  EXPECT_EQ(x().shape(), x.shape());
  x(0, 0, Slice(0, 2)).Fill(-1);
  ExpectValues(x(0, 0), {4}, {-1, -1, 2, 3}, 0);
}

TEST(Tensor, RefusesAnIndexOutside) {
  const Tensor x = Tensor::Arange(6).View({2, 3});
  EXPECT_THAT(Complaint([&] { x(2); }), HasSubstr("index 2 is outside"));
  EXPECT_THAT(Complaint([&] { x(-3); }), HasSubstr("index -1 is outside"));
  EXPECT_THAT(Complaint([&] { x(0, Slice(0, 4)); }), HasSubstr("[0, 4)"));
  EXPECT_THAT(Complaint([&] { x(Slice(2, 1)); }), HasSubstr("[2, 1)"));
  EXPECT_THAT(Complaint([&] { x(0, 0, 0); }),
              HasSubstr("3 indices for i64[2, 3]"));
}

TEST(ToString, ShowsDTypeShapeAndValues) {
  const Tensor x = Tensor::FromVector<float>({1, 2.5, -3, 0, 1e10f, 6}, {2, 3});
  EXPECT_EQ(ToString(x), "f32[2, 3]\n[[1, 2.5, -3],\n [0, 1e+10, 6]]");
  EXPECT_EQ(ToString(x.Transpose(0, 1)),
            "f32[3, 2]\n[[1, 0],\n [2.5, 1e+10],\n [-3, 6]]");
  EXPECT_EQ(ToString(Tensor::Scalar<int64_t>(7)), "i64[] 7");
  EXPECT_EQ(ToString(Tensor::FromVector<bool>({true, false})),
            "bool[2] [true, false]");
  EXPECT_EQ(ToString(Tensor::FromVector<int8_t>({-1})), "i8[1] [-1]");
  EXPECT_EQ(ToString(Tensor::Full({2}, 0.5, DType::kBF16)),
            "bf16[2] [0.5, 0.5]");
  EXPECT_EQ(ToString(Tensor::Zeros({0, 2})), "f32[0, 2]\n[]");
  EXPECT_EQ(ToString(Tensor()), "undefined");
  EXPECT_EQ(ToString(Tensor::Arange(2000)),
            "i64[2000] [0, 1, 2, ..., 1997, 1998, 1999]");
  EXPECT_EQ(ToString(Tensor::Arange(2)(Slice(0, 1)).View({1, 1, 1})),
            "i64[1, 1, 1]\n[[[0]]]");
  std::ostringstream out;
  out << Tensor::Arange(2);
  EXPECT_EQ(out.str(), "i64[2] [0, 1]");
}

TEST(CopyFrom, BroadcastsCastsAndMayOverlap) {
  const Tensor y = Tensor::Zeros({2, 3});
  const uint64_t version = y.version();
  y.CopyFrom(Tensor::Arange(3));
  ExpectValues(y, {2, 3}, {0, 1, 2, 0, 1, 2}, 0);
  EXPECT_EQ(y.version(), version + 1);
  const Tensor line = Tensor::Arange(5);
  line.Slice(0, 1, 5).CopyFrom(line.Slice(0, 0, 4));
  ExpectValues(line, {5}, {0, 0, 1, 2, 3}, 0);
  EXPECT_THAT(Complaint([&] { y.CopyFrom(Tensor::Zeros({2})); }),
              HasSubstr("does not expand"));
}

TEST(FromBlob, KeepsTheOwnerAlive) {
  auto owner = std::make_shared<std::vector<float>>(4, 1.0f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  Tensor x = Tensor::FromBlob(owner->data(), {2, 2}, DType::kF32, owner);
  owner.reset();
  const Tensor view = x.Select(0, 1);
  x = Tensor();
  EXPECT_FALSE(watch.expired());
  ExpectValues(view, {2}, {1, 1}, 0);
}

TEST(FromStorage, RefusesElementsOutside) {
  const Tensor x = Tensor::Arange(6);
  const auto view = [&](int64_t offset, const Shape& shape,
                        const Shape& strides) {
    return Tensor::FromStorage(x.storage(), offset, shape, strides,
                               DType::kI64);
  };
  ExpectValues(view(5, {2, 3}, {-3, -1}), {2, 3}, {5, 4, 3, 2, 1, 0}, 0);
  for (const int64_t offset : {-1, 1, 100}) {
    EXPECT_THAT(Complaint([&] { view(offset, {6}, {1}); }),
                ::testing::Not(::testing::IsEmpty()));
  }
  EXPECT_THAT(Complaint([&] { view(0, {2}, {-1}); }), HasSubstr("outside"));
  EXPECT_THAT(Complaint([&] {
                view(0, {3, 3}, {int64_t{1} << 62, int64_t{1} << 62});
              }),
              HasSubstr("outside"));
}

}  // namespace
}  // namespace weft
