#include "weft/tensor/ops/index.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

namespace weft {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

TEST(Triangles, KeepTheirSideOfAnyDiagonal) {
  for (const DType dtype : kAllDTypes) {
    for (const Lie lie : kLies) {
      const Tensor x = EmptyThatLies(lie, {2, 3, 4}, dtype);
      x.Fill(1);
      for (const int64_t diagonal :
           {kLeast, kLeast + 1, int64_t{-4}, int64_t{-3}, int64_t{-1},
            int64_t{0}, int64_t{2}, int64_t{3}, int64_t{4}, kMost - 1, kMost}) {
        std::vector<double> low, high;
        ForEachIndex({2, 3, 4}, [&](const Shape& at) {
          low.push_back(at[2] - at[1] <= diagonal);
          high.push_back(at[2] - at[1] >= diagonal);
        });
        ExpectValues(Tril(x, diagonal), {2, 3, 4}, low, 0);
        ExpectValues(Triu(x, diagonal), {2, 3, 4}, high, 0);
        if (HasFailure()) FAIL() << diagonal;
      }
    }
  }
  EXPECT_EQ(Tril(Tensor::Zeros({2, 0, 3})).shape(), (Shape{2, 0, 3}));
  EXPECT_EQ(Triu(Tensor::Zeros({int64_t{1} << 40, 3, 0})).numel(), 0);
  EXPECT_EQ(CodeOf([] { Tril(Tensor::Zeros({3})); }),
            absl::StatusCode::kInvalidArgument);
}

TEST(Chunk, MakesPartsOfOneSizeFromAnyNumber) {
  EXPECT_EQ(ChunkSizes(7, 3), (Shape{3, 3, 1}));
  EXPECT_EQ(ChunkSizes(7, 7), Shape(7, 1));
  EXPECT_EQ(ChunkSizes(7, kMost), Shape(7, 1));
  EXPECT_EQ(ChunkSizes(0, 3), Shape{0});
  EXPECT_EQ(ChunkSizes(kMaxTensorBytes, 1), Shape{kMaxTensorBytes});
  EXPECT_EQ(SplitSizes(7, kMost, "f"), Shape{7});
  EXPECT_EQ(SplitSizes(0, 2, "f"), Shape{0});
  EXPECT_EQ(SplitSizes(4, 2, "f"), (Shape{2, 2}));
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, kLeast}) {
    EXPECT_EQ(CodeOf([&] { ChunkSizes(7, bad); }),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(CodeOf([&] { SplitSizes(7, bad, "f"); }),
              absl::StatusCode::kInvalidArgument);
  }
  const Tensor x = Tensor::Zeros({2, 3});
  for (const std::vector<int64_t>& bad :
       {std::vector<int64_t>{4, -1}, {kMost, kMost, 5}, {3, 1}, {}}) {
    EXPECT_EQ(CodeOf([&] { Split(x, bad, 1); }),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(Split(x.Slice(1, 0, 0), std::vector<int64_t>{}, 1).size(), 0u);
}

// Tensors of three dimensions, along each, with an index smaller than x in the
// others.
TEST(Gather, AndScatterAddFollowTheirDefinition) {
  Generator generator(1);
  for (int64_t dim = -3; dim < 3; ++dim) {
    const size_t d = static_cast<size_t>(WrapDim(dim, 3, "test"));
    for (const Lie lie : kLies) {
      for (Shape shape : {Shape{2, 3, 4}, Shape{1, 2, 2}, Shape{2, 0, 3}}) {
        shape[d] = 5;  // More than x has.
        const Tensor x =
            Integers({2, 3, 4}, DType::kF64, -9, 9, generator, lie);
        const Tensor index =
            Integers(shape, DType::kI64, 0, x.size(dim) - 1, generator, lie);
        const Tensor src = Integers(shape, DType::kF64, -9, 9, generator, lie);
        const Tensor y = x.Clone(), wanted = x.Clone();
        std::vector<double> gathered;
        ForEachIndex(shape, [&](const Shape& at) {
          Shape place = at;
          place[d] = static_cast<int64_t>(At(index, at));
          gathered.push_back(At(x, place));
          wanted.data<double>()[place[0] * 12 + place[1] * 4 + place[2]] +=
              At(src, at);
        });
        ExpectValues(Gather(x, dim, index), shape, gathered, 0);
        ScatterAdd_(y, dim, index, src);
        ExpectSame(y, wanted);
      }
    }
  }
}

TEST(IndexAdd, IntoAnyViewIsThatOfACopy) {
  Generator generator(2);
  for (int i = 0; i < 500; ++i) {
    const Tensor base = Tensor::Arange(60);
    // Views of one memory: what is added, what is added to, and where.
    const Tensor y = AnyView(base, {3, 4}, 12, generator);
    const Tensor src = AnyView(base, {2, 4}, 12, generator);
    const Tensor index = Integers({2}, DType::kI64, 0, 2, generator);
    const Tensor wanted = y.Clone();
    IndexAdd_(wanted, 0, index, src.Clone());
    if (CodeOf([&] { y.CopyFrom(y); }) != absl::StatusCode::kOk) continue;
    IndexAdd_(y, 0, index, src);
    ExpectSame(y, wanted);
    if (HasFailure()) FAIL() << ShapeText(y.strides());
  }
}

TEST(ScatterAdd, IntoItsOwnIndexUsesTheValuesFromBefore) {
  const Tensor x = Tensor::FromVector<int64_t>({2, 0, 1});
  ScatterAdd_(x, 0, x, Tensor::FromVector<int64_t>({10, 20, 30}));
  ExpectValues(x, {3}, {22, 30, 11}, 0);
}

TEST(OneHot, TakesAnyShapeAndDType) {
  for (const DType dtype : kAllDTypes) {
    const Tensor index =
        Tensor::FromVector<int64_t>({1, 0, 2, 1}, {2, 2}).Transpose(0, 1);
    ExpectValues(OneHot(index, 3, dtype), {2, 2, 3},
                 {0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 0}, 0);
  }
  ExpectValues(OneHot(Tensor::Scalar<int64_t>(1), 2), {2}, {0, 1}, 0);
  EXPECT_EQ(OneHot(Tensor::Zeros({0}, DType::kI64), 0).shape(), (Shape{0, 0}));
}

TEST(Stack, AddsADimensionAnywhere) {
  const Tensor a = Tensor::Scalar<int64_t>(1), b = Tensor::Scalar<int64_t>(2);
  ExpectValues(Stack({a, b}, 0), {2}, {1, 2}, 0);
  ExpectValues(Stack({a, b}, -1), {2}, {1, 2}, 0);
  const Tensor x = Tensor::Arange(6).View({2, 3});
  for (int64_t dim = -3; dim < 3; ++dim) {
    const Tensor y = Stack({x, x.Clone(), x}, dim);
    for (int64_t i = 0; i < 3; ++i) ExpectSame(y.Select(dim, i), x);
  }
}

TEST(Indexing, RefusesWhatDoesNotFitAndChangesNothing) {
  const Tensor x = Tensor::Ones({2, 3});
  const auto of = [](const std::vector<int64_t>& numbers) {
    return Tensor::FromVector<int64_t>(numbers);
  };
  const auto in_rows = [&](const std::vector<int64_t>& numbers) {
    return of(numbers).View({1, -1});
  };
  const Tensor row = Tensor::Ones({1, 2}), i32 = Tensor::Ones({2}, DType::kI32);
  const std::function<void()> bad[] = {
      [&] { IndexSelect(x, 2, of({0})); },
      [&] { IndexSelect(x, 0, of({-1})); },
      [&] {
        IndexSelect(x, 0, of({0, 2}));
      },
      [&] { IndexSelect(x, 0, of({kMost})); },
      [&] { IndexSelect(x, 0, of({0}).To(DType::kI32)); },
      [&] {
        IndexSelect(x, 0, of({0}).View({1, 1}));
      },
      [&] { IndexSelect(Tensor::Scalar(1.0), 0, of({0})); },
      [&] { IndexSelect(x.Slice(0, 0, 0), 0, of({0})); },
      [&] {
        IndexAdd_(x, 0, of({0, 2}), Tensor::Ones({2, 3}));
      },
      [&] {
        IndexAdd_(x, 0, of({0}), Tensor::Ones({1, 2}));
      },
      [&] {
        IndexAdd_(x, 0, of({0}), Tensor::Ones({2, 3}));
      },
      [&] {
        IndexAdd_(x, 0, of({0}), Tensor::Ones({1, 3}, DType::kF64));
      },
      [&] { IndexAdd_(i32, 0, of({0}), i32.Slice(0, 0, 1)); },
      [&] {
        Gather(x, 1, in_rows({0, 3}));
      },
      [&] { Gather(x, 1, in_rows({kLeast})); },
      [&] { Gather(x, 1, of({0})); },
      [&] {
        Gather(x, 0, in_rows({0, 0, 0, 0}));
      },
      [&] {
        ScatterAdd_(x, 1, in_rows({0, 3}), row);
      },
      [&] {
        ScatterAdd_(x, 1, in_rows({0, 1}), row.Slice(1, 0, 1));
      },
      [&] {
        ScatterAdd_(x, 1, in_rows({0, 1}), row.To(DType::kF64));
      },
      [&] { ScatterAdd_(i32, 0, of({0}), i32.Slice(0, 0, 1)); },
      [&] {
        Concat({x, x.To(DType::kF64)}, 0);
      },
      [&] {
        Concat({x, x.Unsqueeze(0)}, 0);
      },
      [&] { Concat({Tensor::Scalar(1.0f)}, 0); },
      [&] {
        Stack({x, x.Transpose(0, 1)}, 0);
      },
      [&] {
        Stack({x, x.To(DType::kF64)}, 0);
      },
      [&] { Stack({x}, 3); },
      [&] { OneHot(of({3}), 3); },
      [&] { OneHot(of({-1}), 3); },
      [&] { OneHot(of({0}), 0); },
      [&] { OneHot(of({}), -1); },
      [&] { OneHot(of({0}), int64_t{1} << 62); },
      [&] { OneHot(of({0}).To(DType::kU8), 3); },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
  ExpectSame(x, Tensor::Ones({2, 3}));
}

std::vector<Tensor> BasesOf(absl::Span<const DType> dtypes) {
  Generator generator(41);
  std::vector<Tensor> bases;
  for (const DType dtype : dtypes) {
    bases.push_back(Integers({24}, dtype, 0, 9, generator));
  }
  return bases;
}

TEST(OnDevice, ChosenPartsAreThoseOfTheCpu) {
  const Tensor index = Tensor::FromVector<int64_t>({2, 0, 2, 1, 0, 1}, {6});
  std::vector<Tensor> inputs = BasesOf(
      {DType::kF32, DType::kF64, DType::kI64, DType::kU8, DType::kBF16});
  inputs.push_back(index);
  testing::ExpectSameOnDevice(
      "IndexSelect, Gather, ...", inputs, [](absl::Span<const Tensor> inputs) {
        const Tensor& index = inputs.back();
        const Tensor strided = index.View({3, 2}).Select(1, 0);
        const Tensor places = index.View({2, 3}).Transpose(0, 1);
        std::vector<Tensor> results;
        for (const Tensor& input : inputs.first(inputs.size() - 1)) {
          for (const Tensor& x : testing::ViewsOf(input)) {
            for (const Tensor& y :
                 {IndexSelect(x, 0, index), IndexSelect(x, 1, strided),
                  IndexSelect(x, 1, index.Slice(0, 0, 0)), Gather(x, 0, places),
                  Gather(x, 1, places), Concat({x, x.Slice(0, 1, 2)}, 0),
                  Concat({x, x}, -1), Stack({x, x}, 1), Tril(x), Triu(x, 1),
                  Tril(x, -1), Split(x, 2, 0)[1], Chunk(x, 2, 1)[1]}) {
              results.push_back(y);
            }
          }
        }
        results.push_back(OneHot(places, 3));
        results.push_back(OneHot(strided, 4, DType::kI64));
        results.push_back(OneHot(index, 3, DType::kBool));
        return results;
      });
}

TEST(OnDevice, AddedPartsAreThoseOfTheCpu) {
  const Tensor index = Tensor::FromVector<int64_t>({2, 0, 2, 1, 0, 1}, {6});
  std::vector<Tensor> inputs =
      BasesOf({DType::kF32, DType::kF64, DType::kI64, DType::kU8});
  inputs.push_back(index);
  testing::ExpectSameOnDevice(
      "IndexAdd_, ScatterAdd_", inputs, [](absl::Span<const Tensor> inputs) {
        const Tensor& index = inputs.back();
        const Tensor strided = index.View({3, 2}).Select(1, 0);
        const Tensor places = index.View({2, 3}).Transpose(0, 1);
        std::vector<Tensor> results;
        for (const Tensor& input : inputs.first(inputs.size() - 1)) {
          for (const Tensor& x : testing::ViewsOf(input)) {
            const Tensor y = input.Clone();
            IndexAdd_(y.View({2, 3, 4}).Select(0, 1), 0, strided, x);
            IndexAdd_(y.View({4, 6}).Transpose(0, 1).Slice(1, 0, 3), 1, strided,
                      y.View({3, 8}).Slice(1, 0, 6).Transpose(0, 1));
            ScatterAdd_(y.View({4, 6}).Slice(1, 1, 4), 1, places,
                        x.Slice(1, 0, 2));
            ScatterAdd_(y.View({6, 4}), 0, places,
                        y.View({4, 6}).Slice(1, 2, 4).Slice(0, 0, 3));
            results.push_back(y);
          }
        }
        return results;
      });
}

TEST(OnDevice, PartsOfTwoDevicesAreRefused) {
  using testing::ExpectTwoDevicesRefused;
  const Tensor x = Tensor::Ones({3});
  const Tensor index = Tensor::Zeros({3}, DType::kI64);
  ExpectTwoDevicesRefused("IndexSelect", x, index, [](auto& x, auto& index) {
    IndexSelect(x, 0, index);
  });
  ExpectTwoDevicesRefused("Gather", x, index,
                          [](auto& x, auto& index) { Gather(x, 0, index); });
  ExpectTwoDevicesRefused(
      "IndexAdd_ index", x, index,
      [](auto& x, auto& index) { IndexAdd_(x, 0, index, x); });
  ExpectTwoDevicesRefused("IndexAdd_ src", x, x, [&](auto& y, auto& src) {
    IndexAdd_(y, 0, index.To(y.device()), src);
  });
  ExpectTwoDevicesRefused(
      "ScatterAdd_ index", x, index,
      [](auto& x, auto& index) { ScatterAdd_(x, 0, index, x); });
  ExpectTwoDevicesRefused("ScatterAdd_ src", x, x, [&](auto& y, auto& src) {
    ScatterAdd_(y, 0, index.To(y.device()), src);
  });
  ExpectTwoDevicesRefused("Concat", x, x, [](auto& a, auto& b) {
    Concat({a, b}, 0);
  });
  ExpectTwoDevicesRefused("Stack", x, x, [](auto& a, auto& b) {
    Stack({a, b}, 0);
  });
}

TEST(OnDevice, AnIndexOutsideMakesTheDeviceFail) {
  using Call = std::function<void(const Tensor& x, const Tensor& index)>;
  for (const Call& call : std::vector<Call>{
           [](auto&x, auto&index) { IndexSelect(x, 0, index); },
           [](auto&x, auto&index) { Gather(x, 0, index); },
           [](auto&x, auto&index) { IndexAdd_(x, 0, index, x); },
           [](auto&x, auto&index) { ScatterAdd_(x, 0, index, x); },
           [](auto&, auto&index) { OneHot(index, 3); }}) {
    device::testing::SimulatedDevices devices(1);
    const Device device(devices.context(), 0);
    const Tensor x = Tensor::Ones({3}, DType::kF32, device);
    const Tensor index = Tensor::FromVector<int64_t>({0, 3, 1}).To(device);
    std::string found;
    try {
      call(x, index);
      x.ToVector<float>();
    } catch (const Error& error) {
      EXPECT_NE(error.status().code(), absl::StatusCode::kInvalidArgument);
      found = std::string(error.status().message());
    }
    EXPECT_THAT(found, ::testing::HasSubstr("index 3 is outside of [0, 3)"));
  }
}

}  // namespace
}  // namespace weft
