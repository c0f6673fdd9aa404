#include "weft/tensor/ops/scan.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/einsum.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/reference.h"
#include "weft/tensor/ops/testing/same_on_device.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Cumsum, AddsUpAlongEachDimInEveryLayout) {
  for (const Lie lie : kLies) {
    const Tensor x = EmptyThatLies(lie, {2, 3}, DType::kI64);
    x.CopyFrom(Tensor::FromVector<int64_t>({1, 2, 3, 4, 5, 6}, {2, 3}));
    ExpectValues(Cumsum(x, 1), {2, 3}, {1, 3, 6, 4, 9, 15}, 0);
    ExpectValues(Cumsum(x, 0), {2, 3}, {1, 2, 3, 5, 7, 9}, 0);
    ExpectValues(CumsumBackward(x, -1), {2, 3}, {6, 5, 3, 15, 11, 6}, 0);
  }
  EXPECT_EQ(Cumsum(Tensor::Zeros({0, 2}), 0).shape(), (Shape{0, 2}));
  EXPECT_EQ(Cumsum(Tensor::Ones({300}, DType::kBool), 0)(-1).item<int64_t>(),
            300);
}

TEST(Cumsum, OfAMillionFloatsErrsByOneRounding) {
  const Tensor x = Tensor::Full({1 << 20}, 0.1);
  const double wanted = (1 << 20) * static_cast<double>(0.1f);
  EXPECT_NEAR(Cumsum(x, 0)(-1).item<float>(), wanted, wanted * 0x1p-24);
}

TEST(TopK, FindsTheBestInOrderAndTheFirstOfEquals) {
  for (const Lie lie : kLies) {
    const Tensor x = EmptyThatLies(lie, {2, 4}, DType::kF32);
    x.CopyFrom(Tensor::FromVector<double>({3, 7, 3, 1, 0, -1, 5, 5}, {2, 4}));
    const TopKResult rows = TopK(x, 3, 1);
    ExpectValues(rows.values, {2, 3}, {7, 3, 3, 5, 5, 0}, 0);
    ExpectValues(rows.indices, {2, 3}, {1, 0, 2, 2, 3, 0}, 0);
    const TopKResult columns = TopK(x, 1, 0, /*is_largest=*/false);
    ExpectValues(columns.values, {1, 4}, {0, -1, 3, 1}, 0);
    ExpectValues(columns.indices, {1, 4}, {1, 1, 0, 0}, 0);
  }
}

TEST(TopK, CountsNanAsTheLargest) {
  const auto x = Tensor::FromVector<double>({1, std::nan(""), 3});
  EXPECT_THAT(TopK(x, 2, 0).indices.ToVector<int64_t>(), ElementsAre(1, 2));
  EXPECT_THAT(TopK(x, 2, 0, false).indices.ToVector<int64_t>(),
              ElementsAre(0, 2));
}

TEST(TopK, RefusesMoreThanThereAre) {
  EXPECT_THAT(Complaint([] {
                TopK(Tensor::Zeros({2, 3}), 4, 1);
              }),
              HasSubstr("k is 4, dimension 1 of f32[2, 3] has 3 elements"));
  EXPECT_EQ(TopK(Tensor::Zeros({2, 3}), 0, 1).values.shape(), (Shape{2, 0}));
}

TEST(ArgMin, FindsTheFirstSmallestOrNan) {
  const auto x = Tensor::FromVector<float>({3, 1, 1, 5, NAN, -9}, {2, 3});
  EXPECT_THAT(ArgMin(x, 1).ToVector<int64_t>(), ElementsAre(1, 1));
  EXPECT_THAT(ArgMax(x, 1).ToVector<int64_t>(), ElementsAre(0, 1));
}

TEST(Split, CutsIntoViewsThatMakeUpTheWhole) {
  const Tensor x = Tensor::Arange(14).View({2, 7});
  const std::vector<Tensor> threes = Split(x, 3, 1);
  ASSERT_EQ(threes.size(), 3u);
  EXPECT_EQ(threes[2].shape(), (Shape{2, 1}));
  ExpectSame(Concat(threes, 1), x);
  ExpectSame(Concat(Split(x, {1, 0, 6}, -1), 1), x);
  const std::vector<Tensor> chunks = Chunk(x, 4, 1);
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(chunks[0].shape(), (Shape{2, 2}));
  EXPECT_EQ(chunks[3].shape(), (Shape{2, 1}));
  EXPECT_EQ(Chunk(x, 5, 1).size(), 4u);  // Twos; as PyTorch.
  EXPECT_THAT(Complaint([&] {
                Split(x, {3, 3}, 1);
              }),
              HasSubstr("sizes [3, 3] do not make up dimension 1"));
  EXPECT_THAT(Complaint([&] { Split(x, 0, 1); }), HasSubstr("size 0"));
}

TEST(Triangles, KeepOneSideOfTheDiagonal) {
  const Tensor x = Tensor::Arange(6).View({2, 3});
  ExpectValues(Tril(x), {2, 3}, {0, 0, 0, 3, 4, 0}, 0);
  ExpectValues(Triu(x, 1), {2, 3}, {0, 1, 2, 0, 0, 5}, 0);
  ExpectValues(Tril(x, -5), {2, 3}, {0, 0, 0, 0, 0, 0}, 0);
  ExpectValues(Triu(x, -5), {2, 3}, {0, 1, 2, 3, 4, 5}, 0);
  ExpectValues(Tril(x.Transpose(0, 1)), {3, 2}, {0, 0, 1, 4, 2, 5}, 0);
}

TEST(Einsum, ErrorNamesTheMismatch) {
  const Tensor a = Tensor::Zeros({2, 3});
  EXPECT_THAT(Complaint([&] { Einsum("ij,jk", a, a); }),
              HasSubstr("ab,bc->ac"));
  EXPECT_THAT(Complaint([&] { Einsum("ij,jk->ik", a, a); }),
              HasSubstr("sizes 3 and 2 of 'j' differ"));
  EXPECT_THAT(Complaint([&] { Einsum("ii->i", a); }),
              HasSubstr("each once in an operand"));
  EXPECT_THAT(Complaint([&] { Einsum("ij->ijk", a); }),
              HasSubstr("letter 'k'"));
  EXPECT_THAT(Complaint([&] { Einsum("ijk->i", a); }),
              HasSubstr("names 3 dimensions of f32[2, 3]"));
  ExpectSame(Einsum("ij -> ji", a), a.Transpose(0, 1));
}

TEST(OnDevice, ScansAreThoseOfTheCpu) {
  Generator generator(31);
  const std::vector<Tensor> bases = {
      Uniform({24}, -1, 1, generator),
      Uniform({24}, -1, 1, generator, DType::kF64),
      Integers({24}, DType::kI64, -3, 3, generator),
      Integers({24}, DType::kU8, 0, 5, generator)};
  testing::ExpectSameOnDevice(
      "scans", bases, [](absl::Span<const Tensor> inputs) {
        std::vector<Tensor> results;
        for (const Tensor& input : inputs) {
          for (const Tensor& x : testing::ViewsOf(input)) {
            for (const int64_t dim : {0, 1}) {
              results.push_back(Cumsum(x, dim));
              results.push_back(CumsumBackward(x, dim));
              for (const bool is_largest : {true, false}) {
                const TopKResult top = TopK(x, 2, dim, is_largest);
                results.push_back(top.values);
                results.push_back(top.indices);
              }
            }
          }
          results.push_back(Cumsum(input.Slice(0, 0, 0), 0));
          results.push_back(TopK(input, 0, 0).values);
        }
        return results;
      });
}

}  // namespace
}  // namespace weft
