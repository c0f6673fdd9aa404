// PlanProduct: what it asks of a BLAS gives, done by hand, what MatMul gives.

#include "weft/tensor/cuda/product.h"

#include <vector>

#include "gtest/gtest.h"
#include "weft/tensor/cuda_operands.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/matmul.h"
#include "weft/tensor/random.h"

namespace weft::internal::cuda {
namespace {

// Element (row, column) of a side that a BLAS has been told to transpose or
// not; fails the test for what no BLAS would take.
double At(const Side& side, const double* matrix, int64_t row, int64_t column) {
  if (side.is_transposed) std::swap(row, column);
  EXPECT_LT(row, side.rows);
  EXPECT_LT(column, side.columns);
  EXPECT_GE(side.leading, std::max<int64_t>(side.rows, 1));
  return matrix[column * side.leading + row];
}

void RunByHand(const Product& p, const double* a, const double* b,
               double* out) {
  for (int64_t call = 0; call < p.calls; ++call) {
    const Offsets<3> place = p.Place(call);
    for (int64_t batch = 0; batch < p.batches; ++batch) {
      const double* const first = b + place[1] + batch * p.first.batch_stride;
      const double* const second = a + place[0] + batch * p.second.batch_stride;
      double* const result = out + place[2] + batch * p.out.batch_stride;
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < p.k; ++k) {
            sum += At(p.first, first, i, k) * At(p.second, second, k, j);
          }
          ASSERT_LT(i, p.out.rows);
          ASSERT_LT(j, p.out.columns);
          result[j * p.out.leading + i] = sum;
        }
      }
    }
  }
}

Tensor Integers(const Shape& shape, Generator& generator) {
  return Normal(shape, 0, 5, generator, DType::kF64)
      .To(DType::kI64)
      .To(DType::kF64);
}

// The product's plan.
Product Compare(const Tensor& a, const Tensor& b, bool b_is_swapped = false) {
  const int64_t last = b.dim() - 1;
  const Tensor wanted =
      MatMul(a, b_is_swapped ? b.Transpose(last - 1, last) : b);
  const Tensor found = Tensor::Full(wanted.shape(), -77, DType::kF64);
  Product product;
  const char* const lack = PlanProduct(OperandOf(a), OperandOf(b), b_is_swapped,
                                       OperandOf(found), &product);
  EXPECT_EQ(lack, nullptr) << lack;
  RunByHand(product, a.data<double>(), b.data<double>(), found.data<double>());
  EXPECT_EQ(found.ToVector<double>(), wanted.ToVector<double>())
      << a.Describe() << b.Describe();
  return product;
}

TEST(PlanProduct, MultipliesMatricesHoweverTheyLie) {
  Generator generator(1);
  for (const int64_t m : {1, 2, 5}) {
    for (const int64_t n : {1, 3, 4}) {
      for (const int64_t k : {1, 2, 6}) {
        const auto lies = [&](int64_t rows, int64_t columns) {
          return std::vector<Tensor>{
              Integers({rows, columns}, generator),
              Integers({columns, rows}, generator).Transpose(0, 1),
              Integers({rows, columns + 2}, generator).Slice(1, 1, 1 + columns),
              Integers({columns + 1, rows + 3}, generator)
                  .Slice(0, 1, 1 + columns)
                  .Slice(1, 2, 2 + rows)
                  .Transpose(0, 1)};
        };
        for (const Tensor& a : lies(m, k)) {
          for (const Tensor& b : lies(k, n)) Compare(a, b);
          for (const Tensor& b : lies(n, k)) Compare(a, b, true);
        }
      }
    }
  }
}

TEST(PlanProduct, BroadcastsBatches) {
  Generator generator(2);
  const Tensor b = Integers({4, 2}, generator);
  // One tall product.
  const Product tall = Compare(Integers({6, 3, 4}, generator), b);
  EXPECT_EQ(tall.batches * tall.calls, 1);
  EXPECT_EQ(tall.n, 18);
  // A batch with one stride.
  const Product batch =
      Compare(Integers({6, 3, 4}, generator), Integers({6, 4, 2}, generator));
  EXPECT_EQ(batch.batches, 6);
  EXPECT_EQ(batch.calls, 1);
  // Both batches broadcast, and transposed matrices in them.
  Compare(Integers({2, 1, 3, 4}, generator), Integers({5, 4, 2}, generator));
  Compare(Integers({2, 5, 4, 3}, generator).Transpose(2, 3),
          Integers({5, 2, 4}, generator).Transpose(1, 2));
  Compare(Integers({5, 2, 3, 4}, generator).Transpose(0, 1),
          Integers({1, 5, 4, 2}, generator));
  Compare(Integers({2, 5, 3, 4}, generator), b);
  Compare(Integers({5, 2, 3, 4}, generator).Transpose(0, 1), b);
}

TEST(PlanProduct, SaysThatItLacksMatricesOfTwoStrides) {
  const Tensor a = Tensor::Zeros({6, 8, 2}, DType::kF64).Select(2, 0);
  const Tensor out = Tensor::Zeros({6, 6}, DType::kF64);
  Product product;
  EXPECT_NE(
      PlanProduct(OperandOf(a), OperandOf(a), true, OperandOf(out), &product),
      nullptr);
}

}  // namespace
}  // namespace weft::internal::cuda
