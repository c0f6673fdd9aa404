// The loops under the elementwise operations: one function of one or two
// elements, over whole tensors, where they lie.
//
// A device gets the operands in the order of the arguments, then the result; in
// place, what is written comes first.

#ifndef WEFT_TENSOR_OPS_ELEMENTWISE_LOOP_H_
#define WEFT_TENSOR_OPS_ELEMENTWISE_LOOP_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "weft/base/error.h"
#include "weft/tensor/on_device.h"
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
WEFT_VECTORIZE static void UnaryRun(const T* in, int64_t in_stride, R* out,
                                    int64_t out_stride, int64_t n, Op op) {
  if (in_stride == 1 && out_stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = op(in[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i * out_stride] = op(in[i * in_stride]);
}

// A stride of 0 is a single element against many.
template <typename R, typename T, typename U, typename Op>
WEFT_VECTORIZE static void BinaryRun(const T* a, int64_t a_stride, const U* b,
                                     int64_t b_stride, R* out,
                                     int64_t out_stride, int64_t n, Op op) {
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

// op(T) -> R of each element. REQUIRES: x holds T.
template <typename R, typename T, typename Op>
Tensor MapUnary(const Operation& operation, const Tensor& x, Op op) {
  const Tensor result = Tensor::Empty(x.shape(), DTypeOf<R>, x.device());
  OnDevice(
      operation,
      [op](const Tensor& x, const Tensor& y) {
        const T* const in = x.data<T>();
        R* const out = y.data<R>();
        if (x.is_contiguous()) {
          UnaryRun(in, 1, out, 1, x.numel(), op);
          return;
        }
        const StridedLoop<2> loop(x.shape(), {LayoutOf(x), LayoutOf(y)});
        loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
          UnaryRun(in + at[0], strides[0], out + at[1], strides[1], n, op);
        });
      },
      x, result);
  return result;
}

// op(T, U) -> R of each pair, broadcast. REQUIRES: a holds T, b U.
template <typename R, typename T, typename U, typename Op>
Tensor MapBinary(const Operation& operation, const Tensor& a, const Tensor& b,
                 Op op) {
  CheckSameDevice(a, b, operation.name);
  const bool is_flat =
      a.is_contiguous() && b.is_contiguous() && a.shape() == b.shape();
  const Tensor result =
      is_flat
          ? Tensor::Empty(a.shape(), DTypeOf<R>, a.device())
          : Tensor::Empty(BroadcastShape(a.shape(), b.shape(), operation.name),
                          DTypeOf<R>, a.device());
  OnDevice(
      operation,
      [op, is_flat](const Tensor& a, const Tensor& b, const Tensor& y) {
        const T* const lhs = a.data<T>();
        const U* const rhs = b.data<U>();
        R* const out = y.data<R>();
        if (is_flat) {
          BinaryRun(lhs, 1, rhs, 1, out, 1, a.numel(), op);
          return;
        }
        const StridedLoop<3> loop(y.shape(),
                                  {LayoutOf(a), LayoutOf(b), LayoutOf(y)});
        loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
          BinaryRun(lhs + at[0], strides[0], rhs + at[1], strides[1],
                    out + at[2], strides[2], n, op);
        });
      },
      a, b, result);
  return result;
}

// op(T, T) -> R of each element and one value.
template <typename R, typename T, typename Op>
Tensor MapWithValue(const Operation& operation, const Tensor& x, T value,
                    Op op) {
  return MapUnary<R, T>(operation, x,
                        [value, op](T element) { return op(element, value); });
}

// y = op(y, x); x broadcasts to y. REQUIRES: both hold T.
template <typename T, typename Op>
void UpdateBinary(const Operation& operation, const Tensor& y, const Tensor& x,
                  Op op) {
  CheckSameDevice(y, x, operation.name);
  const bool is_flat = y.is_contiguous() && x.is_contiguous() &&
                       y.shape() == x.shape() && !MayOverlap(x, y);
  const auto run = [op, is_flat](const Tensor& y, const Tensor& x) {
    T* const out = y.data<T>();
    const T* const in = x.data<T>();
    if (is_flat) {
      BinaryRun(out, 1, in, 1, out, 1, y.numel(), op);
      return;
    }
    const StridedLoop<2> loop(y.shape(), {LayoutOf(y), LayoutOf(x)});
    loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
      T* const begin = out + at[0];
      BinaryRun(begin, strides[0], in + at[1], strides[1], begin, strides[0], n,
                op);
    });
  };
  if (is_flat) {
    OnDevice(operation, run, y, x);
  } else {
    CheckWritable(y, operation.name);
    CheckShapeKept(y, BroadcastShape(y.shape(), x.shape(), operation.name), x,
                   operation.name);
    OnDevice(operation, run, y, Unaliased(x, y));
  }
  y.BumpVersion();
}

// y = op(y). REQUIRES: y holds T.
template <typename T, typename Op>
void UpdateUnary(const Operation& operation, const Tensor& y,
                 absl::string_view where, Op op) {
  CheckWritable(y, where);
  OnDevice(
      operation,
      [op](const Tensor& y) {
        T* const out = y.data<T>();
        const StridedLoop<1> loop(y.shape(), {LayoutOf(y)});
        loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
          UnaryRun(out + at[0], strides[0], out + at[0], strides[0], n, op);
        });
      },
      y);
  y.BumpVersion();
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_ELEMENTWISE_LOOP_H_
