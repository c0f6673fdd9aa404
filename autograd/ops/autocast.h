// How operations take part in AutocastScope (weft/autograd/autocast.h): each
// casts its inputs as its list says, and then runs with autocast off.

#ifndef WEFT_AUTOGRAD_OPS_AUTOCAST_H_
#define WEFT_AUTOGRAD_OPS_AUTOCAST_H_

#include <vector>

#include "absl/types/span.h"
#include "weft/autograd/autocast.h"
#include "weft/autograd/variable.h"
#include "weft/tensor/dtype.h"
#include "weft/tensor/ops/wide.h"
#include "weft/tensor/tensor.h"

namespace weft::internal {

inline bool IsAutocasting() { return AutocastScope::Current().has_value(); }

// Whether autocast changes the dtype of such elements.
inline bool IsCastable(DType dtype) {
  return dtype == DType::kF32 || IsHalf(dtype);
}

// Cast(x, dtype) with the cast of a leaf taken from the scope; x itself if it
// is undefined, `dtype` already, or of a dtype that autocast leaves alone.
Variable Autocast(const Variable& x, DType dtype);
inline Tensor Autocast(const Tensor& x, DType dtype) {
  return x.defined() && IsCastable(x.dtype()) ? x.To(dtype) : x;
}

// f32 unless all that autocast may cast are of one dtype: then that.
DType WidestOf(absl::Span<const Variable* const> inputs);
DType WidestOf(absl::Span<const Variable> inputs);

template <typename... Inputs>
bool HasHalf(const Inputs&... inputs) {
  return ((inputs.defined() && IsHalf(inputs.dtype())) || ...);
}

template <typename Compute, typename... Inputs>
Variable WithoutAutocast(const Compute& compute, const Inputs&... inputs) {
  const AutocastScope off(std::nullopt);
  return compute(inputs...);
}

// compute(inputs...), each input in the scope's dtype, or in `dtype`. REQUIRES:
// IsAutocasting().
template <typename Compute, typename... Inputs>
Variable ComputeIn(DType dtype, const Compute& compute,
                   const Inputs&... inputs) {
  return WithoutAutocast(compute, Autocast(inputs, dtype)...);
}
template <typename Compute, typename... Inputs>
Variable ComputeInLow(const Compute& compute, const Inputs&... inputs) {
  return ComputeIn(*AutocastScope::Current(), compute, inputs...);
}
template <typename Compute, typename... Inputs>
Variable ComputeInF32(const Compute& compute, const Inputs&... inputs) {
  return ComputeIn(DType::kF32, compute, inputs...);
}
template <typename Compute>
Variable ComputeInWidest(const Compute& compute, const Variable& a,
                         const Variable& b) {
  return ComputeIn(WidestOf({&a, &b}), compute, a, b);
}

// All of them in their widest dtype.
std::vector<Variable> InWidest(absl::Span<const Variable> inputs);

}  // namespace weft::internal

#endif  // WEFT_AUTOGRAD_OPS_AUTOCAST_H_
