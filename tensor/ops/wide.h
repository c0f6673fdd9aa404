// How operations compute with f16 and bf16: in f32, and each result is rounded
// once, to the nearest, ties to even.
//
//   Tensor Softmax(const Tensor& x, int64_t dim) {
//     if (internal::IsHalf(x)) {
//       return Softmax(internal::Wide(x), dim).To(x.dtype());
//     }
//     ...
//
// So they do on every device that has the operation in f32.

#ifndef WEFT_TENSOR_OPS_WIDE_H_
#define WEFT_TENSOR_OPS_WIDE_H_

#include "weft/base/error.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/overlap.h"
#include "weft/tensor/tensor.h"

namespace weft::internal {

inline bool IsHalf(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}
// False for an undefined tensor.
inline bool IsHalf(const Tensor& x) { return x.defined() && IsHalf(x.dtype()); }

// x in f32 if it is f16 or bf16, else itself. x may be undefined.
inline Tensor Wide(const Tensor& x) {
  return IsHalf(x) ? x.To(DType::kF32) : x;
}

// x as `dtype`; x may be undefined.
inline Tensor Rounded(const Tensor& x, DType dtype) {
  return x.defined() ? x.To(dtype) : x;
}

// Runs update(wide) on the elements of `y`, f16 or bf16, in f32, and rounds
// what that leaves into `y`. Throws for a `y` that overlaps itself.
template <typename Update>
void UpdateInF32(const Tensor& y, const char* where, Update update) {
  CheckWritable(y, where);
  const Tensor wide = Wide(y);
  update(wide);
  y.CopyFrom(wide);
}

// Throws INVALID_ARGUMENT that names `where` unless x holds real numbers.
inline void CheckFloating(const Tensor& x, const char* where) {
  if (IsFloating(x.dtype())) return;
  ThrowInvalidArgument(where, ": x is ", x.Describe(),
                       "; wanted f32, f64, f16 or bf16; cast with To()");
}

}  // namespace weft::internal

#endif  // WEFT_TENSOR_OPS_WIDE_H_
