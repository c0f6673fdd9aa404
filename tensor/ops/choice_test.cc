// Losses, indexing and embeddings against loops over doubles.

#include <cmath>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/embedding.h"
#include "weft/tensor/ops/index.h"
#include "weft/tensor/ops/loss.h"
#include "weft/tensor/ops/reduce.h"
#include "weft/tensor/ops/reference.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr DType kFloats[] = {DType::kF32, DType::kF64};
constexpr Reduction kReductions[] = {Reduction::kNone, Reduction::kMean,
                                     Reduction::kSum};

// d sum(weights * f(x)) / dx by central differences, in f64.
template <typename F>
Tensor Differences(const Tensor& x, const Tensor& weights, F&& f) {
  constexpr double kStep = 1e-5;
  const Tensor at = x.Clone();
  const Tensor result = Tensor::Zeros(x.shape(), DType::kF64);
  for (int64_t i = 0; i < x.numel(); ++i) {
    double& element = at.data<double>()[i];
    const double value = element;
    element = value + kStep;
    const double above = Sum(Mul(f(at), weights)).template item<double>();
    element = value - kStep;
    const double below = Sum(Mul(f(at), weights)).template item<double>();
    element = value;
    result.data<double>()[i] = (above - below) / (2 * kStep);
  }
  return result;
}

// --- Losses.

TEST(Softmax, AgreesWithItsDefinitionAlongEachDim) {
  Generator generator(1);
  for (const DType dtype : kFloats) {
    for (const Lie lie : kLies) {
      const Tensor x = Reals({3, 40, 5}, dtype, generator, lie);
      for (const int64_t dim : {0, 1, -1}) {
        const Tensor e = Exp(x.To(DType::kF64));
        const Tensor wanted = Div(e, Sum(e, {dim}, true));
        ExpectSame(Softmax(x, dim), wanted.To(dtype), 1e-6);
        ExpectSame(LogSoftmax(x, dim), Log(wanted).To(dtype), 1e-5);
      }
    }
  }
}

TEST(Softmax, DoesNotOverflow) {
  const auto x = Tensor::FromVector<float>({1000, 1000, -1000}, {1, 3});
  ExpectValues(Softmax(x, 1), {1, 3}, {0.5, 0.5, 0}, 0);
  ExpectValues(LogSoftmax(x, 1), {1, 3},
               {-std::log(2.0), -std::log(2.0), -2000 - std::log(2.0)}, 1e-6);
  EXPECT_EQ(Softmax(Tensor::Zeros({2, 0}), 1).shape(), (Shape{2, 0}));
}

TEST(Softmax, HasTheGradientOfFiniteDifferences) {
  Generator generator(2);
  const Tensor x = Reals({4, 3}, DType::kF64, generator);
  const Tensor grad = Reals({4, 3}, DType::kF64, generator);
  for (const int64_t dim : {0, 1}) {
    ExpectSame(
        SoftmaxBackward(grad, Softmax(x, dim), dim),
        Differences(x, grad, [&](const Tensor& t) { return Softmax(t, dim); }),
        1e-8);
    ExpectSame(LogSoftmaxBackward(grad, LogSoftmax(x, dim), dim),
               Differences(x, grad,
                           [&](const Tensor& t) { return LogSoftmax(t, dim); }),
               1e-8);
  }
}

TEST(CrossEntropy, IsTheNllOfLogSoftmax) {
  Generator generator(3);
  for (const DType dtype : kFloats) {
    for (const Lie lie : kLies) {
      const Tensor x = Reals({20, 10}, dtype, generator, lie);
      const Tensor labels = Integers({20}, DType::kI64, 0, 9, generator, lie);
      const Tensor log_probs = LogSoftmax(x, 1);
      std::vector<double> each;
      for (int64_t i = 0; i < 20; ++i) {
        each.push_back(
            -At(log_probs, {i, static_cast<int64_t>(At(labels, {i}))}));
      }
      const double sum = std::accumulate(each.begin(), each.end(), 0.0);
      ExpectValues(CrossEntropy(x, labels, Reduction::kNone).loss, {20}, each,
                   1e-6);
      ExpectValues(CrossEntropy(x, labels, Reduction::kSum).loss, {}, {sum},
                   1e-5);
      ExpectValues(CrossEntropy(x, labels).loss, {}, {sum / 20}, 1e-5);
      ExpectValues(NllLoss(log_probs, labels), {}, {sum / 20}, 1e-5);
    }
  }
}

TEST(Losses, HaveTheGradientsOfFiniteDifferences) {
  Generator generator(4);
  const Tensor x = Reals({5, 4}, DType::kF64, generator);
  const Tensor labels = Integers({5}, DType::kI64, 0, 3, generator);
  const Tensor t = Uniform({5, 4}, 0, 1, generator, DType::kF64);
  for (const Reduction reduction : kReductions) {
    const bool is_each = reduction == Reduction::kNone;
    CrossEntropyOptions options;
    options.reduction = reduction;
    const Tensor row =
        Reals(is_each ? Shape{5} : Shape{}, DType::kF64, generator);
    const Tensor all =
        Reals(is_each ? Shape{5, 4} : Shape{}, DType::kF64, generator);
    ExpectSame(CrossEntropyBackward(row, LogSoftmax(x, 1), labels, options),
               Differences(x, row,
                           [&](const Tensor& p) {
                             return CrossEntropy(p, labels, reduction).loss;
                           }),
               1e-8);
    ExpectSame(NllLossBackward(row, labels, x.shape(), reduction),
               Differences(x, row,
                           [&](const Tensor& p) {
                             return NllLoss(p, labels, reduction);
                           }),
               1e-8);
    ExpectSame(BceWithLogitsBackward(all, x, t, reduction),
               Differences(x, all,
                           [&](const Tensor& p) {
                             return BceWithLogits(p, t, reduction);
                           }),
               1e-8);
    ExpectSame(
        MseLossBackward(all, x, t, reduction),
        Differences(x, all,
                    [&](const Tensor& p) { return MseLoss(p, t, reduction); }),
        1e-8);
  }
}

TEST(BceWithLogits, IsExactFarFromZero) {
  const auto x = Tensor::FromVector<float>({1000, -1000, 0});
  const auto t = Tensor::FromVector<float>({0, 0, 1});
  ExpectValues(BceWithLogits(x, t, Reduction::kNone), {3},
               {1000, 0, std::log(2.0)}, 1e-7);
}

TEST(Losses, OfNothingAreNanOrZero) {
  const Tensor x = Tensor::Zeros({0, 3});
  const Tensor labels = Tensor::Zeros({0}, DType::kI64);
  EXPECT_TRUE(std::isnan(CrossEntropy(x, labels).loss.item<float>()));
  EXPECT_EQ(CrossEntropy(x, labels, Reduction::kSum).loss.item<float>(), 0);
  EXPECT_EQ(CrossEntropyBackward(Tensor::Scalar(1.0f), x, labels, {}).shape(),
            (Shape{0, 3}));
}

TEST(Losses, ErrorNamesTheMismatch) {
  const Tensor x = Tensor::Zeros({2, 3});
  EXPECT_THAT(Complaint([&] {
                CrossEntropy(x, Tensor::FromVector<int64_t>({0, 3}));
              }),
              HasSubstr("target 3 is not one of 3 classes"));
  EXPECT_THAT(Complaint([&] {
                CrossEntropy(x, Tensor::FromVector<int64_t>({0, -1}));
              }),
              HasSubstr("target -1"));
  EXPECT_THAT(Complaint([&] { CrossEntropy(x, Tensor::Zeros({2})); }),
              HasSubstr("wanted [..., classes] and i64 [...]"));
  EXPECT_THAT(Complaint([&] { MseLoss(x, Tensor::Zeros({3})); }),
              HasSubstr("same shape and dtype"));
}

// --- Indexing.

TEST(IndexSelect, TakesSlicesInAnyLayoutAndDType) {
  Generator generator(5);
  for (const DType dtype : kAllDTypes) {
    for (const Lie lie : kLies) {
      const Tensor x = Integers({4, 5, 3}, dtype, 0, 9, generator, lie);
      for (int64_t dim = 0; dim < 3; ++dim) {
        const Tensor index =
            Integers({7}, DType::kI64, 0, x.size(dim) - 1, generator, lie);
        const Tensor found = IndexSelect(x, dim, index);
        for (int64_t i = 0; i < 7; ++i) {
          const auto from = static_cast<int64_t>(At(index, {i}));
          ExpectSame(found.Select(dim, i), x.Select(dim, from));
        }
      }
    }
  }
}

TEST(IndexAdd, IsTheGradientOfIndexSelect) {
  Generator generator(6);
  for (const Lie lie : kLies) {
    for (int64_t dim = 0; dim < 3; ++dim) {
      const Tensor y = Integers({4, 5, 3}, DType::kF32, 0, 9, generator, lie);
      const Tensor index =
          Integers({6}, DType::kI64, 0, y.size(dim) - 1, generator);
      Shape shape = y.shape();
      shape[dim] = 6;
      const Tensor src = Integers(shape, DType::kF32, 0, 9, generator, lie);
      const Tensor wanted = y.Clone();
      for (int64_t i = 0; i < 6; ++i) {
        Add_(wanted.Select(dim, static_cast<int64_t>(At(index, {i}))),
             src.Select(dim, i));
      }
      IndexAdd_(y, dim, index, src);
      ExpectSame(y, wanted);
    }
  }
}

TEST(Gather, PicksAndScatterAddPutsBack) {
  Generator generator(7);
  for (const Lie lie : kLies) {
    for (int64_t dim = 0; dim < 2; ++dim) {
      const Tensor x = Integers({4, 5}, DType::kI64, 0, 99, generator, lie);
      const Tensor index =
          Integers({3, 4}, DType::kI64, 0, x.size(dim) - 1, generator, lie);
      const Tensor found = Gather(x, dim, index);
      const Tensor y = Integers({4, 5}, DType::kI64, 0, 9, generator, lie);
      const Tensor wanted = y.Clone();
      ForEachIndex(index.shape(), [&](const Shape& at) {
        Shape place = at;
        place[dim] = static_cast<int64_t>(At(index, at));
        EXPECT_EQ(At(found, at), At(x, place));
        wanted.data<int64_t>()[place[0] * 5 + place[1]] +=
            static_cast<int64_t>(At(found, at));
      });
      ScatterAdd_(y, dim, index, found);
      ExpectSame(y, wanted);
    }
  }
}

TEST(Concat, IsUndoneBySlice) {
  Generator generator(8);
  for (const int64_t dim : {0, 1, -1}) {
    std::vector<Tensor> parts;
    for (const int64_t size : {2, 0, 3}) {
      Shape shape = {4, 5, 6};
      shape[WrapDim(dim, 3, "test")] = size;
      parts.push_back(
          Integers(shape, DType::kF32, 0, 9, generator, Lie::kTransposed));
    }
    const Tensor whole = Concat(parts, dim);
    ASSERT_EQ(whole.size(dim), 5);
    ExpectSame(whole.Slice(dim, 0, 2), parts[0]);
    ExpectSame(whole.Slice(dim, 2, 5), parts[2]);
  }
  const auto a = Tensor::FromVector<int64_t>({1, 2});
  ExpectValues(Stack({a, a}, 1), {2, 2}, {1, 1, 2, 2}, 0);
}

TEST(OneHot, SetsOneOfEachRow) {
  ExpectValues(OneHot(Tensor::FromVector<int64_t>({2, 0}), 3), {2, 3},
               {0, 0, 1, 1, 0, 0}, 0);
}

TEST(Indexing, ErrorNamesTheMismatch) {
  const Tensor x = Tensor::Zeros({2, 3});
  const auto out = Tensor::FromVector<int64_t>({0, 3});
  EXPECT_THAT(Complaint([&] { IndexSelect(x, 1, out); }),
              HasSubstr("index 3 is outside of [0, 3)"));
  EXPECT_THAT(Complaint([&] { OneHot(out, 3); }), HasSubstr("index 3"));
  EXPECT_THAT(Complaint([&] { Gather(x, 1, out); }), HasSubstr("index is"));
  EXPECT_THAT(Complaint([&] { Concat({}, 0); }), HasSubstr("no parts"));
  EXPECT_THAT(Complaint([&] { Stack({}, 0); }), HasSubstr("no parts"));
  EXPECT_THAT(Complaint([&] {
                Concat({x, Tensor::Zeros({2, 4})}, 0);
              }),
              HasSubstr("only dimension 0 may differ"));
}

// --- Embeddings.

TEST(Embedding, LooksRowsUpAndItsGradientIsSparse) {
  Generator generator(9);
  for (const DType dtype : kFloats) {
    const Tensor weight = Integers({10, 4}, dtype, -9, 9, generator);
    const Tensor indices = Integers({3, 5}, DType::kI64, 0, 9, generator);
    const Tensor found = Embedding(weight, indices);
    const Tensor grad = Integers({3, 5, 4}, dtype, -9, 9, generator);
    const Tensor dense = Tensor::Zeros({10, 4}, dtype);
    ForEachIndex({3, 5}, [&](const Shape& at) {
      const auto row = static_cast<int64_t>(At(indices, at));
      const auto pick = [&](const Tensor& t) {
        return t.Select(0, at[0]).Select(0, at[1]);
      };
      ExpectSame(pick(found), weight.Select(0, row));
      Add_(dense.Select(0, row), pick(grad));
    });
    const SparseRows sparse = EmbeddingBackward(grad, indices, 10);
    ExpectSame(ToDense(sparse), dense);

    const SparseRows sums = Coalesce(sparse);
    ExpectSame(ToDense(sums), dense);
    const std::vector<int64_t> rows = sums.indices.ToVector<int64_t>();
    for (size_t i = 1; i < rows.size(); ++i) EXPECT_LT(rows[i - 1], rows[i]);

    const Tensor stepped = weight.Clone();
    AddRows_(stepped, -2, sparse);
    ExpectSame(stepped, Add(weight, Mul(dense, -2)));
  }
}

TEST(EmbeddingBag, SumsAndAveragesBags) {
  const auto weight =
      Tensor::FromVector<double>({1, 10, 2, 20, 3, 30, 4, 40}, {4, 2});
  const auto indices = Tensor::FromVector<int64_t>({0, 3, 3, 1});
  const auto offsets = Tensor::FromVector<int64_t>({0, 2, 2});
  ExpectValues(EmbeddingBag(weight, indices, offsets, BagMode::kSum), {3, 2},
               {5, 50, 0, 0, 6, 60}, 0);
  ExpectValues(EmbeddingBag(weight, indices, offsets, BagMode::kMean), {3, 2},
               {2.5, 25, 0, 0, 3, 30}, 0);
  const auto scales = Tensor::FromVector<double>({2, 1, 0, -1});
  ExpectValues(EmbeddingBag(weight, indices, offsets, BagMode::kSum, scales),
               {3, 2}, {6, 60, 0, 0, -2, -20}, 0);
}

TEST(EmbeddingBag, HasTheGradientsOfFiniteDifferences) {
  Generator generator(10);
  const Tensor weight = Reals({6, 3}, DType::kF64, generator);
  const Tensor indices = Integers({9}, DType::kI64, 0, 5, generator);
  const auto offsets = Tensor::FromVector<int64_t>({0, 4, 4, 8});
  const Tensor scales = Reals({9}, DType::kF64, generator);
  const Tensor grad = Reals({4, 3}, DType::kF64, generator);
  for (const BagMode mode : {BagMode::kSum, BagMode::kMean}) {
    const Tensor s = mode == BagMode::kSum ? scales : Tensor();
    ExpectSame(
        ToDense(EmbeddingBagBackward(grad, indices, offsets, mode, 6, s)),
        Differences(weight, grad,
                    [&](const Tensor& w) {
                      return EmbeddingBag(w, indices, offsets, mode, s);
                    }),
        1e-8);
  }
  ExpectSame(EmbeddingBagBackwardScales(grad, weight, indices, offsets),
             Differences(scales, grad,
                         [&](const Tensor& s) {
                           return EmbeddingBag(weight, indices, offsets,
                                               BagMode::kSum, s);
                         }),
             1e-8);
}

TEST(EmbeddingBag, OfNothingIsNothing) {
  const Tensor weight = Tensor::Zeros({4, 2});
  const Tensor none = Tensor::Zeros({0}, DType::kI64);
  EXPECT_EQ(EmbeddingBag(weight, none, none, BagMode::kSum).shape(),
            (Shape{0, 2}));
  ExpectValues(EmbeddingBag(weight, none, Tensor::Zeros({1}, DType::kI64),
                            BagMode::kMean),
               {1, 2}, {0, 0}, 0);
  const SparseRows sparse = {none, Tensor::Zeros({0, 2}), 4};
  EXPECT_EQ(Coalesce(sparse).values.shape(), (Shape{0, 2}));
}

TEST(Embeddings, ErrorNamesTheMismatch) {
  const Tensor weight = Tensor::Zeros({4, 2});
  const auto four = Tensor::FromVector<int64_t>({4});
  const auto zero = Tensor::FromVector<int64_t>({0});
  EXPECT_THAT(Complaint([&] { Embedding(weight, four); }),
              HasSubstr("index 4 is outside of [0, 4)"));
  EXPECT_THAT(
      Complaint([&] { EmbeddingBag(weight, four, zero, BagMode::kSum); }),
      HasSubstr("index 4"));
  for (const std::vector<int64_t>& bad :
       {std::vector<int64_t>{1}, {0, 2}, {0, 1, 0}, {0, -1}}) {
    EXPECT_THAT(Complaint([&] {
                  EmbeddingBag(weight, zero, Tensor::FromVector(bad),
                               BagMode::kSum);
                }),
                HasSubstr("offset"));
  }
  EXPECT_THAT(Complaint([&] {
                Coalesce({four, Tensor::Zeros({1, 2}), 4});
              }),
              HasSubstr("index 4"));
}

}  // namespace
}  // namespace weft
