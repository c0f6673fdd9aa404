// The loops under the elementwise operations: one function of one or two
// elements, over whole tensors.

#ifndef WEFT_TENSOR_OPS_ELEMENTWISE_LOOP_H_
#define WEFT_TENSOR_OPS_ELEMENTWISE_LOOP_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "weft/base/error.h"
#include "weft/tensor/overlap.h"
#include "weft/tensor/strided_loop.h"
#include "weft/tensor/tensor.h"
#include "weft/tensor/vectorize.h"

namespace weft::internal {

inline void CheckSameDType(const Tensor& a, const Tensor& b,
                           absl::string_view where) {
  if (a.dtype() != b.dtype()) {
    ThrowInvalidArgument(where, ": lhs is ", a.Describe(), ", rhs is ",
                         b.Describe(), "; dtypes differ");
  }
}

inline void CheckShapeKept(const Tensor& y, const Shape& broadcast,
                           const Tensor& x, absl::string_view where) {
  if (broadcast != y.shape()) {
    ThrowInvalidArgument(where, ": ", ShapeText(x.shape()),
                         " does not expand to ", ShapeText(y.shape()),
                         ", which is written to");
  }
}

template <typename R, typename T, typename Op>
WEFT_VECTORIZE void UnaryRun(const T* in, int64_t in_stride, R* out,
                             int64_t out_stride, int64_t n, Op op) {
  if (in_stride == 1 && out_stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = op(in[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i * out_stride] = op(in[i * in_stride]);
}

// A stride of 0 is a single element against many.
template <typename R, typename T, typename U, typename Op>
WEFT_VECTORIZE void BinaryRun(const T* a, int64_t a_stride, const U* b,
                              int64_t b_stride, R* out, int64_t out_stride,
                              int64_t n, Op op) {
  if (out_stride == 1 && a_stride == 1 && b_stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = op(a[i], b[i]);
  } else if (out_stride == 1 && a_stride == 1 && b_stride == 0) {
    const U value = *b;
    for (int64_t i = 0; i < n; ++i) out[i] = op(a[i], value);
  } else if (out_stride == 1 && a_stride == 0 && b_stride == 1) {
    const T value = *a;
    for (int64_t i = 0; i < n; ++i) out[i] = op(value, b[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      out[i * out_stride] = op(a[i * a_stride], b[i * b_stride]);
    }
  }
}

// op(T) -> R of each element.
template <typename R, typename T, typename Op>
Tensor MapUnary(const Tensor& x, Op op) {
  const Tensor result = Tensor::Empty(x.shape(), DTypeOf<R>);
  const T* const in = x.data<T>();
  R* const out = result.data<R>();
  if (x.is_contiguous()) {
    UnaryRun(in, 1, out, 1, x.numel(), op);
    return result;
  }
  const StridedLoop<2> loop(x.shape(), {LayoutOf(x), LayoutOf(result)});
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
    UnaryRun(in + at[0], strides[0], out + at[1], strides[1], n, op);
  });
  return result;
}

// op(T, U) -> R of each pair, broadcast.
template <typename R, typename T, typename U, typename Op>
Tensor MapBinary(const Tensor& a, const Tensor& b, absl::string_view where,
                 Op op) {
  const T* const lhs = a.data<T>();
  const U* const rhs = b.data<U>();
  if (a.is_contiguous() && b.is_contiguous() && a.shape() == b.shape()) {
    const Tensor result = Tensor::Empty(a.shape(), DTypeOf<R>);
    BinaryRun(lhs, 1, rhs, 1, result.data<R>(), 1, a.numel(), op);
    return result;
  }
  const Tensor result =
      Tensor::Empty(BroadcastShape(a.shape(), b.shape(), where), DTypeOf<R>);
  R* const out = result.data<R>();
  const StridedLoop<3> loop(result.shape(),
                            {LayoutOf(a), LayoutOf(b), LayoutOf(result)});
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
    BinaryRun(lhs + at[0], strides[0], rhs + at[1], strides[1], out + at[2],
              strides[2], n, op);
  });
  return result;
}

// op(T, T) -> R of each element and one value.
template <typename R, typename T, typename Op>
Tensor MapWithValue(const Tensor& x, T value, Op op) {
  return MapUnary<R, T>(x,
                        [value, op](T element) { return op(element, value); });
}

// y = op(y, x); x broadcasts to y.
template <typename T, typename Op>
void UpdateBinary(const Tensor& y, const Tensor& x, absl::string_view where,
                  Op op) {
  T* const out = y.data<T>();
  if (y.is_contiguous() && x.is_contiguous() && y.shape() == x.shape() &&
      !MayOverlap(x, y)) {
    BinaryRun(out, 1, x.data<T>(), 1, out, 1, y.numel(), op);
  } else {
    CheckWritable(y, where);
    CheckShapeKept(y, BroadcastShape(y.shape(), x.shape(), where), x, where);
    const Tensor source = Unaliased(x, y);
    const T* const in = source.data<T>();
    const StridedLoop<2> loop(y.shape(), {LayoutOf(y), LayoutOf(source)});
    loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
      T* const begin = out + at[0];
      BinaryRun(begin, strides[0], in + at[1], strides[1], begin, strides[0], n,
                op);
    });
  }
  y.BumpVersion();
}

// y = op(y).
template <typename T, typename Op>
void UpdateUnary(const Tensor& y, absl::string_view where, Op op) {
  CheckWritable(y, where);
  T* const out = y.data<T>();
  const StridedLoop<1> loop(y.shape(), {LayoutOf(y)});
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
    UnaryRun(out + at[0], strides[0], out + at[0], strides[0], n, op);
  });
  y.BumpVersion();
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_ELEMENTWISE_LOOP_H_
