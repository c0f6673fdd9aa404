#include "weft/tensor/ops/reduce.h"

#include <algorithm>
#include <limits>

#include "weft/base/error.h"
#include "weft/tensor/ops/elementwise.h"
#include "weft/tensor/ops/scalar_math.h"
#include "weft/tensor/strided_loop.h"
#include "weft/tensor/vectorize.h"

namespace weft {
namespace {

using internal::AddOp;
using internal::LayoutOf;
using internal::StridedLoop;

// Which dimensions go, and the shapes that remain.
struct Plan {
  uint64_t is_reduced = 0;  // Bit d for dimension d.
  Shape kept;               // With size 1 where reduced.
  Shape squeezed;           // Without.
};

Plan PlanFor(const Shape& shape, absl::Span<const int64_t> dims,
             absl::string_view where) {
  Plan plan;
  const int64_t rank = static_cast<int64_t>(shape.size());
  for (const int64_t dim : dims) {
    const uint64_t bit = uint64_t{1} << WrapDim(dim, rank, where);
    if ((plan.is_reduced & bit) != 0) {
      ThrowInvalidArgument(where, ": dim ", dim, " is named twice");
    }
    plan.is_reduced |= bit;
  }
  if (dims.empty()) plan.is_reduced = ~uint64_t{0};
  for (int64_t d = 0; d < rank; ++d) {
    const bool goes = (plan.is_reduced >> d & 1) != 0;
    plan.kept.push_back(goes ? 1 : shape[d]);
    if (!goes) plan.squeezed.push_back(shape[d]);
  }
  return plan;
}

// Several partial results side by side, so that the loop vectorises and the
// rounding error of a sum is a fraction of that of one long chain.
template <typename T, typename Op>
WEFT_VECTORIZE T FoldRun(const T* in, int64_t stride, int64_t n, T start,
                         Op op) {
  constexpr int64_t kLanes = 32;
  int64_t i = 0;
  T total = start;
  if (stride == 1 && n >= kLanes) {
    T lanes[kLanes];
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = in[j];
    for (i = kLanes; i + kLanes <= n; i += kLanes) {
      for (int64_t j = 0; j < kLanes; ++j) lanes[j] = op(lanes[j], in[i + j]);
    }
    for (int64_t width = kLanes / 2; width > 0; width /= 2) {
      for (int64_t j = 0; j < width; ++j) {
        lanes[j] = op(lanes[j], lanes[j + width]);
      }
    }
    total = op(total, lanes[0]);
  }
  for (; i < n; ++i) total = op(total, in[i * stride]);
  return total;
}

// Blocks are folded apart, so that the partial sums of a long run stay small.
template <typename T, typename Op>
T Fold(const T* in, int64_t stride, int64_t n, T start, Op op) {
  constexpr int64_t kBlock = 8192;
  T total = start;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t length = std::min(kBlock, n - i);
    const T* const block = in + i * stride;
    total = op(total, FoldRun(block + stride, stride, length - 1, *block, op));
  }
  return total;
}

template <typename T, typename Op>
WEFT_VECTORIZE void FoldInto(const T* in, int64_t in_stride, T* out,
                             int64_t out_stride, int64_t n, Op op) {
  if (in_stride == 1 && out_stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = op(out[i], in[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i * out_stride] = op(out[i * out_stride], in[i * in_stride]);
  }
}

// Folds x over the plan's dimensions; the result has shape plan.kept.
template <typename T, typename Op>
Tensor FoldDims(const Tensor& x, const Plan& plan, T start, Op op) {
  const Tensor result = Tensor::Empty(plan.kept, DTypeOf<T>);
  T* const out = result.data<T>();
  std::fill_n(out, result.numel(), start);
  const T* const in = x.data<T>();
  const StridedLoop<2> loop(x.shape(), {LayoutOf(x), LayoutOf(result)});
  loop.ForEachRun([&](const auto& at, const auto& strides, int64_t n) {
    if (strides[1] == 0) {
      T& total = out[at[1]];
      total = Fold(in + at[0], strides[0], n, total, op);
    } else {
      FoldInto(in + at[0], strides[0], out + at[1], strides[1], n, op);
    }
  });
  return result;
}

Tensor Finish(const Tensor& kept, const Plan& plan, bool keep_dims) {
  return keep_dims ? kept : kept.View(plan.squeezed);
}

template <typename Op>
Tensor Extremum(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims,
                bool is_max, absl::string_view where, Op op) {
  const Plan plan = PlanFor(x.shape(), dims, where);
  if (x.numel() == 0 && NumElements(plan.kept, where) > 0) {
    ThrowInvalidArgument(where, ": nothing to choose from in ", x.Describe());
  }
  return VisitNumber(x.dtype(), where, [&](auto type) {
    using T = typename decltype(type)::Type;
    using Limits = std::numeric_limits<T>;
    const T low = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    const T high = Limits::has_infinity ? Limits::infinity() : Limits::max();
    return Finish(FoldDims<T>(x, plan, is_max ? low : high, op), plan,
                  keep_dims);
  });
}

template <typename T>
int64_t FirstLargest(const T* in, int64_t stride, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) {
    const T value = in[i * stride];
    const T found = in[best * stride];
    if (value > found || (value != value && found == found)) best = i;
  }
  return best;
}

}  // namespace

Tensor Sum(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  const Plan plan = PlanFor(x.shape(), dims, "Sum");
  if (x.dtype() == DType::kU8 || x.dtype() == DType::kBool) {
    return Sum(x.To(DType::kI64), dims, keep_dims);
  }
  return VisitNumber(x.dtype(), "Sum", [&](auto type) {
    using T = typename decltype(type)::Type;
    return Finish(FoldDims<T>(x, plan, T{0}, AddOp()), plan, keep_dims);
  });
}

Tensor Mean(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  if (!IsFloating(x.dtype())) {
    ThrowInvalidArgument("Mean: x is ", x.Describe(), "; wanted f32 or f64");
  }
  const Plan plan = PlanFor(x.shape(), dims, "Mean");
  double count = 1;
  for (size_t d = 0; d < x.shape().size(); ++d) {
    if ((plan.is_reduced >> d & 1) != 0) count *= x.shape()[d];
  }
  Tensor sum = Sum(x, dims, keep_dims);
  if (sum.numel() > 0) Mul_(sum, 1 / count);
  return sum;
}

Tensor Max(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  return Extremum(x, dims, keep_dims, true, "Max", internal::MaximumOp());
}

Tensor Min(const Tensor& x, absl::Span<const int64_t> dims, bool keep_dims) {
  return Extremum(x, dims, keep_dims, false, "Min", internal::MinimumOp());
}

Tensor ArgMax(const Tensor& x, int64_t dim, bool keep_dims) {
  const int d = WrapDim(dim, x.dim(), "ArgMax");
  const int64_t n = x.shape()[d];
  Shape shape = x.shape();
  shape[d] = 1;
  const Tensor kept = Tensor::Empty(shape, DType::kI64);
  if (n == 0 && kept.numel() > 0) {
    ThrowInvalidArgument("ArgMax: nothing to choose from in ", x.Describe());
  }
  const StridedLoop<2> loop(
      shape, {LayoutOf(x.Slice(d, 0, n > 0 ? 1 : 0)), LayoutOf(kept)});
  VisitNumber(x.dtype(), "ArgMax", [&](auto type) {
    using T = typename decltype(type)::Type;
    const T* const in = x.data<T>();
    int64_t* const out = kept.data<int64_t>();
    loop.ForEachRun([&](const auto& at, const auto& strides, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        out[at[1] + i * strides[1]] =
            FirstLargest(in + at[0] + i * strides[0], x.strides()[d], n);
      }
    });
  });
  return keep_dims ? kept : kept.Squeeze(d);
}

Tensor SumTo(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int64_t lead = x.dim() - static_cast<int64_t>(shape.size());
  absl::InlinedVector<int64_t, 6> dims;
  bool fits = lead >= 0;
  for (int64_t d = 0; fits && d < x.dim(); ++d) {
    const bool is_stretched =
        d < lead || (shape[d - lead] == 1 && x.shape()[d] != 1);
    fits = is_stretched || shape[d - lead] == x.shape()[d];
    if (is_stretched) dims.push_back(d);
  }
  if (!fits) {
    ThrowInvalidArgument("SumTo: ", ShapeText(shape), " does not expand to ",
                         ShapeText(x.shape()));
  }
  return Sum(x, dims, true).View(shape);
}

Tensor ExtremumBackward(const Tensor& grad, const Tensor& x, const Tensor& y,
                        absl::Span<const int64_t> dims) {
  const Tensor is_chosen = Equal(x, y).To(x.dtype());
  const Tensor share = Div(grad.View(y.shape()), Sum(is_chosen, dims, true));
  return Mul(is_chosen, share);
}

bool AllFinite(const Tensor& x) {
  // x - x is 0 for finite x, else NaN; sums keep NaN.
  return VisitFloating(x.dtype(), "AllFinite", [&](auto type) {
    using T = typename decltype(type)::Type;
    const auto zero = Sum(Sub(x, x));
    return zero.template item<T>() == T{0};
  });
}

double SquaredNorm(const Tensor& x) {
  return VisitFloating(x.dtype(), "SquaredNorm", [&](auto type) {
    using T = typename decltype(type)::Type;
    const Tensor flat = x.Contiguous();
    const T* const in = flat.data<T>();
    double total = 0;
    for (int64_t i = 0; i < flat.numel(); ++i) {
      total += static_cast<double>(in[i]) * static_cast<double>(in[i]);
    }
    return total;
  });
}

}  // namespace weft
