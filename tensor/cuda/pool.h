// Pooling of planes [n, channels, h, w], and its gradients. They compute what
// tensor/ops/pool.cc does, with its order of sums.
//
// Executor: see rows.h. Numbers: kernel, stride and padding, [h, w] each.

#ifndef WEFT_TENSOR_CUDA_POOL_H_
#define WEFT_TENSOR_CUDA_POOL_H_

#include "weft/tensor/cuda/indexing.h"

namespace weft::internal::cuda {

// Along one dimension: window i covers [i * stride - padding, + kernel).
struct Windows {
  int64_t size;
  int64_t count;
  int64_t kernel;
  int64_t stride;
  int64_t padding;

  WEFT_HOST_DEVICE int64_t Begin(int64_t i) const {
    const int64_t begin = i * stride - padding;
    return begin < 0 ? 0 : begin;
  }
  WEFT_HOST_DEVICE int64_t End(int64_t i) const {
    const int64_t end = i * stride - padding + kernel;
    return end < size ? end : size;
  }
  // The windows that cover `at` are [FirstOver(at), EndOver(at)).
  WEFT_HOST_DEVICE int64_t FirstOver(int64_t at) const {
    const int64_t past = at + padding - kernel;
    return past < 0 ? 0 : past / stride + 1;
  }
  WEFT_HOST_DEVICE int64_t EndOver(int64_t at) const {
    const int64_t end = (at + padding) / stride + 1;
    return end < count ? end : count;
  }
};

struct PoolGeometry {
  Windows h;
  Windows w;
  WEFT_HOST_DEVICE int64_t in_plane() const { return h.size * w.size; }
  WEFT_HOST_DEVICE int64_t out_plane() const { return h.count * w.count; }
};

inline PoolGeometry PoolGeometryOf(const Call& call, const Operand& in,
                                   const Operand& out) {
  const auto number = [&](int i) {
    return static_cast<int64_t>(call.numbers[i]);
  };
  return {{in.sizes[2], out.sizes[2], number(0), number(2), number(4)},
          {in.sizes[3], out.sizes[3], number(1), number(3), number(5)}};
}

template <typename T>
struct MaxPoolBody {
  PoolGeometry g;
  const T* in;
  T* values;
  int64_t* indices;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t plane = i / g.out_plane();
    const int64_t y = i % g.out_plane() / g.w.count;
    const int64_t x = i % g.w.count;
    const T* const from = in + plane * g.in_plane();
    int64_t best = g.h.Begin(y) * g.w.size + g.w.Begin(x);
    T value = from[best];
    for (int64_t h = g.h.Begin(y); h < g.h.End(y); ++h) {
      for (int64_t w = g.w.Begin(x); w < g.w.End(x); ++w) {
        const T next = from[h * g.w.size + w];
        // The first NaN is taken, and stays.
        if (next > value || (next != next && value == value)) {
          best = h * g.w.size + w;
          value = next;
        }
      }
    }
    values[i] = value;
    indices[i] = best;
  }
};

// Operands: x, values, indices; contiguous.
struct MaxPool2d {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand* const x = call.operands;
    if (x[1].element != x[0].element) return kNoDType;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      executor.ForEach(
          x[1].numel,
          MaxPoolBody<T>{PoolGeometryOf(call, x[0], x[1]), x[0].data<T>(),
                         x[1].data<T>(), x[2].data<int64_t>()});
      return nullptr;
    });
  }
};

// Where the gradient of element i of the pooled planes goes.
struct TakenPlace {
  int64_t in_plane;
  int64_t out_plane;
  const int64_t* indices;
  WEFT_HOST_DEVICE int64_t operator()(int64_t i) const {
    return i / out_plane * in_plane + CheckedIndex(indices[i], in_plane);
  }
};

struct OwnPlace {
  WEFT_HOST_DEVICE int64_t operator()(int64_t i) const { return i; }
};

// Operands: grad, indices; the result, which is 0; contiguous.
struct MaxPool2dBackward {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand* const x = call.operands;
    if (x[2].element != x[0].element) return kNoDType;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      if (x[0].numel == 0) return nullptr;
      const TakenPlace place = {x[2].sizes[2] * x[2].sizes[3],
                                x[0].sizes[2] * x[0].sizes[3],
                                x[1].data<int64_t>()};
      const SortedKeys<Executor> sorted(executor, x[0].numel, place);
      if (!sorted.ok()) return kNoMemory;
      executor.ForEach(x[0].numel, AddSortedBody<T, OwnPlace>{
                                       x[0].numel, sorted.view(), OwnPlace{},
                                       x[0].data<T>(), x[2].data<T>()});
      return nullptr;
    });
  }
};

template <typename T>
struct AvgPoolBody {
  PoolGeometry g;
  T scale;
  const T* in;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t plane = i / g.out_plane();
    const int64_t y = i % g.out_plane() / g.w.count;
    const int64_t x = i % g.w.count;
    const T* const from = in + plane * g.in_plane();
    T sum = 0;
    for (int64_t h = g.h.Begin(y); h < g.h.End(y); ++h) {
      for (int64_t w = g.w.Begin(x); w < g.w.End(x); ++w) {
        sum += from[h * g.w.size + w];
      }
    }
    out[i] = sum * scale;
  }
};

// Each element of x takes from the windows that cover it, in their order.
template <typename T>
struct AvgPoolBackwardBody {
  PoolGeometry g;
  T scale;
  const T* grad;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t plane = i / g.in_plane();
    const int64_t h = i % g.in_plane() / g.w.size;
    const int64_t w = i % g.w.size;
    const T* const from = grad + plane * g.out_plane();
    T sum = 0;
    for (int64_t y = g.h.FirstOver(h); y < g.h.EndOver(h); ++y) {
      for (int64_t x = g.w.FirstOver(w); x < g.w.EndOver(w); ++x) {
        sum += from[y * g.w.count + x] * scale;
      }
    }
    out[i] = sum;
  }
};

// Operands: x, result; of the backward grad, result; contiguous.
template <bool kIsBackward>
struct AvgPool {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (const char* lack = CheckLines(call, 2)) return lack;
    const Operand& x = call.operands[0];
    const Operand& y = call.operands[1];
    const PoolGeometry g =
        kIsBackward ? PoolGeometryOf(call, y, x) : PoolGeometryOf(call, x, y);
    return VisitReal(x.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      const T scale = T(1) / static_cast<T>(g.h.kernel * g.w.kernel);
      if constexpr (kIsBackward) {
        executor.ForEach(y.numel, AvgPoolBackwardBody<T>{g, scale, x.data<T>(),
                                                         y.data<T>()});
      } else {
        executor.ForEach(y.numel,
                         AvgPoolBody<T>{g, scale, x.data<T>(), y.data<T>()});
      }
      return nullptr;
    });
  }
};
using AvgPool2d = AvgPool<false>;
using AvgPool2dBackward = AvgPool<true>;

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_POOL_H_
