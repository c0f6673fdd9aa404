// Elements and rows chosen by an index, and added up by one. An index that is
// out of range makes the device fail.
//
// Sums have the CPU's order, and so its bits: indices are sorted, and all that
// goes to one element is added by one thread.
//
// Executor: see rows.h. Each operation is a struct named as it, with
//   template <typename Executor>
//   static const char* Run(const Call& call, Executor& executor);

#ifndef WEFT_TENSOR_CUDA_INDEXING_H_
#define WEFT_TENSOR_CUDA_INDEXING_H_

#include "weft/tensor/cuda/copy.h"
#include "weft/tensor/cuda/index.h"
#include "weft/tensor/cuda/rows.h"
#include "weft/tensor/cuda/sorted_keys.h"

namespace weft::internal::cuda {

WEFT_HOST_DEVICE inline int64_t CheckedIndex(int64_t index, int64_t limit) {
  if (index < 0 || index >= limit) WEFT_TRAP();
  return index;
}

// Contiguous elements as [outer, n, inner].
struct Around {
  int64_t outer;
  int64_t n;
  int64_t inner;

  struct Place {
    int64_t outer;
    int64_t middle;
    int64_t inner;
  };
  int64_t count() const { return outer * n * inner; }
  WEFT_HOST_DEVICE Place At(int64_t i) const {
    if (outer * n * inner <= INT64_C(0xFFFFFFFF)) {
      return Split(static_cast<uint32_t>(i));
    }
    return Split(static_cast<uint64_t>(i));
  }

 private:
  template <typename U>
  WEFT_HOST_DEVICE Place Split(U i) const {
    const U row = i / static_cast<U>(inner);
    const U first = row / static_cast<U>(n);
    return {static_cast<int64_t>(first),
            static_cast<int64_t>(row - first * static_cast<U>(n)),
            static_cast<int64_t>(i - row * static_cast<U>(inner))};
  }
};

inline Around AroundDim(const Operand& x, int d) {
  Around around = {1, x.sizes[d], 1};
  for (int i = 0; i < d; ++i) around.outer *= x.sizes[i];
  for (int i = d + 1; i < x.dims; ++i) around.inner *= x.sizes[i];
  return around;
}

inline bool AreContiguous(const Call& call) {
  for (int i = 0; i < call.count; ++i) {
    if (!call.operands[i].is_contiguous) return false;
  }
  return true;
}

template <typename T>
struct IndexSelectBody {
  Around around;  // of the result
  int64_t size;   // of x along the dimension
  const T* in;
  const int64_t* index;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Around::Place at = around.At(i);
    const int64_t row = CheckedIndex(index[at.middle], size);
    out[i] = in[(at.outer * size + row) * around.inner + at.inner];
  }
};

// Operands: x, index, result; contiguous. Numbers: the dimension.
struct IndexSelect {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand& x = call.operands[0];
    const Operand& y = call.operands[2];
    const int d = static_cast<int>(call.numbers[0]);
    if (x.element != y.element) return kNoDType;
    VisitSize(x.element, [&](auto size) {
      using Bits = typename decltype(size)::Type;
      executor.ForEach(y.numel,
                       IndexSelectBody<Bits>{
                           AroundDim(y, d), x.sizes[d], x.data<Bits>(),
                           call.operands[1].data<int64_t>(), y.data<Bits>()});
    });
    return nullptr;
  }
};

// Where element i of an index lies, and what it points at along a dimension of
// another tensor.
struct Pointers {
  StridedIndex<3> places;  // of the index, of the pointed at, of the third
  const int64_t* index;
  int64_t size;  // of the pointed at along the dimension
  int64_t step;

  struct Place {
    int64_t pointed_at;
    int64_t third;
  };
  WEFT_HOST_DEVICE Place At(int64_t i) const {
    const Offsets<3> at = places.At(i);
    return {at[1] + CheckedIndex(index[at[0]], size) * step, at[2]};
  }
  // As a key of SortedKeys.
  WEFT_HOST_DEVICE int64_t operator()(int64_t i) const {
    return At(i).pointed_at;
  }
};

inline bool MakePointers(const Operand& index, const Operand& pointed_at,
                         const Operand& third, int d, Pointers* pointers) {
  Operand fixed = pointed_at;
  fixed.strides[d] = 0;
  pointers->index = index.data<int64_t>();
  pointers->size = pointed_at.sizes[d];
  pointers->step = pointed_at.strides[d];
  return MakeIndex<3>(index.dims, index.sizes,
                      {LayoutOf(index), LayoutOf(fixed), LayoutOf(third)},
                      &pointers->places);
}

template <typename T>
struct GatherBody {
  Pointers pointers;
  const T* in;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Pointers::Place at = pointers.At(i);
    out[at.third] = in[at.pointed_at];
  }
};

// Operands: x, index, result. Numbers: the dimension.
struct Gather {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    const Operand& x = call.operands[0];
    const Operand& index = call.operands[1];
    const Operand& y = call.operands[2];
    if (x.element != y.element) return kNoDType;
    Pointers pointers;
    if (!MakePointers(index, x, y, static_cast<int>(call.numbers[0]),
                      &pointers)) {
      return kTooManyDims;
    }
    VisitSize(x.element, [&](auto size) {
      using Bits = typename decltype(size)::Type;
      executor.ForEach(index.numel, GatherBody<Bits>{pointers, x.data<Bits>(),
                                                     y.data<Bits>()});
    });
    return nullptr;
  }
};

// y[key] += all `in` that go there.
template <typename T, typename PlaceOf>
struct AddSortedBody {
  int64_t n;
  SortedView sorted;
  PlaceOf place;  // of an element of `in`
  const T* in;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    if (!sorted.IsFirst(i)) return;
    const int64_t key = sorted.keys[i];
    T total = out[key];
    for (int64_t j = i; j < n && sorted.keys[j] == key; ++j) {
      total = AddOp()(total, in[place(sorted.from[j])]);
    }
    out[key] = total;
  }
};

struct ThirdPlace {
  StridedIndex<3> places;
  WEFT_HOST_DEVICE int64_t operator()(int64_t i) const {
    return places.At(i)[2];
  }
};

// Operands: y, index, src. Numbers: the dimension.
struct ScatterAdd {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    const Operand& y = call.operands[0];
    const Operand& index = call.operands[1];
    const Operand& src = call.operands[2];
    if (y.element != src.element) return kNoDType;
    Pointers pointers;
    if (!MakePointers(index, y, src, static_cast<int>(call.numbers[0]),
                      &pointers)) {
      return kTooManyDims;
    }
    return VisitNumber(y.element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      if (index.numel == 0) return nullptr;
      const SortedKeys<Executor> sorted(executor, index.numel, pointers);
      if (!sorted.ok()) return kNoMemory;
      executor.ForEach(index.numel,
                       AddSortedBody<T, ThirdPlace>{index.numel,
                                                    sorted.view(),
                                                    {pointers.places},
                                                    src.data<T>(),
                                                    y.data<T>()});
      return nullptr;
    });
  }
};

// An index of rows as keys.
struct RowKey {
  const int64_t* index;
  int64_t rows;
  WEFT_HOST_DEVICE int64_t operator()(int64_t i) const {
    return CheckedIndex(index[i], rows);
  }
};

// y[.., key, ..] += alpha times the parts of `in` that go there.
template <typename T>
struct AddPartsBody {
  Around around;  // of what is added
  int64_t size;   // of y along the dimension
  SortedView sorted;
  T alpha;
  const T* in;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Around::Place at = around.At(i);
    if (!sorted.IsFirst(at.middle)) return;
    const int64_t key = sorted.keys[at.middle];
    T& sum = out[(at.outer * size + key) * around.inner + at.inner];
    T total = sum;
    for (int64_t j = at.middle; j < around.n && sorted.keys[j] == key; ++j) {
      const int64_t from = at.outer * around.n + sorted.from[j];
      total =
          AddOp()(total, MulOp()(alpha, in[from * around.inner + at.inner]));
    }
    sum = total;
  }
};

// Along dimension d of contiguous tensors.
template <typename T, typename Executor>
const char* AddParts(const Operand& y, const Operand& index, const Operand& src,
                     int d, T alpha, Executor& executor) {
  if (src.numel == 0) return nullptr;
  const RowKey key = {index.data<int64_t>(), y.sizes[d]};
  const SortedKeys<Executor> sorted(executor, index.numel, key);
  if (!sorted.ok()) return kNoMemory;
  executor.ForEach(src.numel,
                   AddPartsBody<T>{AroundDim(src, d), y.sizes[d], sorted.view(),
                                   alpha, src.data<T>(), y.data<T>()});
  return nullptr;
}

// Operands: y, index, src; contiguous. Numbers: the dimension.
struct IndexAdd {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand* const x = call.operands;
    if (x[0].element != x[2].element) return kNoDType;
    return VisitNumber(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      return AddParts<T>(x[0], x[1], x[2], static_cast<int>(call.numbers[0]),
                         T{1}, executor);
    });
  }
};

// Operands: y [rows, dim], indices [n], values [n, dim]; contiguous. Numbers:
// what the values are multiplied by.
struct AddRows {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 3) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand* const x = call.operands;
    if (x[0].element != x[2].element) return kNoDType;
    return VisitReal(x[0].element, [&](auto type) -> const char* {
      using T = typename decltype(type)::Type;
      return AddParts<T>(x[0], x[1], x[2], 0, static_cast<T>(call.numbers[0]),
                         executor);
    });
  }
};

template <typename T>
struct OneHotBody {
  int64_t classes;
  const int64_t* index;
  T* out;
  T one;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    out[i * classes + CheckedIndex(index[i], classes)] = one;
  }
};

// Operands: index; the result, which is 0; contiguous. Numbers: the classes.
struct OneHot {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 2) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand& index = call.operands[0];
    const Operand& y = call.operands[1];
    VisitSize(y.element, [&](auto size) {
      using Bits = typename decltype(size)::Type;
      const Bits one = VisitElement(y.element, [&](auto type) {
        return BitsOf<Bits, typename decltype(type)::Type>(1.0);
      });
      executor.ForEach(
          index.numel,
          OneHotBody<Bits>{static_cast<int64_t>(call.numbers[0]),
                           index.data<int64_t>(), y.data<Bits>(), one});
    });
    return nullptr;
  }
};

template <typename T, bool kIsLower>
struct TriangleBody {
  Around around;  // [..., rows, columns]
  int64_t diagonal;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Around::Place at = around.At(i);
    const int64_t above = at.inner - at.middle - diagonal;
    if (kIsLower ? above > 0 : above < 0) out[i] = 0;
  }
};

// Operands: what is written to, contiguous. Numbers: the diagonal.
template <bool kIsLower>
struct Triangle {
  template <typename Executor>
  static const char* Run(const Call& call, Executor& executor) {
    if (call.count != 1) return kNoCount;
    if (!AreContiguous(call)) return kNotContiguous;
    const Operand& y = call.operands[0];
    VisitSize(y.element, [&](auto size) {
      using Bits = typename decltype(size)::Type;
      executor.ForEach(
          y.numel, TriangleBody<Bits, kIsLower>{
                       AroundDim(y, y.dims - 2),
                       static_cast<int64_t>(call.numbers[0]), y.data<Bits>()});
    });
    return nullptr;
  }
};
using Tril = Triangle<true>;
using Triu = Triangle<false>;

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_INDEXING_H_
