// Products of matrices as calls of a BLAS that knows column-major matrices.
//
// A row-major matrix is its transpose in column-major order, so that
//   out = a b   is   out^T = b^T a^T,
// and b comes first.

#ifndef WEFT_TENSOR_CUDA_PRODUCT_H_
#define WEFT_TENSOR_CUDA_PRODUCT_H_

#include <algorithm>
#include <cstdint>

#include "weft/tensor/cuda/call.h"
#include "weft/tensor/cuda/index.h"

namespace weft::internal::cuda {

// A column-major matrix as it is stored, before it is transposed.
struct Side {
  bool is_transposed = false;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t leading = 1;       // elements from a column to the next
  int64_t batch_stride = 0;  // from a matrix of the batch to the next
};

// `batches` times out = first second, column-major: [m, n] = [m, k] [k, n].
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batches = 1;
  Side first;   // of b
  Side second;  // of a
  Side out;
  // Where each of `calls` begins: (a, b, out) of element i * batches.
  int64_t calls = 1;
  StridedIndex<3> places;

  Offsets<3> Place(int64_t call) const { return places.At(call * batches); }
};

// `x`'s last two dimensions, row-major, as a column-major matrix. False if
// neither lies together.
inline bool SideOf(const Operand& x, bool swapped, Side* side) {
  const int rows_at = x.dims - (swapped ? 1 : 2);
  const int columns_at = x.dims - (swapped ? 2 : 1);
  const int64_t rows = x.sizes[rows_at];
  const int64_t columns = x.sizes[columns_at];
  const int64_t row = x.strides[rows_at];
  const int64_t column = x.strides[columns_at];
  if ((column == 1 || columns == 1) &&
      (rows == 1 || row >= std::max<int64_t>(columns, 1))) {
    side->is_transposed = false;
    side->rows = columns;
    side->columns = rows;
    side->leading = rows == 1 ? std::max<int64_t>(columns, 1) : row;
    return true;
  }
  if ((row == 1 || rows == 1) &&
      (columns == 1 || column >= std::max<int64_t>(rows, 1))) {
    side->is_transposed = true;
    side->rows = rows;
    side->columns = columns;
    side->leading = columns == 1 ? std::max<int64_t>(rows, 1) : column;
    return true;
  }
  return false;
}

// The dimensions before the last two.
inline Layout LeadOf(const Operand& x) {
  return {x.dims - 2, x.sizes, x.strides};
}

// out = a b, [..., m, n] = [..., m, k] [..., k, n], the leading dimensions of
// `a` and `b` broadcast to those of `out`; `b_is_swapped`: b is [..., n, k].
// Null, or what is lacking. `out` has whole rows. REQUIRES: it has elements.
inline const char* PlanProduct(const Operand& a, const Operand& b,
                               bool b_is_swapped, const Operand& out,
                               Product* product) {
  Product& p = *product;
  p = Product();
  p.m = out.sizes[out.dims - 1];
  p.n = out.sizes[out.dims - 2];
  p.k = a.sizes[a.dims - 1];
  if (!SideOf(a, false, &p.second) || !SideOf(b, b_is_swapped, &p.first) ||
      !SideOf(out, false, &p.out) || p.out.is_transposed) {
    return "it takes matrices whose rows or columns lie together; take "
           "Contiguous() of the operands";
  }
  if (!MakeIndex<3>(out.dims - 2, out.sizes,
                    {LeadOf(a), LeadOf(b), LeadOf(out)}, &p.places)) {
    return kTooManyDims;
  }
  if (p.places.dims > 0) {
    p.batches = p.places.sizes[0];
    p.second.batch_stride = p.places.strides[0][0];
    p.first.batch_stride = p.places.strides[0][1];
    p.out.batch_stride = p.places.strides[0][2];
  }
  p.calls = p.places.count / p.batches;
  // One tall product, where all matrices of `a` meet one of `b`.
  if (p.batches > 1 && p.first.batch_stride == 0 && !p.second.is_transposed &&
      p.second.batch_stride == p.n * p.second.leading &&
      p.out.batch_stride == p.n * p.out.leading) {
    p.n *= p.batches;
    p.second.columns = p.n;
    p.out.columns = p.n;
    // Places count matrices as before.
    StridedIndex<3> outer;
    outer.count = p.calls;
    outer.dims = p.places.dims - 1;
    for (int d = 0; d < outer.dims; ++d) {
      outer.sizes[d] = p.places.sizes[d + 1];
      for (int i = 0; i < 3; ++i) {
        outer.strides[d][i] = p.places.strides[d + 1][i];
      }
    }
    p.places = outer;
    p.batches = 1;
  }
  return nullptr;
}

// Whether all operands are of one real dtype.
inline bool AreProductElements(const Call& call) {
  const Element element = call.operands[0].element;
  for (int i = 1; i < call.count; ++i) {
    if (call.operands[i].element != element) return false;
  }
  return element == Element::kF32 || element == Element::kF64 ||
         element == Element::kF16 || element == Element::kBF16;
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_PRODUCT_H_
