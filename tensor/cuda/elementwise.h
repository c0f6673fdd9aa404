// Functions of elements (functions.h) over whole tensors, broadcast.
//
// Executor: see copy.h.

#ifndef WEFT_TENSOR_CUDA_ELEMENTWISE_H_
#define WEFT_TENSOR_CUDA_ELEMENTWISE_H_

#include "weft/tensor/cuda/element.h"
#include "weft/tensor/cuda/functions.h"
#include "weft/tensor/cuda/index.h"

namespace weft::internal::cuda {

template <typename T>
Numbers<T> NumbersOf(const Call& call) {
  return {Cast<T>(call.numbers[0]), Cast<T>(call.numbers[1])};
}

template <typename Fn, typename T, typename R>
struct UnaryBody {
  StridedIndex<2> index;
  const T* x;
  R* y;
  Numbers<T> numbers;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Offsets<2> at = index.At(i);
    y[at[1]] = Fn::Of(x[at[0]], numbers);
  }
};

template <typename Fn, typename T, typename R>
struct BinaryBody {
  StridedIndex<3> index;
  const T* a;
  const T* b;
  R* y;
  Numbers<T> numbers;
  WEFT_HOST_DEVICE void operator()(int64_t i) const {
    const Offsets<3> at = index.At(i);
    y[at[2]] = Fn::Of(a[at[0]], b[at[1]], numbers);
  }
};

// visit(TypeOf<T>()) for the type of `element` if Fn has it, else kNoDType.
template <typename Fn, typename Visit>
const char* VisitTypesOf(Element element, const Visit& visit) {
  if constexpr (Fn::kHasReals) {
    if (element == Element::kF32) return visit(TypeOf<float>());
    if (element == Element::kF64) return visit(TypeOf<double>());
  }
  if constexpr (Fn::kHasIntegers) {
    if (element == Element::kI64) return visit(TypeOf<int64_t>());
    if (element == Element::kU8) return visit(TypeOf<uint8_t>());
  }
  if constexpr (Fn::kHasAll) {
    if (element == Element::kI32) return visit(TypeOf<int32_t>());
    if (element == Element::kI8) return visit(TypeOf<int8_t>());
  }
  if constexpr (Fn::kHasAll || !Fn::kHasReals) {
    if (element == Element::kBool) return visit(TypeOf<bool>());
  }
  return kNoDType;
}

template <typename Fn, typename Executor>
const char* UnaryInto(const Operand& x, const Operand& y, const Call& call,
                      Executor& executor) {
  return VisitTypesOf<Fn>(x.element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    using R = decltype(Fn::Of(T{}, Numbers<T>{}));
    if (y.element != kElementOf<R>) return kNoDType;
    StridedIndex<2> index;
    if (!MakeIndex<2>(y.dims, y.sizes, {LayoutOf(x), LayoutOf(y)}, &index)) {
      return kTooManyDims;
    }
    executor.ForEach(index.count,
                     UnaryBody<Fn, T, R>{index, x.data<T>(), y.data<R>(),
                                         NumbersOf<T>(call)});
    return nullptr;
  });
}

template <typename Fn, typename Executor>
const char* BinaryInto(const Operand& a, const Operand& b, const Operand& y,
                       const Call& call, Executor& executor) {
  return VisitTypesOf<Fn>(a.element, [&](auto type) -> const char* {
    using T = typename decltype(type)::Type;
    using R = decltype(Fn::Of(T{}, T{}, Numbers<T>{}));
    if (b.element != a.element || y.element != kElementOf<R>) return kNoDType;
    StridedIndex<3> index;
    if (!MakeIndex<3>(y.dims, y.sizes, {LayoutOf(a), LayoutOf(b), LayoutOf(y)},
                      &index)) {
      return kTooManyDims;
    }
    executor.ForEach(index.count,
                     BinaryBody<Fn, T, R>{index, a.data<T>(), b.data<T>(),
                                          y.data<R>(), NumbersOf<T>(call)});
    return nullptr;
  });
}

// Operands: x, result; or one, which is written in place.
template <typename Fn, typename Executor>
const char* Unary(const Call& call, Executor& executor) {
  if (call.count != 1 && call.count != 2) return kNoCount;
  return UnaryInto<Fn>(call.operands[0], call.operands[call.count - 1], call,
                       executor);
}

// Operands: a, b, result; or y, x, where y = Of(y, x) is written in place.
template <typename Fn, typename Executor>
const char* Binary(const Call& call, Executor& executor) {
  if (call.count != 2 && call.count != 3) return kNoCount;
  const Operand& written = call.operands[call.count == 2 ? 0 : 2];
  return BinaryInto<Fn>(call.operands[0], call.operands[1], written, call,
                        executor);
}

}  // namespace weft::internal::cuda

#endif  // WEFT_TENSOR_CUDA_ELEMENTWISE_H_
