// Fill, Copy and Where: elements that are moved and cast, not computed with.
//
// A launcher is a template over Executor: CUDA's (on_stream.h) launches its
// body as a kernel, that of a test runs it on the CPU. It has
//   template <typename Body> void ForEach(int64_t n, const Body& body);
// which calls body(i) for each i in [0, n), in any order.

#ifndef WEFT_TENSOR_CUDA_COPY_H_
#define WEFT_TENSOR_CUDA_COPY_H_

#include "weft/tensor/cuda/element.h"
#include "weft/tensor/cuda/index.h"

namespace weft::internal::cuda {

// visit(TypeOf<T>()) for an unsigned T of as many bytes as `element`.
template <typename Visit>
auto VisitSize(Element element, const Visit& visit) {
  return VisitElement(element, [&](auto type) {
    using T = typename decltype(type)::Type;
    if constexpr (sizeof(T) == 1) return visit(TypeOf<uint8_t>());
    if constexpr (sizeof(T) == 2) return visit(TypeOf<uint16_t>());
    if constexpr (sizeof(T) == 4) return visit(TypeOf<uint32_t>());
    if constexpr (sizeof(T) == 8) return visit(TypeOf<uint64_t>());
  });
}

// The bytes of `value` as an element of type T.
template <typename Bits, typename T>
Bits BitsOf(double value) {
  if constexpr (sizeof(T) == sizeof(Bits)) {
    return __builtin_bit_cast(Bits, Cast<T>(value));
  } else {
    return 0;
  }
}

template <typename T>
struct FillBody {
  StridedIndex<1> index;
  T* out;
  T value;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    out[index.At(i)[0]] = value;
  }
};

// Operands: what is filled. Numbers: the value.
template <typename Executor>
const char* Fill(const Call& call, Executor& executor) {
  if (call.count != 1) return kNoCount;
  const Operand& y = call.operands[0];
  StridedIndex<1> index;
  if (!MakeIndex<1>(y.dims, y.sizes, {LayoutOf(y)}, &index)) {
    return kTooManyDims;
  }
  VisitSize(y.element, [&](auto size) {
    using Bits = typename decltype(size)::Type;
    const Bits value = VisitElement(y.element, [&](auto type) {
      return BitsOf<Bits, typename decltype(type)::Type>(call.numbers[0]);
    });
    executor.ForEach(index.count, FillBody<Bits>{index, y.data<Bits>(), value});
  });
  return nullptr;
}

template <typename T>
struct CopyBody {
  StridedIndex<2> index;
  const T* in;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Offsets<2> at = index.At(i);
    out[at[1]] = in[at[0]];
  }
};

// One kernel for each type that is written; all threads of it read one type.
template <typename To>
struct CastBody {
  StridedIndex<2> index;
  Element from;
  const void* in;
  To* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Offsets<2> at = index.At(i);
    out[at[1]] = LoadAs<To>(from, in, at[0]);
  }
};

// Operands: src, which broadcasts to dst; dst.
template <typename Executor>
const char* Copy(const Call& call, Executor& executor) {
  if (call.count != 2) return kNoCount;
  const Operand& x = call.operands[0];
  const Operand& y = call.operands[1];
  StridedIndex<2> index;
  if (!MakeIndex<2>(y.dims, y.sizes, {LayoutOf(x), LayoutOf(y)}, &index)) {
    return kTooManyDims;
  }
  if (x.element == y.element) {
    VisitSize(y.element, [&](auto size) {
      using Bits = typename decltype(size)::Type;
      executor.ForEach(index.count,
                       CopyBody<Bits>{index, x.data<Bits>(), y.data<Bits>()});
    });
    return nullptr;
  }
  VisitElement(y.element, [&](auto type) {
    using To = typename decltype(type)::Type;
    executor.ForEach(index.count,
                     CastBody<To>{index, x.element, x.address, y.data<To>()});
  });
  return nullptr;
}

template <typename T>
struct WhereBody {
  StridedIndex<4> index;
  const bool* condition;
  const T* a;
  const T* b;
  T* out;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Offsets<4> at = index.At(i);
    out[at[3]] = condition[at[0]] ? a[at[1]] : b[at[2]];
  }
};

// Operands: condition, a, b, result.
template <typename Executor>
const char* Where(const Call& call, Executor& executor) {
  if (call.count != 4) return kNoCount;
  const Operand& condition = call.operands[0];
  const Operand& a = call.operands[1];
  const Operand& b = call.operands[2];
  const Operand& y = call.operands[3];
  if (condition.element != Element::kBool || a.element != y.element ||
      b.element != y.element) {
    return kNoDType;
  }
  StridedIndex<4> index;
  if (!MakeIndex<4>(
          y.dims, y.sizes,
          {LayoutOf(condition), LayoutOf(a), LayoutOf(b), LayoutOf(y)},
          &index)) {
    return kTooManyDims;
  }
  VisitSize(y.element, [&](auto size) {
    using Bits = typename decltype(size)::Type;
    executor.ForEach(
        index.count,
        WhereBody<Bits>{index, condition.data<bool>(), a.data<Bits>(),
                        b.data<Bits>(), y.data<Bits>()});
  });
  return nullptr;
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_COPY_H_
