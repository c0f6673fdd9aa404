// StridedLoop: walks the elements of several tensors of one shape together, in
// as few and as long inner runs as their strides allow.

#ifndef WEFT_TENSOR_STRIDED_LOOP_H_
#define WEFT_TENSOR_STRIDED_LOOP_H_

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "weft/tensor/shape.h"
#include "weft/tensor/tensor.h"

namespace weft::internal {

// How one operand lies in memory; broadcast to the loop's shape.
struct Layout {
  absl::Span<const int64_t> shape;
  absl::Span<const int64_t> strides;
};

inline Layout LayoutOf(const Tensor& tensor) {
  return {tensor.shape(), tensor.strides()};
}

template <int N>
class StridedLoop {
 public:
  using Offsets = std::array<int64_t, N>;

  // REQUIRES: each operand broadcasts to `shape`.
  StridedLoop(absl::Span<const int64_t> shape,
              const std::array<Layout, N>& operands) {
    sizes_[0] = 1;
    strides_[0].fill(0);
    for (size_t from_end = 0; from_end < shape.size(); ++from_end) {
      Push(shape[shape.size() - 1 - from_end], from_end, operands);
    }
  }

  // Calls run(offsets, strides, n) for each inner run, in row-major order: its
  // element i of operand k is offsets[k] + i * strides[k] elements from the
  // first. Not called for n = 0.
  template <typename Run>
  void ForEachRun(Run&& run) const {
    if (is_empty_) return;
    std::array<int64_t, kMaxDims> index;
    for (int d = 1; d < rank_; ++d) index[d] = 0;
    Offsets offsets{};
    for (;;) {
      run(offsets, strides_[0], sizes_[0]);
      int d = 1;
      for (; d < rank_; ++d) {
        for (int k = 0; k < N; ++k) offsets[k] += strides_[d][k];
        if (++index[d] < sizes_[d]) break;
        for (int k = 0; k < N; ++k) offsets[k] -= strides_[d][k] * sizes_[d];
        index[d] = 0;
      }
      if (d >= rank_) return;
    }
  }

 private:
  // Adds the next outer dimension, or lengthens the last one if for every
  // operand it goes on where that one ends.
  void Push(int64_t size, size_t from_end,
            const std::array<Layout, N>& operands) {
    if (size == 0) is_empty_ = true;
    if (size == 1) return;
    Offsets step;
    for (int k = 0; k < N; ++k) {
      const Layout& layout = operands[k];
      const size_t rank = layout.shape.size();
      const bool is_stretched =
          from_end >= rank || layout.shape[rank - 1 - from_end] == 1;
      step[k] = is_stretched ? 0 : layout.strides[rank - 1 - from_end];
    }
    const int last = rank_ - 1;
    if (rank_ == 1 && sizes_[0] == 1) {
      sizes_[0] = size;
      strides_[0] = step;
      return;
    }
    bool goes_on = true;
    for (int k = 0; k < N; ++k) {
      goes_on &= step[k] == strides_[last][k] * sizes_[last];
    }
    if (goes_on) {
      sizes_[last] *= size;
      return;
    }
    sizes_[rank_] = size;
    strides_[rank_] = step;
    ++rank_;
  }

  int rank_ = 1;
  bool is_empty_ = false;
  std::array<int64_t, kMaxDims + 1> sizes_;  // Innermost first.
  std::array<Offsets, kMaxDims + 1> strides_;
};

}  // namespace weft::internal

#endif  // WEFT_TENSOR_STRIDED_LOOP_H_
