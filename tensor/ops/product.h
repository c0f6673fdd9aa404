// Multiply: one product of matrices in memory, for f32, f64 and bf16.

#ifndef WEFT_TENSOR_OPS_PRODUCT_H_
#define WEFT_TENSOR_OPS_PRODUCT_H_

#include <cstdint>

#include "weft/tensor/half.h"

namespace weft::internal {

// Element (i, j) lies at first + i * row + j * column.
template <typename T>
struct Matrix {
  const T* first;
  int64_t row;
  int64_t column;

  Matrix Transposed() const { return {first, column, row}; }
};

// out [m, n] = a [m, k] * b [k, n]; the rows of `out` begin out_row apart and
// have no gaps.
template <typename T>
struct Product {
  int64_t m, n, k;
  Matrix<T> a, b;
  T* out;
  int64_t out_row;
  bool accumulates = false;  // adds to what is in `out`
  // [n], added to each row; null: none. Not together with `accumulates`.
  const T* bias = nullptr;
};

// Whether Multiply can read a matrix of these strides, or its transpose.
bool IsReadable(int64_t rows, int64_t columns, int64_t row, int64_t column);

// REQUIRES: IsReadable() of both operands, out_row >= n, and that `out`
// overlaps no operand. Throws Error kInternal if oneDNN fails.
void Multiply(const Product<float>& product);
void Multiply(const Product<double>& product);
// Sums in f32 and rounds once. Subnormal elements may count as 0. REQUIRES:
// MultipliesBFloat16().
void Multiply(const Product<BFloat16>& product);

// Whether this CPU has instructions for it (AVX512_BF16, AMX).
bool MultipliesBFloat16();

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_PRODUCT_H_
