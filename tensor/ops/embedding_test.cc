#include "weft/tensor/ops/embedding.h"

#include <functional>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

namespace weft {
namespace {

constexpr DType kFloats[] = {DType::kF32, DType::kF64};
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

Tensor Indices(const std::vector<int64_t>& numbers) {
  return Tensor::FromVector<int64_t>(numbers);
}

TEST(Coalesce, SumsTheRowsOfEachKeyInTheOrderGiven) {
  Generator generator(1);
  for (const DType dtype : kFloats) {
    for (const int64_t n : {0, 1, 2, 50}) {
      for (const Lie lie : kLies) {
        const Tensor keys = Integers({n}, DType::kI64, 0, 6, generator, lie);
        const Tensor values = Reals({n, 3}, dtype, generator, lie);
        const SparseRows sums = Coalesce({keys, values, 7});
        int64_t found = 0;
        for (int64_t key = 0; key < 7; ++key) {
          // In the dtype itself, one after another: the bits must be equal.
          std::vector<double> wanted(3);
          bool is_there = false;
          for (int64_t i = 0; i < n; ++i) {
            if (At(keys, {i}) != key) continue;
            is_there = true;
            for (int64_t j = 0; j < 3; ++j) {
              double& sum = wanted[static_cast<size_t>(j)];
              sum += At(values, {i, j});
              if (dtype == DType::kF32) sum = static_cast<float>(sum);
            }
          }
          if (!is_there) continue;
          ASSERT_EQ(At(sums.indices, {found}), key);
          ExpectValues(sums.values.Select(0, found), {3}, wanted, 0);
          ++found;
        }
        EXPECT_EQ(sums.indices.numel(), found);
        EXPECT_EQ(sums.rows, 7);
      }
    }
  }
}

TEST(AddRows, AddsToEachRowAsOftenAsItIsNamed) {
  Generator generator(2);
  for (const DType dtype : kFloats) {
    const Tensor y = Integers({4, 2}, dtype, -9, 9, generator);
    const Tensor before = y.Clone();
    const uint64_t version = y.version();
    AddRows_(y, 3, {Indices({1, 1, 3, 1}), Tensor::Ones({4, 2}, dtype), 4});
    for (int64_t row = 0; row < 4; ++row) {
      const double added = row == 1 ? 9 : row == 3 ? 3 : 0;
      for (int64_t j = 0; j < 2; ++j) {
        EXPECT_EQ(At(y, {row, j}), At(before, {row, j}) + added);
      }
    }
    EXPECT_EQ(y.version(), version + 1);
  }
}

// Bag by bag from the definition, in every layout.
TEST(EmbeddingBag, AgreesWithLoopsInEveryLayout) {
  Generator generator(3);
  for (const DType dtype : kFloats) {
    for (const Lie lie : kLies) {
      const Tensor weight = Integers({5, 4}, dtype, -8, 8, generator, lie);
      const Tensor indices = Integers({9}, DType::kI64, 0, 4, generator, lie);
      const Tensor offsets = EmptyThatLies(lie, {5}, DType::kI64);
      offsets.CopyFrom(Indices({0, 0, 4, 5, 9}));  // Sizes 0, 4, 1, 4, 0.
      const Tensor scales = Integers({9}, dtype, -2, 2, generator, lie);
      const int64_t ends[] = {0, 4, 5, 9, 9};
      for (const int kind : {0, 1, 2}) {
        std::vector<double> wanted;
        ForEachIndex({5, 4}, [&](const Shape& at) {
          double sum = 0;
          const auto begin = static_cast<int64_t>(At(offsets, {at[0]}));
          const int64_t end = ends[at[0]];
          for (int64_t i = begin; i < end; ++i) {
            sum += At(weight, {static_cast<int64_t>(At(indices, {i})), at[1]}) *
                   (kind == 2 ? At(scales, {i}) : 1);
          }
          if (kind == 1 && end > begin) sum /= static_cast<double>(end - begin);
          wanted.push_back(sum);
        });
        ExpectValues(EmbeddingBag(weight, indices, offsets,
                                  kind == 1 ? BagMode::kMean : BagMode::kSum,
                                  kind == 2 ? scales : Tensor()),
                     {5, 4}, wanted, 0);
      }
    }
  }
}

TEST(Embedding, TakesIndicesOfAnyShape) {
  const Tensor weight = Tensor::Arange(6, DType::kF32).View({3, 2});
  ExpectValues(Embedding(weight, Tensor::Scalar<int64_t>(2)), {2}, {4, 5}, 0);
  const Tensor turned = Indices({0, 1, 2, 0}).View({2, 2}).Transpose(0, 1);
  ExpectValues(Embedding(weight, turned), {2, 2, 2}, {0, 1, 4, 5, 2, 3, 0, 1},
               0);
  EXPECT_EQ(Embedding(weight, Tensor::Zeros({2, 0}, DType::kI64)).shape(),
            (Shape{2, 0, 2}));
  ExpectSame(ToDense(EmbeddingBackward(Tensor::Ones({2}),
                                       Tensor::Scalar<int64_t>(2), 3)),
             Tensor::FromVector<float>({0, 0, 0, 0, 1, 1}, {3, 2}));
}

TEST(Embeddings, RefuseWhatDoesNotFitAndChangeNothing) {
  const Tensor weight = Tensor::Ones({4, 2}), zero = Indices({0});
  const Tensor one = Tensor::Ones({1, 2});
  const BagMode sum = BagMode::kSum;
  const auto bag = [&](const Tensor& w, const Tensor& i, const Tensor& o,
                       BagMode mode = BagMode::kSum, const Tensor& s = {}) {
    return [=] { EmbeddingBag(w, i, o, mode, s); };
  };
  const auto add = [&](const Tensor& y, const SparseRows& rows) {
    return [=] { AddRows_(y, 1, rows); };
  };
  const std::function<void()> bad[] = {
      [&] { Embedding(weight.Select(0, 0), zero); },
      [&] { Embedding(weight, Indices({-1})); },
      [&] { Embedding(weight, zero.To(DType::kI32)); },
      [&] {
        EmbeddingBackward(Tensor::Ones({2, 2}), zero, 4);
      },
      [&] {
        EmbeddingBackward(Tensor::Ones({}), Tensor::Scalar<int64_t>(0), 4);
      },
      bag(weight, Indices({kLeast}), zero),
      bag(weight, zero.To(DType::kU8), zero),
      bag(weight, zero, zero.To(DType::kI32)),
      bag(weight, zero.View({1, 1}), zero),
      bag(weight, zero, Indices({})),  // An index in no bag.
      bag(weight, zero, Indices({0, kLeast})),
      bag(weight, zero, zero, BagMode::kMean, Tensor::Ones({1})),
      bag(weight, zero, zero, sum, Tensor::Ones({2})),
      bag(weight, zero, zero, sum, Tensor::Ones({1}, DType::kF64)),
      bag(weight.To(DType::kI32), zero, zero),
      [&] {
        EmbeddingBagBackward(Tensor::Ones({2, 2}), zero, zero, sum, 4);
      },
      [&] { EmbeddingBagBackward(one, Indices({4}), zero, sum, 4); },
      [&] {
        EmbeddingBagBackwardScales(Tensor::Ones({1, 3}), weight, zero, zero);
      },
      [&] {
        EmbeddingBagBackwardScales(one.To(DType::kF64), weight, zero, zero);
      },
      add(weight, {Indices({4}), one, 4}),
      add(weight, {Indices({0, 4}), Tensor::Ones({2, 2}), 4}),
      add(weight, {Indices({0, 1}), one, 4}),
      add(weight, {zero, one, 3}),
      add(weight, {zero, Tensor::Ones({1, 3}), 4}),
      add(weight, {zero, one.To(DType::kF64), 4}),
      add(weight, {zero.To(DType::kI32), one, 4}),
      add(weight.Transpose(0, 1), {zero, Tensor::Ones({1, 4}), 2}),
      [&] {
        Coalesce({Indices({-1}), one, 4});
      },
      [&] {
        Coalesce({zero, one.View({2}), 4});
      },
      [&] {
        Coalesce({zero, one.To(DType::kI64), 4});
      },
      [&] {
        ToDense({Indices({}), one.Slice(0, 0, 0), -1});
      },
      [&] {
        ToDense({zero, one, 0});
      },
  };
  for (size_t i = 0; i < std::size(bad); ++i) {
    EXPECT_EQ(CodeOf(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
  ExpectSame(weight, Tensor::Ones({4, 2}));
  EXPECT_EQ(weight.version(), Tensor::Ones({4, 2}).version());
}

TEST(OnDevice, EmbeddingsAreThoseOfTheCpu) {
  Generator generator(51);
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const std::vector<Tensor> inputs = {
        Uniform({6, 5}, -1, 1, generator, dtype),  // transposed: the table
        Tensor::FromVector<int64_t>({4, 0, 4, 2, 1, 2, 0, 4}),
        Tensor::FromVector<int64_t>({0, 2, 2, 5}),
        Uniform({8}, -1, 1, generator, dtype),
        Uniform({4, 6}, -1, 1, generator, dtype)};
    testing::ExpectSameOnDevice(
        "embeddings", inputs, [](absl::Span<const Tensor> inputs) {
          const Tensor table = inputs[0].Transpose(0, 1);
          const Tensor& indices = inputs[1];
          const Tensor& offsets = inputs[2];
          const Tensor& scales = inputs[3];
          const Tensor& grad = inputs[4];
          const Tensor places = indices.View({2, 4}).Transpose(0, 1);
          const Tensor found = Embedding(table, places);
          std::vector<Tensor> results = {
              found, EmbeddingBag(table, indices, offsets, BagMode::kSum),
              EmbeddingBag(table, indices, offsets, BagMode::kMean),
              EmbeddingBag(table, indices, offsets, BagMode::kSum, scales),
              EmbeddingBagBackwardScales(grad, table, indices, offsets)};
          for (const SparseRows& rows :
               {EmbeddingBackward(found, places, 5),
                EmbeddingBagBackward(grad, indices, offsets, BagMode::kSum, 5),
                EmbeddingBagBackward(grad, indices, offsets, BagMode::kMean, 5),
                EmbeddingBagBackward(grad, indices, offsets, BagMode::kSum, 5,
                                     scales)}) {
            const SparseRows sum = Coalesce(rows);
            const Tensor y = inputs[0].View({5, 6}).Clone();
            AddRows_(y, 0.5, rows);
            for (const Tensor& result : {rows.indices, rows.values, sum.indices,
                                         sum.values, ToDense(rows), y}) {
              results.push_back(result);
            }
          }
          return results;
        });
  }
}

TEST(OnDevice, EmbeddingsOfTwoDevicesAreRefused) {
  using testing::ExpectTwoDevicesRefused;
  const Tensor table = Tensor::Ones({3, 2});
  const Tensor index = Tensor::Zeros({3}, DType::kI64);
  ExpectTwoDevicesRefused("Embedding", table, index,
                          [](auto& w, auto& index) { Embedding(w, index); });
  ExpectTwoDevicesRefused(
      "EmbeddingBackward", table, index,
      [](auto& grad, auto& index) { EmbeddingBackward(grad, index, 3); });
  ExpectTwoDevicesRefused("EmbeddingBag", table, index,
                          [](auto& w, auto& index) {
                            EmbeddingBag(w, index, index, BagMode::kSum);
                          });
  ExpectTwoDevicesRefused(
      "EmbeddingBag offsets", index, index, [&](auto& index, auto& offsets) {
        EmbeddingBag(table.To(index.device()), index, offsets, BagMode::kSum);
      });
  ExpectTwoDevicesRefused(
      "EmbeddingBagBackward", table, index, [](auto& grad, auto& index) {
        EmbeddingBagBackward(grad, index, index, BagMode::kSum, 3);
      });
  ExpectTwoDevicesRefused(
      "EmbeddingBagBackwardScales", table, index, [](auto& w, auto& index) {
        EmbeddingBagBackwardScales(
            Tensor::Ones({3, 2}, DType::kF32, index.device()), w, index, index);
      });
  ExpectTwoDevicesRefused("Coalesce", table, index,
                          [](auto& values, auto& index) {
                            Coalesce({index, values, 3});
                          });
  ExpectTwoDevicesRefused("AddRows_", table, table, [&](auto& y, auto& values) {
    AddRows_(y, 1, {index.To(values.device()), values, 3});
  });
}

TEST(OnDevice, AnIndexOrOffsetThatDoesNotFitMakesTheDeviceFail) {
  const Tensor good = Tensor::FromVector<int64_t>({0, 1, 2});
  const Tensor bad = Tensor::FromVector<int64_t>({0, 9, 2});
  using Call = std::function<void(const Tensor& x, const Tensor& good,
                                  const Tensor& bad)>;
  for (const Call& call : std::vector<Call>{
           [](auto&x, auto&, auto&bad) { Embedding(x, bad); },
           [](auto&x, auto&, auto&bad) {
             AddRows_(x, 1, {bad, x, 3});
           },
           [](auto&x, auto&good, auto&bad) {
             EmbeddingBag(x, bad, good, BagMode::kSum);
           },
           [](auto&x, auto&good, auto&bad) {
             EmbeddingBagBackward(x, good, bad, BagMode::kMean, 3);
           },
           [](auto&x, auto&good, auto&bad) {
             EmbeddingBagBackwardScales(x, x, good, bad);
           }}) {
    device::testing::SimulatedDevices devices(1);
    const Device device(devices.context(), 0);
    const Tensor x = Tensor::Ones({3, 2}, DType::kF32, device);
    std::string found;
    try {
      call(x, good.To(device), bad.To(device));
      x.ToVector<float>();
    } catch (const Error& error) {
      EXPECT_NE(error.status().code(), absl::StatusCode::kInvalidArgument);
      found = std::string(error.status().message());
    }
    EXPECT_THAT(found, ::testing::HasSubstr(" 9 "));
  }
}

}  // namespace
}  // namespace weft
