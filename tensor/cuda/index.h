// StridedIndex: where element i of several tensors of one shape lies, for
// kernels, of which each thread takes elements of its own. What StridedLoop is
// for the CPU.

#ifndef WEFT_TENSOR_CUDA_INDEX_H_
#define WEFT_TENSOR_CUDA_INDEX_H_

#include <cstdint>

#include "weft/tensor/cuda/call.h"
#include "weft/tensor/cuda/host_device.h"

namespace weft::internal::cuda {

// Dimensions that are left after those that go on from each other are joined.
inline constexpr int kMaxIndexDims = 8;

// How one operand lies in memory; broadcast to the shape of the index.
struct Layout {
  int dims;
  const int64_t* sizes;
  const int64_t* strides;
};

inline Layout LayoutOf(const Operand& x) {
  return {x.dims, x.sizes, x.strides};
}

template <int N>
struct Offsets {
  int64_t at[N];
  WEFT_HOST_DEVICE int64_t operator[](int k) const { return at[k]; }
};

// A plain value, which travels as an argument of a kernel.
template <int N>
struct StridedIndex {
  int64_t count = 1;  // of elements
  int dims = 0;
  int64_t sizes[kMaxIndexDims] = {};  // innermost first
  int64_t strides[kMaxIndexDims][N] = {};

  // Where element i, in row-major order, lies in each operand: elements from
  // the operand's first. REQUIRES: 0 <= i < count.
  WEFT_HOST_DEVICE Offsets<N> At(int64_t i) const {
    // Division of 32 bits takes a fraction of the time of one of 64.
    if (count <= INT64_C(0xFFFFFFFF)) {
      return Split(static_cast<uint32_t>(i));
    }
    return Split(static_cast<uint64_t>(i));
  }

  // Adds the next outer dimension, or lengthens the last one if for every
  // operand it goes on where that one ends. False if there are too many.
  bool Push(int64_t size, const int64_t (&step)[N]) {
    count *= size;
    if (size == 1) return true;
    if (dims > 0) {
      bool goes_on = true;
      for (int k = 0; k < N; ++k) {
        goes_on &= step[k] == strides[dims - 1][k] * sizes[dims - 1];
      }
      if (goes_on) {
        sizes[dims - 1] *= size;
        return true;
      }
    }
    if (dims == kMaxIndexDims) return false;
    sizes[dims] = size;
    for (int k = 0; k < N; ++k) strides[dims][k] = step[k];
    ++dims;
    return true;
  }

 private:
  template <typename U>
  WEFT_HOST_DEVICE Offsets<N> Split(U i) const {
    Offsets<N> result = {};
    for (int d = 0; d < dims; ++d) {
      U here = i;
      if (d + 1 < dims) {  // The outermost needs no division.
        const U size = static_cast<U>(sizes[d]);
        const U outer = i / size;
        here = i - outer * size;
        i = outer;
      }
      for (int k = 0; k < N; ++k) {
        result.at[k] += static_cast<int64_t>(here) * strides[d][k];
      }
    }
    return result;
  }
};

// The step of `layout` along dimension `from_end` of a shape that it broadcasts
// to.
inline int64_t StepOf(const Layout& layout, int from_end) {
  const int d = layout.dims - 1 - from_end;
  return d < 0 || layout.sizes[d] == 1 ? 0 : layout.strides[d];
}

// The index of a shape of `dims` sizes. False if more than kMaxIndexDims are
// left. REQUIRES: each layout broadcasts to the shape.
template <int N>
bool MakeIndex(int dims, const int64_t* sizes, const Layout (&layouts)[N],
               StridedIndex<N>* index) {
  *index = StridedIndex<N>();
  for (int from_end = 0; from_end < dims; ++from_end) {
    int64_t step[N];
    for (int k = 0; k < N; ++k) step[k] = StepOf(layouts[k], from_end);
    if (!index->Push(sizes[dims - 1 - from_end], step)) return false;
  }
  return true;
}

// What a fold over dimensions walks: the results, and what becomes one of them.
struct FoldIndex {
  StridedIndex<2> results;  // of x and of the result
  StridedIndex<1> terms;    // of x, from where a result's begin
};

// Makes the index that folds `x` into `kept`, which has as many dimensions, and
// a size of 1 where they are folded. False if more than kMaxIndexDims are left
// of either.
inline bool MakeFoldIndex(const Operand& x, const Operand& kept,
                          FoldIndex* index) {
  *index = FoldIndex();
  for (int d = x.dims - 1; d >= 0; --d) {
    const bool is_folded = kept.sizes[d] == 1;
    if (is_folded) {
      if (!index->terms.Push(x.sizes[d], {x.strides[d]})) return false;
    } else {
      if (!index->results.Push(x.sizes[d], {x.strides[d], kept.strides[d]})) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_INDEX_H_
